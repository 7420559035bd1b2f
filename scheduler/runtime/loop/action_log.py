"""What became of each action, in the log of the leader.

Steps are DEBUG lines of the logger ``tangram.actions``, which `TANGRAM_LOG_ACTIONS` turns on: at
thousands of actions a second they would be most of the log. Ends that are our side's fault are
always told. Ids are fields (``action_id``, ``trajectory``, ``node``), not only words.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from domain.action import Outcome
from domain.decisions import Abort, Decision, Finish, Grant, Requeue, Resize
from domain.events import ActionStarted, ActionSubmitted, Event

log = logging.getLogger("tangram.actions")

#: Ends that somebody who runs the system should hear of.
OUR_FAULT = frozenset({Outcome.INFRA_FAILED, Outcome.UNKNOWN})


def follow(events: Iterable[Event], decisions: Iterable[Decision]) -> None:
    """Tell what one committed pass did to its actions."""
    wordy = log.isEnabledFor(logging.DEBUG)
    if wordy:
        for event in events:
            _tell_event(event)
    for decision in decisions:
        if isinstance(decision, Finish):
            _tell_end(decision)
        elif wordy:
            _tell_decision(decision)


def _tell_event(event: Event) -> None:
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


def _tell_decision(decision: Decision) -> None:
    if isinstance(decision, Grant):
        log.debug("granted", extra={
            "action_id": decision.action_id, "node": decision.node, "attempt": decision.attempt,
        })  # fmt: skip
    elif isinstance(decision, Resize):
        log.debug("resized", extra={"action_id": decision.action_id, "node": decision.node})
    elif isinstance(decision, (Abort, Requeue)):
        name = type(decision).__name__.lower()
        log.debug(name, extra={"action_id": decision.action_id, "reason": decision.reason})


def _tell_end(end: Finish) -> None:
    level = logging.WARNING if end.outcome in OUR_FAULT else logging.DEBUG
    if log.isEnabledFor(level):
        log.log(level, "finished", extra={
            "action_id": end.action_id, "project": end.project, "task": end.task,
            "trajectory": end.trajectory, "node": end.node, "outcome": end.outcome.value,
            "detail": end.detail, "act_seconds": end.timing.act_seconds,
        })  # fmt: skip
