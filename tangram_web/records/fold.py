"""Journal entries folded into changes of rows. Pure: no database, no clock.

Theory of operation
1. The fold starts from what the rows say now about the actions that a batch touches (`Standing`),
   so that any split of the journal into batches leads to the same rows.
2. An action that is submitted and finished in one batch becomes one complete row; one that was
   submitted earlier becomes the set of its changed columns.
3. The fold follows the core's rules where a report came too late: an `ActionStarted` or
   `ActionFinished` counts only while that attempt of the action is with that node.
4. What is finished never changes (I1), and only a completed action has a reward (I2).
5. Times come in as journal time and leave through ``instant`` as the database wants them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from contract.responses import rfc3339
from domain.action import ActionState, Kind, Outcome
from domain.codec import JournalEntry
from domain.decisions import Finish, Grant, RemoveEnvironment, Renew, Requeue, Resize
from domain.events import (
    ActionFinished,
    ActionStarted,
    ActionSubmitted,
    EnvironmentRemoved,
    TaskOpened,
    TrajectoryFinished,
    TrajectoryOpened,
)
from domain.ids import trajectory_key
from domain.resources import units
from tangram_web.records.episodes import Episodes
from tangram_web.records.known_actions import BLANK, Standing
from tangram_web.records.request import cost_of, payload_of, placement_of, units_of_allocations
from tangram_web.records.results import bounded_result
from tangram_web.records.spending import cost_from, spending_of
from tangram_web.records.sums import Sums

_QUEUED = ActionState.QUEUED.value
_GRANTED = ActionState.GRANTED.value
_RUNNING = ActionState.RUNNING.value
_FINISHED = ActionState.FINISHED.value
_AT_A_NODE = frozenset({_GRANTED, _RUNNING})

#: Finishes of one entry that `finished_seq` can tell apart.
FINISHES_PER_ENTRY = 65536

_encode = msgspec.json.Encoder().encode


class Fold:
    """Collects what a batch of entries changes."""

    def __init__(self, known: dict[str, Standing], instant: Callable[[float], Any]) -> None:
        #: All actions of the batch: those that had a row before, and new ones.
        self.actions = known
        self.episodes = Episodes()
        self.sums = Sums()
        self._instant = instant
        self._offset = 0.0
        self._seq = 0
        self._at = 0.0
        self._now: Any = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            ActionSubmitted: self._submitted,
            ActionStarted: self._started,
            ActionFinished: self._reported,
            TaskOpened: self._task_opened,
            TrajectoryOpened: self._trajectory_opened,
            TrajectoryFinished: self._trajectory_finished,
            EnvironmentRemoved: self._environment_removed,
            RemoveEnvironment: self._trajectory_over,
            Grant: self._granted,
            Renew: self._renewed,
            Requeue: self._requeued,
            Resize: self._resized,
        }

    def entry(self, entry: JournalEntry) -> None:
        """Fold one cycle: what the core saw, then what it decided."""
        self._offset = entry.wall_offset_seconds
        self._at = entry.at + self._offset
        self._now = self._instant(self._at)
        self.episodes.wall = self._at
        handlers = self._handlers
        for event in entry.events:
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event)
        first = entry.seq * FINISHES_PER_ENTRY
        for index, decision in enumerate(entry.decisions):
            if type(decision) is Finish:
                self._finished(decision, first + index)
                continue
            handler = handlers.get(type(decision))
            if handler is not None:
                handler(decision)

    def _wall(self, at: float) -> float:
        """Return the wall clock of an event; one without a time is as old as its entry."""
        return at + self._offset if at else self._at

    def _submitted(self, event: ActionSubmitted) -> None:
        action = event.action
        if action.id in self.actions:
            return
        wall = event.accepted_at or self._wall(event.at) - event.lag_seconds
        now = self._instant(wall)
        standing = Standing(
            _QUEUED, None, 1, action.kind.value, action.project, action.task, action.trajectory,
            step=action.step,
        )  # fmt: skip
        row = BLANK.copy()
        row["id"] = action.id
        row["project"] = action.project
        row["task"] = action.task
        row["trajectory"] = action.trajectory
        row["pool"] = action.pool
        row["kind"] = standing.kind
        row["family"] = _plain(action.family)
        row["step"] = action.step
        row["group"] = _plain(action.group)
        row["priority"] = action.priority
        row["submitted_at"] = now
        row["spec"] = _encode(payload_of(action)).decode()
        if action.cost:
            row["cost"] = standing.cost = _encode(cost_of(action.cost)).decode()
        if action.metadata:
            row["metadata"] = _encode(action.metadata).decode()
        standing.changes = row
        standing.new = True
        self.actions[action.id] = standing
        self.episodes.accepted(action, now)
        self.sums.accepted(action, wall)

    def _granted(self, grant: Grant) -> None:
        standing = self.actions.get(grant.action_id)
        if standing is None or standing.state == _FINISHED:
            return
        standing.state = _GRANTED
        standing.node = grant.node
        standing.attempt = grant.attempt
        changes = standing.changes
        changes["state"] = _GRANTED
        changes["node"] = grant.node
        changes["attempt"] = grant.attempt
        changes["granted_at"] = self._now
        if grant.allocations:
            units = units_of_allocations(grant.allocations, grant.node)
            changes["units"] = _encode(units).decode()
            if grant.node is not None:
                changes["placement"] = _encode(placement_of(grant.allocations, grant.node)).decode()
        elif grant.node is not None:
            changes["placement"] = _holding_nothing(grant.node)
        if grant.expires_at is not None:
            # A lease is in its holder's hands at once.
            standing.state = changes["state"] = _RUNNING
            changes["started_at"] = self._now
            changes["result"] = self._lease_until(grant.expires_at)
        if grant.node is not None and standing.kind == Kind.EXEC and standing.trajectory:
            self.episodes.bound(
                standing.project, standing.task, standing.trajectory, grant.node, self._now
            )

    def _resized(self, resize: Resize) -> None:
        standing = self.actions.get(resize.action_id)
        if standing is not None and standing.state in _AT_A_NODE:
            units = units_of_allocations(resize.allocations, resize.node)
            standing.changes["units"] = _encode(units).decode()
            placement = placement_of(resize.allocations, resize.node)
            standing.changes["placement"] = _encode(placement).decode()

    def _renewed(self, renew: Renew) -> None:
        standing = self.actions.get(renew.action_id)
        if standing is not None and standing.state == _RUNNING:
            standing.changes["result"] = self._lease_until(renew.expires_at)

    def _lease_until(self, expires_at: float) -> str:
        return _encode({"expires_at": rfc3339(expires_at + self._offset)}).decode()

    def _started(self, event: ActionStarted) -> None:
        standing = self.actions.get(event.action_id)
        if standing is None or standing.state != _GRANTED or not standing.is_with(event):
            return
        standing.state = standing.changes["state"] = _RUNNING
        standing.changes["started_at"] = self._instant(self._wall(event.at))

    def _reported(self, event: ActionFinished) -> None:
        """Keep the result; the core's `Finish` or `Requeue` says what it is worth."""
        standing = self.actions.get(event.action_id)
        if standing is None or standing.state not in _AT_A_NODE or not standing.is_with(event):
            return
        if event.result:
            text, exit_code = bounded_result(event.result)
            standing.changes["result"] = text
            standing.changes["exit_code"] = exit_code

    def _requeued(self, decision: Requeue) -> None:
        standing = self.actions.get(decision.action_id)
        if standing is None or standing.state == _FINISHED:
            return
        standing.state = _QUEUED
        standing.node = None
        standing.changes.update(
            state=_QUEUED, node=None, units="{}", placement=None, granted_at=None,
            started_at=None, result=None, exit_code=None, detail=_plain(decision.reason),
        )  # fmt: skip

    def _finished(self, finish: Finish, finished_seq: int) -> None:
        standing = self.actions.get(finish.action_id)
        if standing is None or standing.state == _FINISHED:
            return
        standing.state = _FINISHED
        outcome, timing = finish.outcome, finish.timing
        changes = standing.changes
        changes["state"] = _FINISHED
        changes["outcome"] = outcome.value
        reward = changes["reward"] = finish.reward if outcome is Outcome.COMPLETED else None
        changes["detail"] = _plain(finish.detail)
        if standing.kind == Kind.LEASE:
            changes["result"] = None
        changes["finished_at"] = self._now
        changes["queue_seconds"] = timing.queue_seconds
        changes["overhead_seconds"] = timing.overhead_seconds
        changes["execution_seconds"] = timing.execution_seconds
        changes["act_seconds"] = timing.act_seconds
        changes["finished_seq"] = finished_seq
        if finish.result:
            changes["result"], _ = bounded_result(finish.result)
        if finish.used is not None:
            changes["used"] = _encode(finish.used).decode()
        if finish.widths:
            changes["widths"] = _encode(
                [(at, units(milli)) for at, milli in finish.widths]
            ).decode()
        self.sums.finished(finish, standing.step, reward, self._at)
        spent = spending_of(finish, cost_from(standing.cost))
        self.episodes.finished(
            standing.project,
            standing.task,
            standing.trajectory,
            timing.act_seconds,
            spent,
            self._now,
        )

    def _task_opened(self, event: TaskOpened) -> None:
        self.episodes.task_opened(event, self._instant(self._wall(event.at)))

    def _trajectory_opened(self, event: TrajectoryOpened) -> None:
        self.episodes.trajectory_opened(event, self._instant(self._wall(event.at)))

    def _trajectory_finished(self, event: TrajectoryFinished) -> None:
        now = self._instant(self._wall(event.at))
        self.episodes.ended(trajectory_key(event.project, event.trajectory), finished_at=now)

    def _trajectory_over(self, decision: RemoveEnvironment) -> None:
        """Nothing follows in a trajectory whose environment is to go, whoever ended it."""
        self.episodes.ended(decision.trajectory, finished_at=self._now)

    def _environment_removed(self, event: EnvironmentRemoved) -> None:
        now = self._instant(self._wall(event.at))
        self.episodes.ended(event.trajectory, environment_removed_at=now)


@lru_cache(maxsize=1024)
def _holding_nothing(node: str) -> str:
    return _encode(placement_of((), node)).decode()


def _plain(text: str | None) -> str | None:
    """Return a text without U+0000, which PostgreSQL refuses."""
    return (
        text
        if text is None or "\0" not in text
        else text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    )
