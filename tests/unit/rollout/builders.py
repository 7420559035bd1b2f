"""Rollouts, records and ends of actions for tests."""

from __future__ import annotations

from typing import Any

from domain.rollouts import Rollout, RolloutId, StageLimits
from rollout.core.records import REQUEST
from rollout.core.stage_machine import RolloutMachine
from rollout.ports import ActionEnd, Record

ENVIRONMENT = {"image": "python"}


def a_rollout(name: str = "rol_1", **members: Any) -> Rollout:
    """Return a rollout of handler ``noop``."""
    given = {"project": "default", "task": "t", "handler": "noop", **members}
    return Rollout(id=RolloutId(name), **given)


def a_request(**members: Any) -> Record:
    """Return the first record of a log."""
    return Record(REQUEST, {"instance": {"problem": 1}, "environment": ENVIRONMENT, **members})


def a_machine(*records: Record, attempt: int = 1, **members: Any) -> RolloutMachine:
    """Return a machine over a log of the request and these records."""
    return RolloutMachine(a_rollout(**members), attempt, [a_request(), *records])


def an_end(outcome: str = "completed", **members: Any) -> ActionEnd:
    """Return the end of an action."""
    given: dict[str, Any] = {
        "id": "act_1", "outcome": outcome, "result": {"exit_code": 0}, "reward": None, "detail": "",
        "queue_seconds": 0.0, "execution_seconds": 0.0, **members,
    }  # fmt: skip
    return ActionEnd(**given)


def limits(seconds: float = 100.0, total: float | None = None) -> StageLimits:
    """Return the same limit for each stage."""
    return StageLimits(seconds, seconds, seconds, total)
