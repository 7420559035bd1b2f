"""Eager services are prepared for every chunk when a node joins."""

from __future__ import annotations

from msgspec.structs import replace

from domain import events
from domain.allocation import Home
from domain.decisions import Decision, Prepare
from domain.events import ServicePrepared
from domain.inventory import Config, NodeInventory
from domain.services import Degree, Engine, GpuService
from scheduler.core.machine import Machine
from tests.builders import GIB, START, a_config, make_ledger, only
from tests.unit.core.test_services_on_chunks import a_gpu_node

EAGER = GpuService(
    Engine.SGLANG,
    (Degree(1, 60 * GIB), Degree(4, 20 * GIB)),
    source="some/model",
    eager=True,
)


def configured(revision: int = 0, **services: GpuService) -> Config:
    return a_config(services=services, revision=revision)


def joining(config: Config, *nodes: NodeInventory) -> tuple[Machine, list[Decision]]:
    machine = Machine(make_ledger, config)
    joins = [events.NodeJoined(node=node, at=START) for node in nodes]
    return machine, machine.handle(*joins)


def prepared(decisions: list[Decision]) -> dict[tuple[int, ...], int]:
    """Return the chunks with a preparation, and its GiB on each GPU."""
    found = only(Prepare, decisions)
    assert not any(each.awake for each in found)
    return {each.home.units: each.memory_bytes // GIB for each in found}


def test_a_node_that_joins_prepares_it_on_every_feasible_chunk() -> None:
    _, decisions = joining(configured(a=EAGER), a_gpu_node(5, unhealthy=(1,)))

    assert prepared(decisions) == {(0,): 60, (2,): 60, (3,): 60, (4,): 60}


def test_each_degree_has_chunks_of_its_own() -> None:
    _, decisions = joining(configured(a=EAGER), a_gpu_node(8))

    assert prepared(decisions)[4, 5, 6, 7] == 20
    assert len(prepared(decisions)) == 8 + 2


def test_services_that_do_not_fit_or_are_not_eager_are_not_prepared() -> None:
    large = replace(EAGER, degrees=(Degree(1, 90 * GIB),))
    lazy = replace(EAGER, eager=False)
    shut = replace(EAGER, quarantined=True)
    _, decisions = joining(configured(large=large, lazy=lazy, shut=shut), a_gpu_node(2))

    assert prepared(decisions) == {}


def test_a_service_that_is_declared_later_is_prepared_then_and_no_other() -> None:
    machine, _ = joining(configured(a=EAGER), a_gpu_node(1))
    config = configured(1, a=EAGER, b=EAGER)
    decisions = machine.handle(events.ConfigApplied(config=config, at=START + 1))
    again = machine.handle(events.ConfigApplied(config=replace(config, revision=2), at=START + 2))

    assert [each.home for each in only(Prepare, decisions)] == [Home("b", (0,))]
    assert prepared(again) == {}


def test_a_prepared_service_is_cached_on_no_chunk() -> None:
    machine, _ = joining(configured(a=EAGER), a_gpu_node(1))
    home = Home("a", (0,))
    machine.handle(ServicePrepared(node="n1", home=home, awake=False, at=START + 1))

    (ledger,) = machine.state.supply.resident.values()
    assert ledger.homes("a", 1000) == []


def test_a_service_that_cannot_be_prepared_goes_elsewhere_first() -> None:
    machine, _ = joining(configured(a=EAGER), a_gpu_node(2))
    home = Home("a", (0,))
    news = events.ChunkReport(failed=(home,))
    failed = ServicePrepared(
        node="n1", home=home, awake=False, failed="out of memory", chunk=news, at=START + 1
    )
    machine.handle(failed)

    (ledger,) = machine.state.supply.resident.values()
    assert ledger.allocate("x", 1000, "a", 60 * GIB).units == (1,)
