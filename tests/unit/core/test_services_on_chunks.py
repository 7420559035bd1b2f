"""GPU services in the core: its calls of the chunk ledger and its orders to nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from domain import events
from domain.action import Action, Kind, Outcome
from domain.allocation import Home, Hosting
from domain.apis import CallSpec
from domain.decisions import Decision, Evict, Grant
from domain.events import ChunkReport
from domain.ids import ActionId, ResourceId
from domain.inventory import Config, NodeInventory, PoolConfig, ResourceInventory
from domain.resources import MILLI
from domain.services import Degree, Engine, GpuService
from managers.gpu.ledger import ChunkLedger
from scheduler.core.machine import Machine
from scheduler.core.state import snapshot
from scheduler.core.state.invariants import check
from tests.builders import GIB, START, a_config, a_machine, a_node, an_action, finished, only
from tests.builders import make_ledger as make


def a_service(*degrees: tuple[int, int]) -> GpuService:
    return GpuService(
        Engine.PROCESS,
        tuple(Degree(gpus, memory * GIB) for gpus, memory in degrees or ((1, 50),)),
        command=("serve", "{port}"),
    )


def a_gpu_node(gpus: int = 1, **fields: object) -> NodeInventory:
    node = a_node()
    have = ResourceInventory(gpus * MILLI, (tuple(range(gpus)),), memory_bytes=80 * GIB)
    return replace(node, resources={**node.resources, "gpu": replace(have, **fields)})


def services(*names: str, policy: str = "minimum") -> Config:
    pools = [PoolConfig("default", policy)]
    return a_config(pools=pools, services={name: a_service() for name in names})


def a_call(name: str, service: str, gpus: Sequence[int] = (1,)) -> Action:
    return an_action(
        name, kind=Kind.CALL, cost={"gpu": gpus}, call=CallSpec(f"service:{service}"), key="gpu"
    )


class Play:
    """A machine with one node, and what was granted last."""

    def __init__(self, *names: str, gpus: int = 1, policy: str = "minimum") -> None:
        self.machine = a_machine([a_gpu_node(gpus)], services(*names, policy=policy))
        self.at = START

    def submit(self, *actions: Action) -> dict[str, Grant]:
        self.at += 1
        happened = [events.ActionSubmitted(action=each, at=self.at) for each in actions]
        return _grants(self.machine.handle(*happened))

    def end(
        self, name: str, news: ChunkReport | None = None, outcome: Outcome = Outcome.COMPLETED
    ) -> dict[str, Grant]:
        self.at += 1
        live = self.machine.state.actions[ActionId(name)]
        event = events.ActionFinished(
            action_id=live.id,
            node="n1",
            outcome=outcome,
            attempt=live.attempt,
            at=self.at,
            chunk=news,
        )
        decisions = self.machine.handle(event)
        check(self.machine.state)
        return _grants(decisions)

    @property
    def ledger(self) -> ChunkLedger:
        ledger = self.machine.state.supply.ledgers[ResourceId("gpu:n1")]
        assert isinstance(ledger, ChunkLedger)
        return ledger

    def cached(self) -> list[str]:
        return [each.service for each in self.ledger.residents()]


def _grants(decisions: Iterable[Decision]) -> dict[str, Grant]:
    return {grant.action_id: grant for grant in only(Grant, decisions)}


def hosting(grant: Grant) -> Hosting | None:
    (allocation,) = grant.allocations
    return allocation.hosting


def test_a_grant_says_which_service_leaves_for_the_one_that_is_called() -> None:
    play = Play("a", "b")
    first = play.submit(a_call("1", "a"))["1"]
    play.end("1")
    second = play.submit(a_call("2", "b"))["2"]

    assert hosting(first) == Hosting("a", 50 * GIB)
    assert hosting(second) == Hosting("b", 50 * GIB, evicted=(Home("a", (0,)),))


def test_a_service_stays_cached_between_calls() -> None:
    play = Play("a")
    play.submit(a_call("1", "a"))
    play.end("1")

    assert hosting(play.submit(a_call("2", "a"))["2"]) == Hosting("a", 50 * GIB, cached=True)


def test_calls_of_one_cycle_go_where_their_services_are_cached() -> None:
    play = Play("a", "b", gpus=2)
    play.submit(a_call("1", "a"), a_call("2", "b"))
    play.end("1")
    play.end("2")

    grants = play.submit(a_call("3", "b"), a_call("4", "a"))

    assert [hosting(each).cached for each in grants.values()] == [True, True]  # type: ignore[union-attr]


def test_an_action_with_its_own_program_gets_an_empty_chunk() -> None:
    play = Play("a")
    play.submit(a_call("1", "a"))
    play.end("1")
    (allocation,) = play.submit(an_action("2", cost={"gpu": 1}))["2"].allocations

    assert allocation.hosting == Hosting(evicted=(Home("a", (0,)),))
    assert play.cached() == []


def test_a_service_that_a_node_reports_as_gone_is_cached_no_more() -> None:
    play = Play("a")
    play.submit(a_call("1", "a"))
    play.end("1", ChunkReport(gone=(Home("a", (0,)),)))

    assert play.cached() == []
    assert hosting(play.submit(a_call("2", "a"))["2"]) == Hosting("a", 50 * GIB)


def test_nothing_is_granted_on_a_gpu_whose_memory_is_stuck_until_the_node_joins_again() -> None:
    play = Play("a", gpus=1)
    play.submit(a_call("1", "a"))
    play.end("1", ChunkReport(stuck=(0,)))

    assert play.submit(a_call("2", "a")) == {}
    assert (play.ledger.capacity, play.ledger.free) == (0, 0)
    restored = snapshot.load(snapshot.dump(play.machine), make)
    assert restored.state.supply.ledgers[ResourceId("gpu:n1")].capacity == 0

    play.at += 1
    joined = replace(a_gpu_node(), incarnation=2)
    assert list(_grants(play.machine.handle(events.NodeJoined(node=joined, at=play.at)))) == ["2"]


def test_cached_services_are_part_of_a_snapshot() -> None:
    play = Play("a", "b", gpus=2)
    play.submit(a_call("1", "a"), a_call("2", "b"))
    play.end("1")
    before = snapshot.dump(play.machine)
    restored: Machine = snapshot.load(before, make)

    assert snapshot.dump(restored) == before
    event = events.ActionSubmitted(action=a_call("3", "a"), at=play.at + 1)
    assert restored.handle(event) == play.machine.handle(event)


def test_a_node_that_joins_again_has_what_it_reports_and_what_works_for_holders() -> None:
    play = Play("a", "b", "c", gpus=4)
    play.submit(a_call("1", "a"), a_call("2", "b"), a_call("3", "c"))
    play.end("1")
    play.end("2")
    where = {each.service: each.units for each in play.ledger.residents()}
    homes = (Home("a", where["a"]),)
    joined = replace(a_gpu_node(4, residents=homes), incarnation=2)
    play.machine.handle(events.NodeJoined(node=joined, at=play.at + 1))

    assert sorted(play.cached()) == ["a", "c"]


def test_a_lost_node_frees_its_chunks_when_it_has_lost_its_state() -> None:
    play = Play("a")
    play.submit(a_call("1", "a"))
    joined = replace(a_gpu_node(), identity="another")
    decisions = play.machine.handle(events.NodeJoined(node=joined, at=play.at + 1))

    assert finished(decisions) == {"1": Outcome.UNKNOWN}
    assert (play.ledger.free, play.ledger.holders()) == (MILLI, {})
    check(play.machine.state)


def test_a_call_to_a_service_that_is_declared_no_more_is_granted_like_any_other() -> None:
    play = Play("a")
    (allocation,) = play.submit(a_call("1", "gone"))["1"].allocations

    assert allocation.hosting is None


def test_calls_of_a_quarantined_service_wait_and_others_go_on():
    play = Play("reward", "judge")
    config = services("reward", "judge")
    shut = replace(config.services["reward"], quarantined=True)
    config = replace(config, services={**config.services, "reward": shut}, revision=1)
    play.machine.handle(events.ConfigApplied(config=config, at=play.at))

    granted = play.submit(a_call("a", "reward"), a_call("b", "judge"))

    assert list(granted) == ["b"]
    status = play.machine.explain(ActionId("a"))
    assert status is not None
    assert status.waiting is not None
    assert status.waiting.code == "service_quarantined"


def test_a_service_is_evicted_on_request_where_it_does_not_work() -> None:
    play = Play("a", "b", gpus=2)
    play.submit(a_call("a1", "a"), a_call("b1", "b"))
    play.end("a1")
    play.at += 1
    asked = [events.ServiceEvictionAsked(service=name, at=play.at) for name in ("a", "b", "c")]

    decisions = play.machine.handle(*asked)
    check(play.machine.state)

    assert [(each.node, each.home.service) for each in only(Evict, decisions)] == [("n1", "a")]
    assert play.cached() == ["b"]
    chunk = hosting(play.submit(a_call("a2", "a"))["a2"])
    assert chunk is not None
    assert not chunk.cached
