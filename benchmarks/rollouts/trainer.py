"""A trainer that needs prompts with different rewards: DAPO's steps over any service that runs rollouts.

Each step submits its prompts, and is over when ``wanted`` of them are *informative*: all samples have ended, with rewards that
differ. Then it cancels what is left (clean-up of stale work), or waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from benchmarks.rollouts.plans import Lengths, PlannedRollout, prompts

COMPLETED = "completed"


class Ended(NamedTuple):
    """How a rollout ended."""

    outcome: str
    reward: float | None
    reason: str = ""
    tools: int = 0
    tool_seconds: float = 0.0


class Service(Protocol):
    """What runs rollouts."""

    async def submit(self, plans: Sequence[PlannedRollout]) -> list[str]:
        """Submit rollouts; return their ids in the order of the plans."""

    async def wait(self, rollout: str) -> Ended:
        """Return the end of a rollout."""

    async def cancel(self, rollouts: Sequence[str]) -> None:
        """Cancel rollouts, all at once."""


@dataclass(frozen=True)
class Training:
    """Steps of a training."""

    lengths: Lengths
    #: Informative prompts of a step, and prompts that a step submits.
    wanted: int = 10
    submitted: int = 24
    samples: int = 4
    steps: int = 3
    seed: int = 1
    clean_up: bool = True


@dataclass
class Totals:
    """What some steps came to."""

    seconds: float = 0.0
    informative: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)
    tools: int = 0
    tool_seconds: float = 0.0

    def add(self, ended: Ended) -> None:
        """Count the end of a rollout."""
        self.outcomes[ended.outcome] += 1
        self.tools += ended.tools
        self.tool_seconds += ended.tool_seconds
        if ended.outcome not in (COMPLETED, "cancelled") and len(self.reasons) < 3:
            self.reasons.append(ended.reason)


async def train(service: Service, training: Training) -> Totals:
    """Do all steps. Raises SystemExit when a step has too few informative prompts."""
    totals = Totals()
    began = time.monotonic()
    for step in range(training.steps):
        plans = prompts(
            training.submitted, training.samples, training.lengths,
            training.seed + step, prefix=f"s{step}p",
        )  # fmt: skip
        totals.informative += await _step(service, training, plans, totals)
    totals.seconds = time.monotonic() - began
    return totals


async def _step(
    service: Service, training: Training, plans: Sequence[PlannedRollout], totals: Totals
) -> int:
    """Do one step; return its informative prompts."""
    ids = await service.submit(plans)
    waits = {
        asyncio.ensure_future(service.wait(each)): (each, plan)
        for each, plan in zip(ids, plans, strict=True)
    }
    rewards: dict[str, list[float | None]] = defaultdict(list)
    informative = 0
    pending = set(waits)
    while pending and informative < training.wanted:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            ended, plan = each.result(), waits[each][1]
            totals.add(ended)
            rewards[plan.prompt].append(ended.reward)
            informative += is_informative(rewards[plan.prompt], training.samples)
    if informative < training.wanted:
        raise SystemExit(
            f"only {informative} of {training.submitted} prompts are informative: submit more"
            f" ({dict(totals.outcomes)}, {totals.reasons})"
        )
    if training.clean_up:
        await service.cancel([waits[each][0] for each in pending])
    for ended in await asyncio.gather(*pending):
        totals.add(ended)
    return training.wanted


def is_informative(rewards: Sequence[float | None], samples: int) -> bool:
    """Whether all samples of a prompt have ended with rewards, which differ."""
    known = [each for each in rewards if each is not None]
    return len(rewards) == samples and len(set(known)) > 1
