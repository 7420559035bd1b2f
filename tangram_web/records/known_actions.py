"""What a batch of the journal knows of the actions that it touches, before and while it is folded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from domain.action import ActionState
from domain.codec import JournalEntry
from domain.decisions import Finish, Grant, Renew, Requeue, Resize
from domain.events import ActionFinished, ActionStarted, ActionSubmitted

_BY_ID = (ActionStarted, ActionFinished, Grant, Renew, Requeue, Resize, Finish)

#: A new row before anything was written into it; its order is the order of the columns.
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


class Standing:
    """What is known of one action, and what changes about its row."""

    __slots__ = (
        "attempt",
        "changes",
        "cost",
        "kind",
        "new",
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
        self.changes: dict[str, Any] = {}
        #: The row is not there yet, and ``changes`` is all of it.
        self.new = False

    def is_with(self, report: ActionStarted | ActionFinished) -> bool:
        """Say whether ``report`` is about the present attempt."""
        return self.node == report.node and self.attempt == report.attempt


def touched_actions(entries: Iterable[JournalEntry]) -> set[str]:
    """Return the ids of all actions that ``entries`` say something about."""
    ids: set[str] = set()
    for entry in entries:
        for event in entry.events:
            if isinstance(event, ActionSubmitted):
                ids.add(event.action.id)
            elif isinstance(event, _BY_ID):
                ids.add(event.action_id)
        ids.update(
            decision.action_id for decision in entry.decisions if isinstance(decision, _BY_ID)
        )
    return ids
