"""Log of actions: one line for each step of each action, written by the leader.

Steps are DEBUG lines of the logger ``tangram.actions``, which `TANGRAM_LOG_ACTIONS` turns on: at
thousands of actions a second they would be most of the log. Outcomes that are not the trainer's
fault are always logged. Ids are fields (``action_id``, ``trajectory``, ``node``) of the record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from domain.action import Outcome
from domain.decisions import Abort, Decision, Finish, Grant, Requeue, Resize
from domain.events import ActionStarted, ActionSubmitted, Event

log = logging.getLogger("tangram.actions")

#: Outcomes that an operator needs to see.
SYSTEM_FAULTS = frozenset({Outcome.INFRA_FAILED, Outcome.UNKNOWN})


def record(events: Iterable[Event], decisions: Iterable[Decision]) -> None:
    """Log the steps that one committed pass made."""
    debug = log.isEnabledFor(logging.DEBUG)
    if debug:
        for event in events:
            _log_event(event)
    for decision in decisions:
        if isinstance(decision, Finish):
            _log_finish(decision)
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


def _log_decision(decision: Decision) -> None:
    if isinstance(decision, Grant):
        log.debug("granted", extra={
            "action_id": decision.action_id, "node": decision.node, "attempt": decision.attempt,
        })  # fmt: skip
    elif isinstance(decision, Resize):
        log.debug("resized", extra={"action_id": decision.action_id, "node": decision.node})
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
