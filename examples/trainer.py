"""A trainer in 30 lines: groups of trajectories, rewards from a test, GRPO-style advantages.

Start a Tangram with `./tangram up`, then run `python examples/trainer.py`.
"""

from __future__ import annotations

import asyncio
import random
from statistics import mean
from uuid import uuid4

import click

from tangram_client import AsyncClient

GROUPS, GROUP_SIZE = 4, 8


async def episode(client: AsyncClient, group: str, policy: random.Random) -> float:
    """Play one trajectory: write a solution, test it, return the reward of the test."""
    answer = policy.choice((41, 42, 42, 43))  # stands in for the model
    async with client.trajectory(f"{group}-{uuid4().hex[:8]}", task="trainer-example") as episode:
        await episode.put("solution.sh", f"echo {answer}\n")
        await episode.exec(["cat", "solution.sh"], cpu=0.1, family="read", group=group)
        test = await episode.exec('test "$(sh solution.sh)" = 42', cpu=1, family="test",
                                  reward="exit_code", group=group, timeout_seconds=60)  # fmt: skip
    if test.reward is None:  # not completed: our side's fault, never the model's
        raise RuntimeError(f"{test.id} ended as {test.outcome}: {test.detail}")
    return test.reward


async def main(client: AsyncClient | None = None) -> float:
    """Play all groups at once; print what a GRPO update would start from."""
    policy = random.Random(0)
    async with client or AsyncClient() as client:
        for number in range(GROUPS):
            group = f"g{number}"
            plays = (episode(client, group, policy) for _ in range(GROUP_SIZE))
            rewards = await asyncio.gather(*plays)
            advantages = [reward - mean(rewards) for reward in rewards]
            click.echo(
                f"{group}: mean reward {mean(rewards):.2f}, best advantage {max(advantages):+.2f}"
            )
    return mean(rewards)


if __name__ == "__main__":
    asyncio.run(main())
