"""A reducer of the journal takes each event and decision once, by its type, in the entry's order."""

from __future__ import annotations

from domain.codec import JournalEntry
from domain.decisions import Decision, Wake
from domain.events import Event, NodeLost, NodeReturned, TimeAdvanced
from domain.journal_reducer import JournalReducer, on


class Nodes(JournalReducer):
    """Folds what happens to nodes into a list of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def begin(self, entry: JournalEntry) -> None:
        self.words.append(f"entry {entry.seq}")

    @on(NodeLost, NodeReturned)
    def _node(self, event: NodeLost | NodeReturned) -> None:
        self.words.append(f"{type(event).__name__} {event.node}")

    @on(Wake)
    def _wake(self, decision: Wake) -> None:
        self.words.append(f"wake {decision.wake_at:g}")


class LoudNodes(Nodes):
    """Folds the same in capitals, and nothing of ``n2``."""

    def take(self, fact: object) -> None:
        if getattr(fact, "node", "") != "n2":
            super().take(fact)

    def _wake(self, decision: Wake) -> None:
        self.words.append(f"WAKE {decision.wake_at:g}")


def entry(*events: Event, decisions: tuple[Decision, ...] = ()) -> JournalEntry:
    return JournalEntry(1, 1, 0.0, 0.0, "0-0", list(events), list(decisions))


LOST, RETURNED = NodeLost(node="n1", incarnation=1), NodeReturned(node="n2", incarnation=1)


def test_events_precede_decisions_and_other_types_are_left_out() -> None:
    nodes = Nodes()
    nodes.reduce(entry(LOST, TimeAdvanced(), RETURNED, decisions=(Wake(wake_at=8.0),)))
    assert nodes.words == ["entry 1", "NodeLost n1", "NodeReturned n2", "wake 8"]


def test_a_subclass_filters_and_overrides_what_it_inherits() -> None:
    loud = LoudNodes()
    loud.reduce(entry(LOST, RETURNED, decisions=(Wake(wake_at=8.0),)))
    assert loud.words == ["entry 1", "NodeLost n1", "WAKE 8"]
