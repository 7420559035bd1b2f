"""Queue accounts: how many actions of each project wait, and how many bytes they take, for the gateway.

Gateways check the limits of a project in the script that appends its submission. That script adds the
submission to what *arrives*; the leader takes it from there and states what is *queued*, both in one
write, so that their sum counts each action once. The leader writes at most every `PERIOD_SECONDS`.

The same write lets messages into the inbox that wait outside, because their project has many there (`SUBMIT`).

A leader states the sums of all projects when it takes over. What arrives is set to zero whenever the
inbox is empty: a message that was set aside, or one of an earlier version, cannot count for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Final, Protocol

from domain.action import ActionState
from domain.decisions import Decision, Finish, Grant, Requeue
from domain.events import ActionSubmitted, Event
from domain.project_limits import queued_bytes
from scheduler.core.state.model import State
from scheduler.runtime.redis.connection import Argument

#: A change is written after this time at the latest.
PERIOD_SECONDS: Final = 0.02
#: Without a change, accounts are written after this time: a project whose messages could not be read may have others
#: outside the inbox.
QUIET_SECONDS: Final = 2.0


class QueueStatements(Protocol):
    """Writes what is queued; `Leadership` is one."""

    def state_queued(self, args: Sequence[Argument]) -> int:
        """Write the arguments of `STATE_QUEUED` behind those of every write; return what it does."""


class QueueAccounts:
    """Sums over the queued actions of one term."""

    def __init__(self, state: State) -> None:
        self._state = state
        #: Queued action → its project and bytes.
        self._queued: dict[str, tuple[str, int]] = {}
        self._actions: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        #: Of the inbox, handled since the last write.
        self._handled: Counter[str] = Counter()
        self._handled_bytes: Counter[str] = Counter()
        self._changed: set[str] = set(state.config.projects)
        self._next = 0.0
        self._at_latest = monotonic() + QUIET_SECONDS
        #: Whether messages waited outside the inbox at the last write.
        self.waits_outside = False
        #: The first write of a term replaces what an earlier leader wrote.
        self._fresh = True
        for live in state.actions.values():
            if live.state is ActionState.QUEUED:
                self._add(live.action.id, live.action.project, queued_bytes(live.action))

    @property
    def patience_seconds(self) -> float | None:
        """Time until changes are to be written; None when there are none."""
        if not self._changed:
            return None
        return max(0.001, self._next - monotonic())

    def record(self, events: Iterable[Event], decisions: Iterable[Decision]) -> None:
        """Count the events and decisions of one pass."""
        for event in events:
            if isinstance(event, ActionSubmitted):
                action = event.action
                size = queued_bytes(action)
                self._handled[action.project] += 1
                self._handled_bytes[action.project] += size
                self._add(action.id, action.project, size)
        for decision in decisions:
            if isinstance(decision, (Grant, Finish)):
                self._remove(decision.action_id)
            elif isinstance(decision, Requeue):
                live = self._state.actions.get(decision.action_id)
                if live is not None:
                    self._add(live.action.id, live.action.project, queued_bytes(live.action))

    def write(self, leadership: QueueStatements, inbox_id: str) -> None:
        """Write what has changed, if it is time. ``inbox_id``: up to which the inbox is handled."""
        if monotonic() < (self._next if self._changed else self._at_latest):
            return
        args: list[Argument] = [inbox_id, int(self._fresh)]
        for project in self._changed:
            args += (project, self._actions[project], self._bytes[project])
            args += (self._handled.pop(project, 0), self._handled_bytes.pop(project, 0))
        # Until the inbox is empty, what arrives may be too much: then it is written once more.
        found = leadership.state_queued(args)
        if found == 1:
            self._changed.clear()
        self.waits_outside = found == 2
        self._fresh = False
        self._next = monotonic() + PERIOD_SECONDS
        self._at_latest = monotonic() + QUIET_SECONDS

    def _add(self, action_id: str, project: str, size: int) -> None:
        if action_id not in self._queued:
            self._queued[action_id] = project, size
            self._actions[project] += 1
            self._bytes[project] += size
        self._changed.add(project)

    def _remove(self, action_id: str) -> None:
        found = self._queued.pop(action_id, None)
        if found is not None:
            project, size = found
            self._actions[project] -= 1
            self._bytes[project] -= size
            self._changed.add(project)
