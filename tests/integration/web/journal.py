"""A journal for tests: each call writes one entry, as the loop would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from domain.action import Action, ExecSpec, Kind, LeaseSpec, Outcome, Timing
from domain.allocation import Allocation
from domain.codec import JournalEntry, decode_entry, encode
from domain.decisions import Decision, Finish, Grant, Requeue
from domain.events import (
    NO_RESULT,
    ActionFinished,
    ActionStarted,
    ActionSubmitted,
    ConfigApplied,
    Event,
    NodeJoined,
)
from domain.ids import ActionId, ResourceId, action_id
from domain.inventory import Config, NodeInventory, ResourceInventory
from domain.ports import ExecResult

#: Wall clock minus journal time.
OFFSET = 1_700_000_000.0

Entry = tuple[str, JournalEntry]


def an_id(number: int) -> ActionId:
    """Return an action id; higher numbers are younger."""
    return action_id(1_700_000_000_000 + number, number.to_bytes(8, "big"))


def an_action(number: int = 1, *, kind: Kind = Kind.NOOP, **given: Any) -> Action:
    """Return an action of one core."""
    given.setdefault("project", "default")
    given.setdefault("task", "task-1")
    given.setdefault("cost", {"cpu": (1000,)})
    if kind is Kind.EXEC:
        given.setdefault("exec", ExecSpec(("true",)))
    if kind is Kind.LEASE:
        given.setdefault("lease", LeaseSpec())
    return Action(id=an_id(number), kind=kind, **given)


def a_grant(
    action: ActionId, node: str | None = "n1", *, attempt: int = 1, cores: Sequence[int] = (0,)
) -> Grant:
    """Return the grant of whole cores."""
    cpu = Allocation(ResourceId(f"cpu:{node}"), 1000 * len(cores), tuple(cores))
    return Grant(action, node, (cpu,) if node else (), attempt=attempt)


def a_report(
    action: ActionId,
    outcome: Outcome = Outcome.COMPLETED,
    *,
    node: str = "n1",
    attempt: int = 1,
    result: ExecResult | None = None,
) -> ActionFinished:
    """Return a node's report."""
    raw = NO_RESULT if result is None else msgspec.Raw(encode(result))
    return ActionFinished(
        action_id=action, node=node, attempt=attempt, outcome=outcome, execution_seconds=1.0,
        result=raw,
    )  # fmt: skip


def a_finish(
    action: Action, outcome: Outcome = Outcome.COMPLETED, *, reward: float | None = None
) -> Finish:
    """Return the end of ``action``; its times add up exactly."""
    return Finish(
        action_id=action.id,
        project=action.project,
        task=action.task,
        trajectory=action.trajectory,
        outcome=outcome,
        timing=Timing(0.5, 0.25, 1.0, 1.75),
        reward=reward,
    )


def a_node(name: str = "n1", *, incarnation: int = 1, oversubscribed: bool = False) -> NodeJoined:
    """Return the introduction of a node of four cores."""
    cpu = ResourceInventory(4000, ((0, 1, 2, 3),), oversubscribed)
    return NodeJoined(node=NodeInventory(name, f"id-{name}", incarnation, "default", {"cpu": cpu}))


class Journal:
    """Collects entries; they have passed the codec, as real ones have."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.at = 1000.0

    def write(self, events: Sequence[Event] = (), decisions: Sequence[Decision] = ()) -> Entry:
        """Append one cycle."""
        self.at += 0.5
        seq = len(self.entries) + 1
        for event in events:
            event.at = self.at
        entry = JournalEntry(seq, 1, self.at, OFFSET, f"{seq}-0", list(events), list(decisions))
        # Ids of one millisecond, beyond 9: they are not in order as texts.
        self.entries.append((f"1700-{seq}", decode_entry(encode(entry))))
        return self.entries[-1]

    def submit(self, *actions: Action) -> None:
        """Accept actions."""
        self.write([ActionSubmitted(action=action) for action in actions])

    def grant(self, action: Action, node: str | None = "n1", **given: Any) -> None:
        """Grant an action."""
        self.write([], [a_grant(action.id, node, **given)])

    def start(self, action: Action, node: str = "n1", attempt: int = 1) -> None:
        """Hear that an action runs."""
        self.write([ActionStarted(action_id=action.id, node=node, attempt=attempt)])

    def requeue(self, action: Action) -> None:
        """Let an action wait again."""
        self.write([], [Requeue(action.id, "its node was lost")])

    def finish(
        self,
        action: Action,
        outcome: Outcome = Outcome.COMPLETED,
        *,
        result: ExecResult | None = None,
        reward: float | None = None,
    ) -> None:
        """Hear of an action's end, and end it."""
        report = a_report(action.id, outcome, result=result)
        self.write([report], [a_finish(action, outcome, reward=reward)])

    def run(self, action: Action, **given: Any) -> None:
        """Take an action through its whole life in four cycles."""
        self.submit(action)
        self.grant(action)
        self.start(action)
        self.finish(action, **given)

    def configure(self, config: Config) -> None:
        """Apply a configuration."""
        self.write([ConfigApplied(config=config)])
