"""Fold of the journal into changes of rows. Pure: no database, no clock.

Theory of operation
1. The fold starts from the present rows of the actions that a batch touches (`ActionChange`), so
   that any split of the journal into batches leads to the same rows.
2. An action that is submitted and finished in one batch becomes one complete row; one that was
   submitted earlier becomes the set of its changed columns.
3. The fold follows the core's rules for late reports: an `ActionStarted` or `ActionFinished` counts
   only while that attempt of the action is at that node.
4. A finished action never changes (I1), and only a completed one has a reward (I2).
5. ``instant`` converts wall clock to the values of the database's timestamp columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from contract.responses import rfc3339
from domain.action import ActionState, Kind, Outcome
from domain.codec import JournalEntry
from domain.decisions import (
    EndMove,
    Finish,
    ForkEnvironment,
    Grant,
    RemoveEnvironment,
    Renew,
    Requeue,
    Resize,
)
from domain.events import (
    ActionFinished,
    ActionStarted,
    ActionSubmitted,
    EnvironmentRemoved,
    EnvironmentsForked,
    TaskOpened,
    TrajectoryFinished,
    TrajectoryOpened,
)
from domain.ids import trajectory_key
from domain.journal_reducer import JournalReducer, on
from domain.resources import units
from tangram_web.records.action_rows import (
    DEFAULTS,
    FINISHED,
    ActionChange,
    WholeResult,
    as_reported,
    bounded_result,
    cost_of,
    placement_of,
    request_of,
    units_of,
)
from tangram_web.records.spending import cost_from, spending_of
from tangram_web.records.sums import Sums
from tangram_web.records.workload_changes import WorkloadChanges

_QUEUED = ActionState.QUEUED.value
_GRANTED = ActionState.GRANTED.value
_RUNNING = ActionState.RUNNING.value
_AT_A_NODE = frozenset({_GRANTED, _RUNNING})

#: Decisions of one entry that `finished_seq` can distinguish.
FINISHES_PER_ENTRY = 65536

_encode = msgspec.json.Encoder().encode


class RowFold(JournalReducer):
    """Collects the changes of one batch of entries."""

    def __init__(
        self,
        known: dict[str, ActionChange],
        instant: Callable[[float], Any],
        whole: WholeResult = as_reported,
    ) -> None:
        super().__init__()
        self._whole = whole
        #: All actions of the batch: those with a row, and new ones.
        self.actions = known
        self.workloads = WorkloadChanges()
        self.sums = Sums()
        self._instant = instant
        self._offset = 0.0
        self._at = 0.0
        self._now: Any = None
        #: Place of the present decision in the log of completions.
        self._place = 0

    def reduce(self, entry: JournalEntry) -> None:
        """Fold one entry."""
        self._offset = entry.wall_offset_seconds
        self._at = entry.at + self._offset
        self._now = self._instant(self._at)
        self.workloads.wall = self._at
        handlers = self._handlers
        for event in entry.events:
            if (handler := handlers.get(type(event))) is not None:
                handler(event)
        first = entry.seq * FINISHES_PER_ENTRY
        for self._place, decision in enumerate(entry.decisions, first):
            if (handler := handlers.get(type(decision))) is not None:
                handler(decision)

    def _wall(self, at: float) -> float:
        """Return the wall clock of an event; one without a time has that of its entry."""
        return at + self._offset if at else self._at

    @on(ActionSubmitted)
    def _submitted(self, event: ActionSubmitted) -> None:
        action = event.action
        if action.id in self.actions:
            return
        wall = event.accepted_at or self._wall(event.at) - event.lag_seconds
        now = self._instant(wall)
        kind = str(action.kind)
        change = ActionChange(
            _QUEUED, None, 1, kind, action.project, action.task, action.trajectory, step=action.step
        )
        row = DEFAULTS.copy()
        row["id"] = action.id
        row["project"] = action.project
        row["task"] = action.task
        row["pool"] = action.pool
        row["kind"] = kind
        row["priority"] = action.priority
        row["submitted_at"] = now
        cost = cost_of(action.cost)
        row["spec"] = _encode(request_of(action, cost)).decode()
        if cost:
            row["cost"] = change.cost = _encode(cost).decode()
        if action.metadata:
            row["metadata"] = _encode(action.metadata).decode()
        if action.step is not None:
            row["step"] = action.step
        for column, text in (
            ("trajectory", action.trajectory),
            ("family", action.family),
            ("group", action.group),
            ("door", action.door),
            ("submitted_by", action.by),
        ):
            if text:
                row[column] = _plain(text)
        change.columns = row
        change.is_new = True
        self.actions[action.id] = change
        self.workloads.submitted(action, now)
        if action.step is not None:
            self.sums.submitted(action, wall)

    @on(Grant)
    def _granted(self, grant: Grant) -> None:
        action = self.actions.get(grant.action_id)
        if action is None or action.state == FINISHED:
            return
        action.state = _GRANTED
        action.node = grant.node
        action.attempt = grant.attempt
        columns = action.columns
        columns["state"] = _GRANTED
        if grant.node is not None:
            columns["node"] = grant.node
        columns["attempt"] = grant.attempt
        columns["granted_at"] = self._now
        if grant.allocations:
            columns["units"] = _encode(units_of(grant.allocations, grant.node)).decode()
            placement = placement_of(grant.allocations, grant.node)
            if grant.node is not None or "units" in placement:
                columns["placement"] = _encode(placement).decode()
        elif grant.node is not None:
            columns["placement"] = _empty_placement(grant.node)
        if grant.expires_at is not None:
            # A lease runs from its grant on.
            action.state = columns["state"] = _RUNNING
            columns["started_at"] = self._now
            columns["result"] = self._lease_until(grant.expires_at)
        if grant.node is not None and action.kind == Kind.EXEC and action.trajectory:
            self.workloads.granted(
                action.project, action.task, action.trajectory, grant.node, self._now
            )

    @on(Resize)
    def _resized(self, resize: Resize) -> None:
        action = self.actions.get(resize.action_id)
        if action is not None and action.state in _AT_A_NODE:
            units = units_of(resize.allocations, resize.node)
            action.columns["units"] = _encode(units).decode()
            placement = placement_of(resize.allocations, resize.node)
            action.columns["placement"] = _encode(placement).decode()

    @on(Renew)
    def _renewed(self, renew: Renew) -> None:
        action = self.actions.get(renew.action_id)
        if action is not None and action.state == _RUNNING:
            action.columns["result"] = self._lease_until(renew.expires_at)

    def _lease_until(self, expires_at: float) -> str:
        return _encode({"expires_at": rfc3339(expires_at + self._offset)}).decode()

    @on(ActionStarted)
    def _started(self, event: ActionStarted) -> None:
        action = self.actions.get(event.action_id)
        if action is None or action.state != _GRANTED or not action.is_current(event):
            return
        action.state = action.columns["state"] = _RUNNING
        action.columns["started_at"] = self._instant(self._wall(event.at))

    @on(ActionFinished)
    def _reported(self, event: ActionFinished) -> None:
        """Store the reported result; the core's `Finish` or `Requeue` decides the outcome."""
        action = self.actions.get(event.action_id)
        if action is None or action.state not in _AT_A_NODE or not action.is_current(event):
            return
        if event.result:
            text, exit_code = bounded_result(event.result, self._whole)
            action.columns["result"] = text
            if exit_code is not None:
                action.columns["exit_code"] = exit_code

    @on(Requeue)
    def _requeued(self, decision: Requeue) -> None:
        action = self.actions.get(decision.action_id)
        if action is None or action.state == FINISHED:
            return
        action.state = _QUEUED
        action.node = None
        action.explained = True
        action.columns.update(
            state=_QUEUED, node=None, units="{}", placement=None, granted_at=None,
            started_at=None, result=None, exit_code=None, detail=_plain(decision.reason),
        )  # fmt: skip

    @on(Finish)
    def _finished(self, finish: Finish) -> None:
        action = self.actions.get(finish.action_id)
        if action is None or action.state == FINISHED:
            return
        action.state = FINISHED
        outcome, timing = finish.outcome, finish.timing
        columns = action.columns
        columns["state"] = FINISHED
        columns["outcome"] = str(outcome)
        reward = finish.reward if outcome is Outcome.COMPLETED else None
        if reward is not None:
            columns["reward"] = reward
        if finish.detail is not None or action.explained:
            columns["detail"] = _plain(finish.detail)
        if action.kind == Kind.LEASE:
            columns["result"] = None
        columns["finished_at"] = self._now
        columns["queue_seconds"] = timing.queue_seconds
        columns["overhead_seconds"] = timing.overhead_seconds
        columns["execution_seconds"] = timing.execution_seconds
        columns["act_seconds"] = timing.act_seconds
        columns["finished_seq"] = self._place
        if finish.result:
            columns["result"], _ = bounded_result(finish.result, self._whole)
        if finish.used is not None:
            columns["used"] = _encode(finish.used).decode()
        if finish.widths:
            widths = [(at, units(milli)) for at, milli in finish.widths]
            columns["widths"] = _encode(widths).decode()
        self.sums.finished(finish, action.step, reward, self._at, columns.get("exit_code"))
        self.workloads.finished(
            action.project,
            action.task,
            action.trajectory,
            timing.act_seconds,
            spending_of(finish, cost_from(action.cost)) if _spends(finish) else None,
            self._now,
        )

    @on(TaskOpened)
    def _task_opened(self, event: TaskOpened) -> None:
        self.workloads.task_opened(event, self._instant(self._wall(event.at)))

    @on(TrajectoryOpened)
    def _trajectory_opened(self, event: TrajectoryOpened) -> None:
        self.workloads.trajectory_opened(event, self._instant(self._wall(event.at)))

    @on(ForkEnvironment)
    def _forked(self, decision: ForkEnvironment) -> None:
        self.workloads.forked(decision, self._now)

    @on(TrajectoryFinished)
    def _trajectory_finished(self, event: TrajectoryFinished) -> None:
        now = self._instant(self._wall(event.at))
        self.workloads.ended(trajectory_key(event.project, event.trajectory), finished_at=now)

    @on(RemoveEnvironment)
    def _environment_ended(self, decision: RemoveEnvironment) -> None:
        """Finish the trajectory: no action follows once its environment is to be removed."""
        self.workloads.ended(decision.trajectory, finished_at=self._now)

    @on(EnvironmentsForked)
    def _environments_forked(self, event: EnvironmentsForked) -> None:
        """End the children of a fork that failed: they are as if they had never been open."""
        now = self._instant(self._wall(event.at))
        for child in event.children if event.failed else ():
            self.workloads.ended(child, finished_at=now, environment_removed_at=now)

    @on(EndMove)
    def _environment_moved(self, decision: EndMove) -> None:
        if decision.has_moved:
            project, _, name = decision.trajectory.partition("/")
            self.workloads.granted(project, decision.task, name, decision.lives_on, self._now)

    @on(EnvironmentRemoved)
    def _environment_removed(self, event: EnvironmentRemoved) -> None:
        if event.copied:
            return
        now = self._instant(self._wall(event.at))
        self.workloads.ended(event.trajectory, environment_removed_at=now)


def _spends(finish: Finish) -> bool:
    return bool(finish.allocations) or finish.used is not None


@lru_cache(maxsize=1024)
def _empty_placement(node: str) -> str:
    return _encode(placement_of((), node)).decode()


def _plain(text: str | None) -> str | None:
    """Return a text without U+0000, which PostgreSQL refuses."""
    return (
        text
        if text is None or "\0" not in text
        else text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    )
