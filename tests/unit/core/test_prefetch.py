"""Prefetch: services are restored on idle chunks for calls that wait for something else."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from domain import events
from domain.action import Action, Outcome
from domain.allocation import Home, Hosting
from domain.decisions import Decision, Grant, Prepare
from domain.events import ChunkReport, ServicePrepared
from domain.ids import ActionId, ResourceId
from domain.inventory import PoolConfig, ProjectConfig
from domain.limits import Share
from domain.resources import MILLI
from managers.gpu.ledger import ChunkLedger
from managers.gpu.ledger.residents import Resident
from scheduler.core.state import snapshot
from scheduler.core.state.invariants import check
from tests.builders import GIB, START, a_config, a_machine, an_action, make_ledger, only
from tests.tiers import by_tier
from tests.unit.core.test_services_on_chunks import a_call, a_gpu_node, a_service


def a_searching_call(name: str, service: str) -> Action:
    """Return a call that takes one of ``api:search`` besides its chunk."""
    call = a_call(name, service)
    return replace(call, cost={**call.cost, "api:search": (MILLI,)})


class Ahead:
    """A machine with one node, one call at once to ``api:search``, and what it decides."""

    def __init__(self, *names: str, gpus: int = 2, policy: str = "minimum", **share: Share) -> None:
        self.config = a_config(
            apis={"search": 1},
            pools=[PoolConfig("default", policy, shares={"gpu": share} if share else {})],
            projects={name: ProjectConfig(name) for name in ("default", "other")},
            services={name: a_service() for name in names},
        )
        self.machine = a_machine([a_gpu_node(gpus)], self.config)
        self.at = START

    def handle(self, *happened: events.Event) -> list[Decision]:
        self.at += 1
        for event in happened:
            event.at = self.at
        decisions = self.machine.handle(*happened)
        check(self.machine.state)
        return decisions

    def submit(self, *actions: Action) -> list[Decision]:
        return self.handle(*(events.ActionSubmitted(action=each) for each in actions))

    def end(self, name: str, news: ChunkReport | None = None) -> list[Decision]:
        live = self.machine.state.actions[ActionId(name)]
        return self.handle(
            events.ActionFinished(
                action_id=live.id,
                node="n1",
                outcome=Outcome.COMPLETED,
                attempt=live.attempt,
                execution_seconds=1.0,
                chunk=news,
            )
        )

    def arrived(self, home: Home, failed: str = "") -> list[Decision]:
        gone = (home,) if failed else ()
        return self.handle(
            ServicePrepared(node="n1", home=home, failed=failed, chunk=ChunkReport(gone=gone))
        )

    @property
    def ledger(self) -> ChunkLedger:
        ledger = self.machine.state.supply.ledgers[ResourceId("gpu:n1")]
        assert isinstance(ledger, ChunkLedger)
        return ledger

    def residents(self) -> list[Resident]:
        return self.ledger.residents()

    def cached(self) -> list[str]:
        return [each.service for each in self.residents()]


def homes(decisions: list[Decision]) -> list[Home]:
    return [each.home for each in only(Prepare, decisions)]


def hostings(decisions: list[Decision]) -> dict[str, Hosting | None]:
    return {
        grant.action_id: held.hosting
        for grant in only(Grant, decisions)
        for held in grant.allocations
        if held.resource == "gpu:n1"
    }


def waiting(**fields: object) -> Ahead:
    """``a1`` has the only place of ``api:search``, ``b1`` waits for it beside an idle chunk."""
    play = Ahead("a", "b", **fields)  # type: ignore[arg-type]
    play.submit(a_searching_call("a1", "a"))
    return play


def test_the_service_of_a_call_that_waits_for_a_quota_is_prefetched() -> None:
    play = waiting()
    (home,) = homes(play.submit(a_searching_call("b1", "b")))

    assert home == Home("b", (1,))
    assert homes(play.arrived(home)) == []
    assert hostings(play.end("a1")) == {"b1": Hosting("b", 50 * GIB, cached=True, ahead=True)}
    assert hostings(play.end("b1")) == {}
    again = hostings(play.submit(a_call("b2", "b")))["b2"]
    assert again == Hosting("b", 50 * GIB, cached=True), "it was met once"


def test_a_call_that_is_granted_meanwhile_goes_to_where_its_service_is_on_its_way() -> None:
    play = waiting()
    (home,) = homes(play.submit(a_searching_call("b1", "b")))
    decisions = play.end("a1")

    assert hostings(decisions) == {"b1": Hosting("b", 50 * GIB, cached=True, ahead=True)}
    assert only(Grant, decisions)[0].allocations[-1].units == home.units


def test_the_service_of_a_call_that_waits_for_its_share_is_prefetched() -> None:
    play = Ahead("a", "b", default=Share(MILLI, borrow=0), other=Share(MILLI, lend=0))
    play.submit(a_call("a1", "a"))

    assert homes(play.submit(a_call("b1", "b"))) == [Home("b", (1,))]


def measured(restore_seconds: float) -> Ahead:
    """``a1`` works on one of two chunks; calls of its service take 1 s."""
    play = Ahead("a")
    play.submit(a_call("a0", "a"))
    play.end("a0", ChunkReport(restore_seconds=restore_seconds))
    play.submit(a_call("a1", "a"))
    return play


def test_nothing_is_prefetched_for_a_queue_shorter_than_a_restore() -> None:
    assert homes(measured(restore_seconds=5.0).submit(a_call("a2", "a"))) == []


def test_a_call_waits_for_the_chunk_of_its_service_until_the_prefetched_one_is_ready() -> None:
    play = measured(restore_seconds=1.5)
    decisions = play.submit(a_call("a2", "a"))

    assert (only(Grant, decisions), homes(decisions)) == ([], [Home("a", (1,))])
    assert list(hostings(play.end("a1"))) == ["a2"], "the first chunk was free sooner"
    assert hostings(play.arrived(Home("a", (1,)))) == {}


def test_a_call_that_waits_for_the_chunk_of_its_service_gets_another_when_that_is_sooner() -> None:
    play = measured(restore_seconds=1.5)
    play.submit(a_call("a2", "a"))

    granted = hostings(play.arrived(Home("a", (1,))))
    assert granted == {"a2": Hosting("a", 50 * GIB, cached=True, ahead=True)}


def test_no_service_is_evicted_for_a_call_that_is_not_granted() -> None:
    play = Ahead("a", "b", "c")
    play.submit(a_call("c1", "c"))
    play.submit(a_searching_call("a1", "a"))
    play.end("c1")

    assert homes(play.submit(a_searching_call("b1", "b"))) == []
    assert sorted(play.cached()) == ["a", "c"]


def test_nothing_is_prefetched_where_an_action_waits_for_gpus() -> None:
    play = waiting()
    play.submit(an_action("wide", cost={"gpu": 2}))

    assert homes(play.submit(a_searching_call("b1", "b"))) == []


def test_a_resident_service_is_not_prefetched() -> None:
    play = Ahead("a", "b", gpus=4)
    play.submit(a_call("b0", "b"))
    play.submit(a_searching_call("a1", "a"))
    play.end("b0")

    assert homes(play.submit(a_searching_call("b1", "b"))) == []


def test_a_service_that_failed_to_start_is_not_prefetched_again_before_a_call() -> None:
    play = waiting(gpus=4)
    (home,) = homes(play.submit(a_searching_call("b1", "b")))

    assert homes(play.arrived(home, failed="it ended before it answered")) == []
    assert play.cached() == ["a"]
    assert homes(play.submit(a_searching_call("b2", "b"))) == []
    play.handle(events.ActionCancelRequested(action_id=ActionId("b2"), project="default"))
    assert hostings(play.end("a1")) == {"b1": Hosting("b", 50 * GIB)}
    (chunk,) = (each.units for each in play.residents() if each.service == "b")
    play.end("b1", ChunkReport(gone=(Home("b", chunk),)))
    play.submit(a_searching_call("a2", "a"))
    assert len(homes(play.submit(a_searching_call("b3", "b")))) == 1


def test_a_granted_call_has_the_chunk_and_a_prefetch_is_evicted() -> None:
    play = Ahead("a", "b", "c", default=Share(MILLI, borrow=0), other=Share(MILLI, lend=0))
    play.submit(a_call("a1", "a"))
    (home,) = homes(play.submit(a_call("b1", "b")))

    granted = hostings(play.submit(replace(a_call("c1", "c"), project="other")))

    assert granted == {"c1": Hosting("c", 50 * GIB, evicted=(home,))}
    assert play.arrived(home) == []
    assert play.cached() == ["a", "c"]


def test_a_failure_counts_only_where_no_call_was_granted_meanwhile() -> None:
    play = waiting()
    (home,) = homes(play.submit(a_searching_call("b1", "b")))
    play.end("a1")
    play.arrived(home, failed="it made room for another service")

    assert "b" in play.cached(), "it is being brought there for b1"


def test_the_paper_brings_nothing_ahead() -> None:
    play = waiting(policy="paper")

    assert homes(play.submit(a_searching_call("b1", "b"))) == []


def test_prefetches_are_part_of_a_snapshot() -> None:
    play = waiting()
    (home,) = homes(play.submit(a_searching_call("b1", "b")))
    before = snapshot.dump(play.machine)
    restored = snapshot.load(before, make_ledger)

    assert snapshot.dump(restored) == before
    there = ServicePrepared(node="n1", home=home, at=play.at + 1)
    assert restored.handle(there) == play.machine.handle(there)
    assert snapshot.dump(restored) == snapshot.dump(play.machine)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["call", "search", "end", "arrive", "fail"]),
        st.sampled_from("abc"),
        st.integers(0, 7),
    ),
    max_size=40,
)


@settings(max_examples=by_tier(15, 60, 600), deadline=None)
@given(STEPS)
def test_a_prefetch_takes_no_chunk_and_evicts_no_service(
    steps: list[tuple[str, str, int]],
) -> None:
    """A prefetched service is on a free chunk, beside all cached ones; and all calls are served."""
    play, brought = Ahead("a", "b", "c", gpus=3), 0
    running: list[str] = []
    coming: list[Home] = []

    def look(decisions: list[Decision]) -> None:
        nonlocal brought
        left = {home for each in hostings(decisions).values() if each for home in each.evicted}
        running.extend(each.action_id for each in only(Grant, decisions))
        for home in homes(decisions):
            holders = play.ledger.holders().values()
            assert not any(set(home.units) & set(each.units) for each in holders)
            assert home.service in play.cached()
            brought += 1
        coming.extend(homes(decisions))
        assert before <= {*play.cached(), *(home.service for home in left)}

    for number, (step, service, which) in enumerate(steps):
        before = set(play.cached())
        if step in ("call", "search"):
            make = a_call if step == "call" else a_searching_call
            look(play.submit(make(f"{number}", service)))
        elif step == "end" and running:
            look(play.end(running.pop(which % len(running))))
        elif coming and step in ("arrive", "fail"):
            home = coming.pop(which % len(coming))
            if step == "fail":
                before = set()
            look(play.arrived(home, failed="" if step == "arrive" else "no room"))
    while running:
        before = set(play.cached())
        look(play.end(running.pop()))
    assert play.machine.state.actions == {}
    assert brought <= len(steps), "one for each call at most"
