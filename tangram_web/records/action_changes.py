"""Changes of actions' rows in one batch of the journal, on top of what the rows say before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from domain.action import ActionState
from domain.codec import JournalEntry
from domain.decisions import Finish, Grant, Renew, Requeue, Resize
from domain.events import ActionFinished, ActionStarted, ActionSubmitted
from domain.journal_reducer import JournalReducer, on

#: A new row without values; its order is the order of the columns.
BLANK: dict[str, Any] = {
    "id": None, "project": None, "task": None, "trajectory": None, "pool": "", "kind": None,
    "family": None, "step": None, "group": None, "priority": 0, "state": ActionState.QUEUED.value,
    "outcome": None, "reward": None, "cost": "{}", "units": "{}", "node": None,
    "placement": None, "attempt": 1, "exit_code": None, "result": None, "detail": None,
    "metadata": "{}", "submitted_at": None, "granted_at": None, "started_at": None,
    "finished_at": None, "queue_seconds": None, "overhead_seconds": None,
    "execution_seconds": None, "act_seconds": None, "finished_seq": None, "spec": "{}",
    "widths": None, "used": None,
}  # fmt: skip


class ActionChange:
    """State of one action within a batch, and the changed columns of its row."""

    __slots__ = (
        "attempt",
        "columns",
        "cost",
        "is_new",
        "kind",
        "node",
        "project",
        "state",
        "step",
        "task",
        "trajectory",
    )

    def __init__(
        self,
        state: str,
        node: str | None,
        attempt: int,
        kind: str,
        project: str,
        task: str,
        trajectory: str | None,
        cost: str = "{}",
        step: int | None = None,
    ) -> None:
        self.cost = cost
        self.step = step
        self.state = state
        self.node = node
        self.attempt = attempt
        self.kind = kind
        self.project = project
        self.task = task
        self.trajectory = trajectory
        self.columns: dict[str, Any] = {}
        #: There is no row yet, and ``columns`` is all of it.
        self.is_new = False

    def is_current(self, report: ActionStarted | ActionFinished) -> bool:
        """Return whether ``report`` is about the present attempt."""
        return self.node == report.node and self.attempt == report.attempt


class _ActionIds(JournalReducer):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()

    @on(ActionSubmitted)
    def _submitted(self, event: ActionSubmitted) -> None:
        self.ids.add(event.action.id)

    @on(ActionStarted, ActionFinished, Grant, Renew, Requeue, Resize, Finish)
    def _changed(
        self, fact: ActionStarted | ActionFinished | Grant | Renew | Requeue | Resize | Finish
    ) -> None:
        self.ids.add(fact.action_id)


def changed_actions(entries: Iterable[JournalEntry]) -> set[str]:
    """Return the ids of all actions whose rows ``entries`` may change."""
    found = _ActionIds()
    for entry in entries:
        found.reduce(entry)
    return found.ids
