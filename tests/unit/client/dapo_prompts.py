"""Prompts of DAPO for tests: the rewards and durations of their samples, and what the in-memory server makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tangram_client import Client
from tangram_client.dapo import Dapo, PromptGroup
from tangram_client.testing import FakeServer, PlannedRollout


def prompts(
    *rewards: Sequence[float | None], seconds: Sequence[float] = (1.0,)
) -> list[dict[str, Any]]:
    """Return instances whose samples get these rewards after these seconds."""
    return [
        {"id": f"p{number}", "data": {"rewards": own, "seconds": list(seconds)}}
        for number, own in enumerate(rewards)
    ]


def planned(rollout: Mapping[str, Any]) -> PlannedRollout:
    data, sample = rollout["data"], rollout["sample"]
    reward = data["rewards"][sample % len(data["rewards"])]
    seconds = data["seconds"][sample % len(data["seconds"])]
    if reward is None:
        return PlannedRollout(seconds, None, "infra_failed", "its node is lost")
    return PlannedRollout(seconds, reward)


def dapo(client: Client, instances: list[dict[str, Any]], **options: Any) -> Dapo:
    return Dapo(client, "grpo", "swe", instances, **{"prompts": 2, "samples": 2, **options})


GOOD, SAME, LOST = (0.0, 1.0), (1.0, 1.0), (None, 1.0)


def names(batch: Sequence[PromptGroup]) -> list[str]:
    return [str(group.instance["id"]) for group in batch]


def states(server: FakeServer) -> list[str]:
    return [view["state"] for view in server.rollouts.views.values()]
