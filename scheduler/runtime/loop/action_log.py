"""Log of actions and rollouts: one line for each step of each, written by the leader.

Steps are DEBUG lines of the logger ``tangram.actions``, which `TANGRAM_LOG_ACTIONS` turns on: at
thousands of actions a second they would be most of the log. Outcomes that are not the trainer's
fault are always logged, and so are backends of language models that fail. Ids are fields (``action_id``, ``trajectory``, ``node``) of the record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from domain.action import Outcome
from domain.decisions import (
    Abort,
    AssignRollout,
    Decision,
    Finish,
    FinishRollout,
    Grant,
    Requeue,
    Resize,
    WithdrawRollout,
)
from domain.events import ActionStarted, ActionSubmitted, Event
from domain.rollout_events import BackendJudged, RolloutWorkerLost
from domain.rollouts import RolloutOutcome

log = logging.getLogger("tangram.actions")

#: Losses that an operator needs to see.
_LOSSES: Final = (BackendJudged, RolloutWorkerLost)
#: Outcomes that an operator needs to see.
SYSTEM_FAULTS = frozenset({Outcome.INFRA_FAILED, Outcome.UNKNOWN})


def record(events: Iterable[Event], decisions: Iterable[Decision]) -> None:
    """Log the steps that one committed pass made."""
    debug = log.isEnabledFor(logging.DEBUG)
    for event in events:
        if isinstance(event, _LOSSES):
            _log_loss(event)
        elif debug:
            _log_event(event)
    for decision in decisions:
        if isinstance(decision, Finish):
            _log_finish(decision)
        elif isinstance(decision, FinishRollout):
            _log_rollout_end(decision)
        elif debug:
            _log_decision(decision)


def _log_event(event: Event) -> None:
    if isinstance(event, ActionSubmitted):
        action = event.action
        log.debug("submitted", extra={
            "action_id": action.id, "project": action.project, "task": action.task,
            "trajectory": action.trajectory, "kind": action.kind.value,
        })  # fmt: skip
    elif isinstance(event, ActionStarted):
        log.debug("started", extra={
            "action_id": event.action_id, "node": event.node, "attempt": event.attempt,
        })  # fmt: skip


def _log_loss(event: BackendJudged | RolloutWorkerLost) -> None:
    if isinstance(event, RolloutWorkerLost):
        log.warning("rollout worker lost", extra={
            "worker": event.worker, "incarnation": event.incarnation, "reason": event.reason,
        })  # fmt: skip
        return
    level, what = (
        (logging.WARNING, "backend failed") if event.unhealthy else (logging.INFO, "backend works")
    )
    log.log(level, what, extra={
        "pool": event.pool, "backend": event.backend, "reason": event.unhealthy,
    })  # fmt: skip


def _log_decision(decision: Decision) -> None:
    if isinstance(decision, Grant):
        log.debug("granted", extra={
            "action_id": decision.action_id, "node": decision.node, "attempt": decision.attempt,
        })  # fmt: skip
    elif isinstance(decision, Resize):
        log.debug("resized", extra={"action_id": decision.action_id, "node": decision.node})
    elif isinstance(decision, AssignRollout):
        log.debug("rollout assigned", extra={
            "rollout": decision.rollout.id, "worker": decision.worker, "attempt": decision.attempt,
        })  # fmt: skip
    elif isinstance(decision, WithdrawRollout):
        log.debug("rollout withdrawn", extra={
            "rollout": decision.rollout_id, "worker": decision.worker, "reason": decision.reason,
        })  # fmt: skip
    elif isinstance(decision, (Abort, Requeue)):
        name = type(decision).__name__.lower()
        log.debug(name, extra={"action_id": decision.action_id, "reason": decision.reason})


def _log_finish(finish: Finish) -> None:
    level = logging.WARNING if finish.outcome in SYSTEM_FAULTS else logging.DEBUG
    if log.isEnabledFor(level):
        log.log(level, "finished", extra={
            "action_id": finish.action_id, "project": finish.project, "task": finish.task,
            "trajectory": finish.trajectory, "node": finish.node, "outcome": finish.outcome.value,
            "detail": finish.detail, "act_seconds": finish.timing.act_seconds,
        })  # fmt: skip


def _log_rollout_end(end: FinishRollout) -> None:
    failed = end.result.outcome is RolloutOutcome.INFRA_FAILED
    level = logging.WARNING if failed else logging.DEBUG
    if log.isEnabledFor(level):
        log.log(level, "rollout finished", extra={
            "rollout": end.rollout_id, "project": end.project, "task": end.task, "worker": end.worker,
            "outcome": end.result.outcome.value, "reason": end.result.reason,
            "total_seconds": end.total_seconds,
        })  # fmt: skip
