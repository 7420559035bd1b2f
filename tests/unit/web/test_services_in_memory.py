"""Services in memory at the start of a window, inferred from the decisions in it."""

from __future__ import annotations

from typing import Any

from domain.action import Action, Kind, Outcome
from domain.allocation import Allocation, Home, Hosting
from domain.codec import JournalEntry
from domain.decisions import Decision, Evict, Grant, Prepare
from domain.events import ActionFinished, ActionSubmitted, ChunkReport, Event, NodeJoined
from domain.ids import ActionId, node_resource
from domain.inventory import NodeInventory, ResourceInventory
from scheduler.core.machine import Machine
from simulator.cluster import GIB, Cluster
from simulator.compare import Scene, run
from simulator.overheads import NONE
from simulator.workloads.services import Arrival, ServiceCalls, models
from tangram_web.simulations.resident_services import Residents, ResidentServices


class Story:
    """A journal, read while it is written; actions that were submitted in it are played."""

    def __init__(self) -> None:
        self.played: set[str] = set()
        self.reader = ResidentServices(self.played)
        self._at = 0.0

    def write(self, *said: Event | Decision) -> None:
        self._at += 1.0
        events = [each for each in said if isinstance(each, Event)]
        decisions = [each for each in said if not isinstance(each, Event)]
        self.played |= {e.action.id for e in events if isinstance(e, ActionSubmitted)}
        self.reader.reduce(JournalEntry(int(self._at), 1, self._at, 0.0, "", events, decisions))

    def begins(self) -> None:
        action = Action(id=ActionId("played"), project="p", task="t", kind=Kind.CALL)
        self.write(ActionSubmitted(action=action))

    def residents(self, *scene: dict[str, Any]) -> Residents:
        return self.reader.residents(scene)


def granted(service: str, unit: int = 0, *, action: str = "played", cached: bool = False,
            evicted: str = "") -> Grant:  # fmt: skip
    leaving = (Home(evicted, (unit,)),) if evicted else ()
    hosting = Hosting(service, 1, cached=cached, evicted=leaving)
    held = Allocation(node_resource("gpu", "n1"), 1000, (unit,), hosting=hosting)
    return Grant(ActionId(action), "n1", (held,))


def joined(*residents: Home) -> NodeJoined:
    gpu = ResourceInventory(1000, ((0,),), residents=residents)
    return NodeJoined(node=NodeInventory("n1", "i1", 1, "default", {"gpu": gpu}))


def test_services_that_a_call_finds_were_resident():
    story = Story()
    story.begins()
    story.write(granted("a", cached=True))
    story.write(granted("b", 1))

    assert story.residents() == {"n1": (Home("a", (0,)),)}


def test_a_service_evicted_later_was_resident_and_one_restored_later_was_not():
    story = Story()
    story.begins()
    story.write(granted("b", evicted="a"))
    story.write(granted("b", cached=True))
    story.write(Evict("n1", Home("c", (1,))))

    assert story.residents() == {"n1": (Home("a", (0,)), Home("c", (1,)))}


def test_a_service_prefetched_later_was_not_resident():
    story = Story()
    story.begins()
    story.write(Prepare("n1", Home("a", (0,)), 1))
    story.write(Prepare("n1", Home("b", (1,)), 1, awake=False))
    story.write(granted("a", cached=True), granted("b", 1, cached=True))

    assert story.residents() == {"n1": (Home("b", (1,)),)}


def test_until_the_first_action_that_is_played_the_last_word_counts():
    story = Story()
    story.write(granted("a", action="earlier"))
    story.write(granted("b", action="earlier", evicted="a"))
    story.write(granted("c", 1, action="earlier"), Prepare("n1", Home("d", (2,)), 1))
    gone = ChunkReport(gone=(Home("c", (1,)),))
    ended = ActionFinished(
        action_id=ActionId("earlier"), node="n1", outcome=Outcome.COMPLETED, chunk=gone
    )
    story.write(ended)
    story.begins()
    story.write(granted("a", evicted="b"))

    assert story.residents() == {"n1": (Home("b", (0,)), Home("d", (2,)))}


def test_a_restore_that_is_not_played_is_as_if_it_had_been_before():
    story = Story()
    story.begins()
    story.write(granted("a", action="earlier"))
    story.write(granted("a", cached=True))

    assert story.residents() == {"n1": (Home("a", (0,)),)}


def test_the_services_of_a_node_that_joins_are_those_it_reports():
    before, after = Story(), Story()
    before.write(granted("a", action="earlier"))
    before.write(joined(Home("b", (0,))))
    before.begins()
    after.begins()
    after.write(joined(Home("b", (0,))))
    after.write(granted("a", 1, cached=True))

    assert before.residents() == after.residents() == {"n1": (Home("b", (0,)),)}


def test_the_map_shows_state_that_the_journal_does_not_repeat():
    story = Story()
    story.begins()
    story.write(granted("a", 0, cached=True), granted("b", 1))
    rows = [
        {"node": "n1", "service": name, "units": units}
        for name, units in (("a", "0"), ("b", "1"), ("c", "2-3,5"))
    ]

    assert story.residents(*rows) == {"n1": (Home("c", (2, 3, 5)), Home("a", (0,)))}


def test_a_simulated_journal_shows_from_its_middle_what_the_ledgers_held():
    """Four services on two GPUs, calls one after another; the window begins before each of them."""
    order = "abacbdacadbc"
    calls = ServiceCalls([Arrival(10.0 * n, name) for n, name in enumerate(order, 1)], 1.0)
    served = models(tuple("abcd"), 2.0, 80 * GIB)
    books: list[set[Home]] = [set()]
    entries: list[JournalEntry] = []

    def watch(machine: Machine, events: list[Event], decisions: list[Decision]) -> None:
        at = machine.state.now
        entries.append(JournalEntry(len(books), 1, at, 0.0, "", list(events), list(decisions)))
        ledger: Any = machine.state.supply.resident[node_resource("gpu", "n000")]
        books.append({Home(each.service, each.units) for each in ledger.residents()})

    run(Scene(calls, Cluster(1, 4, GIB, gpus=2, models=served), NONE), "minimum", watch=watch)

    begins = [n for n, entry in enumerate(entries)
              if any(isinstance(event, ActionSubmitted) for event in entry.events)]  # fmt: skip
    assert len(begins) == len(order)
    for begin in begins:
        played: set[str] = set()
        reader = ResidentServices(played)
        for entry in entries[begin:]:
            played |= {e.action.id for e in entry.events if isinstance(e, ActionSubmitted)}
            reader.reduce(entry)
        reported = set(reader.residents().get("n000", ()))
        called_again = {e.action.call.target for entry in entries[begin:] for e in entry.events
                        if isinstance(e, ActionSubmitted) and e.action.call}  # fmt: skip
        assert reported <= books[begin]
        assert {home for home in books[begin]
                if f"service:{home.service}" in called_again} <= reported  # fmt: skip
