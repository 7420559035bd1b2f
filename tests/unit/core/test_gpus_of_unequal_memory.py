"""Nodes of one pool whose GPUs have different memory: a call goes only where its service fits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from domain import events
from domain.action import Outcome
from domain.decisions import Grant
from domain.ids import ActionId
from domain.inventory import NodeInventory, PoolConfig
from domain.resources import MILLI
from scheduler.core.machine import Machine
from scheduler.core.state.invariants import check
from scheduler.runtime.rendering import wait_details
from tests.builders import GIB, START, a_config, a_machine, only
from tests.tiers import by_tier
from tests.unit.core.test_services_on_chunks import a_call, a_gpu_node, a_service

POLICIES = ["minimum", "paper", "balanced", "malleable"]


def a_pool(*nodes: tuple[int, int]) -> list[NodeInventory]:
    """Return nodes with so many GPUs of so many GiB each."""
    return [
        replace(
            a_gpu_node(gpus, memory_bytes=memory * GIB), name=f"n{number}", identity=f"i{number}"
        )
        for number, (gpus, memory) in enumerate(nodes)
    ]


def a_pool_machine(policy: str, services: dict, *nodes: tuple[int, int]) -> Machine:
    config = a_config(pools=[PoolConfig("default", policy)], services=services)
    return a_machine(a_pool(*nodes), config)


def submit(machine: Machine, at: float, *calls) -> list[Grant]:
    happened = [events.ActionSubmitted(action=call, at=at) for call in calls]
    return only(Grant, machine.handle(*happened))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_service_waits_for_the_gpu_that_is_large_enough(policy: str) -> None:
    machine = a_pool_machine(policy, {"big": a_service((1, 70))}, (4, 24), (1, 80))

    (first,) = submit(machine, START + 1, a_call("1", "big"))
    assert first.node == "n1"
    assert submit(machine, START + 2, a_call("2", "big")) == []
    check(machine.state)
    ended = events.ActionFinished(
        action_id=ActionId("1"), node="n1", outcome=Outcome.COMPLETED, at=START + 3
    )
    (second,) = only(Grant, machine.handle(ended))
    assert (second.action_id, second.node) == ("2", "n1")


@pytest.mark.parametrize("policy", POLICIES)
def test_a_call_that_needs_a_large_gpu_blocks_no_call_on_small_ones(policy: str) -> None:
    services = {"big": a_service((1, 70)), "small": a_service((1, 20))}
    machine = a_pool_machine(policy, services, (1, 80), (1, 24))
    submit(machine, START + 1, a_call("1", "big"))

    (grant,) = submit(machine, START + 2, a_call("2", "big"), a_call("3", "small"))

    assert (grant.action_id, grant.node) == ("3", "n1")


def test_without_a_gpu_that_is_large_enough_it_waits_and_says_so() -> None:
    machine = a_pool_machine("minimum", {"big": a_service((1, 70))}, (1, 24))

    assert submit(machine, START + 1, a_call("1", "big")) == []
    status = machine.explain(ActionId("1"))
    assert status is not None
    assert (why := wait_details(status)) is not None
    assert why.code == "too_large"


def test_a_node_that_does_not_say_how_much_it_has_takes_every_service() -> None:
    machine = a_pool_machine("minimum", {"big": a_service((1, 70))}, (1, 0))

    assert len(submit(machine, START + 1, a_call("1", "big"))) == 1


@settings(max_examples=by_tier(10, 40, 400), deadline=None)
@given(
    nodes=st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([24, 40, 80])), min_size=1, max_size=3),
    needs=st.lists(st.sampled_from([10, 24, 39, 80]), min_size=1, max_size=3),
    calls=st.lists(st.integers(0, 2), min_size=1, max_size=10),
    policy=st.sampled_from(POLICIES),
)  # fmt: skip
def test_every_call_that_fits_anywhere_is_served_where_its_service_fits(
    nodes, needs, calls, policy
) -> None:
    services = {f"s{number}": a_service((1, need)) for number, need in enumerate(needs)}
    machine = a_pool_machine(policy, services, *nodes)
    asked = [(str(n), number % len(needs)) for n, number in enumerate(calls)]
    running = submit(machine, START + 1, *(a_call(name, f"s{which}") for name, which in asked))
    at, served = START + 1, dict[str, str]()
    while running:
        at += 1
        grant = running.pop(0)
        served[grant.action_id] = grant.node or ""
        ended = events.ActionFinished(
            action_id=grant.action_id, node=grant.node or "", outcome=Outcome.COMPLETED, at=at
        )
        running += only(Grant, machine.handle(ended))
        check(machine.state)

    memory = {f"n{number}": size for number, (_, size) in enumerate(nodes)}
    for name, which in asked:
        fits_somewhere = needs[which] <= max(memory.values())
        assert (name in served) == fits_somewhere
        assert not fits_somewhere or needs[which] <= memory[served[name]]
    for resource, ledger in machine.state.supply.resident.items():
        size = memory[resource.removeprefix("gpu:")] * GIB
        for resident in ledger.residents():  # type: ignore[attr-defined]
            assert resident.memory_bytes <= size
        assert ledger.free == ledger.capacity
        assert ledger.capacity % MILLI == 0
