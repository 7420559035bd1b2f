"""Light actions: without stated cores, an action is light when its family's history is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from domain import events
from domain.action import EnvironmentSpec, Kind
from domain.allocation import UsedResources
from domain.codec import JournalEntry, decode_entry, encode
from domain.ids import ActionId
from domain.inventory import PoolConfig, ResourceInventory
from domain.limits import Share
from scheduler.core.machine import Machine
from scheduler.core.state import snapshot
from scheduler.core.state.cpu_usage_history import ENOUGH, STRETCH, light_amount, observe
from scheduler.runtime.rendering import wait_details
from tests.builders import START, a_config, a_node, an_action, make_ledger
from tests.scenario import Scenario


def play(
    scenario: Scenario, name: str, cpu_seconds: float, *, seconds: float = 10.0,
    throttled_seconds: float = 0.0, **fields: Any,
) -> None:  # fmt: skip
    """Let one action of the family ``look`` run, and use so much."""
    fields = {"cost": {}, "family": "look"} | fields
    scenario.submit(an_action(name, **fields))
    scenario.start(name)
    scenario.now += seconds
    used = UsedResources(cpu_seconds, throttled_seconds, 0)
    scenario.finish(name, execution_seconds=seconds, used=used)


def after(scenario: Scenario, *uses: float, **fields: Any) -> Scenario:
    for number, cpu_seconds in enumerate(uses):
        play(scenario, f"h{number}", cpu_seconds, **fields)
    return scenario


def units_of(scenario: Scenario, **fields: Any) -> list[tuple[str, int, bool]]:
    """Submit one more action of the family, and return what it got."""
    scenario.submit(an_action("last", **({"cost": {}, "family": "look"} | fields)))
    grant = scenario.the_grant("last")
    return [(each.resource, each.amount, each.shared) for each in grant.allocations]


def test_a_family_that_uses_little_shares_cores_and_says_why(core):
    scenario = after(core(), *[0.5] * ENOUGH)
    assert units_of(scenario) == [("cpu:n1", 200, True)]
    (allocation,) = scenario.the_grant("last").allocations
    assert "its family 'look' used 0.05 cores at most lately (5 observed)" in allocation.why


def test_it_takes_a_few_observations(core):
    assert units_of(after(core(), *[0.5] * (ENOUGH - 1))) == []


def test_the_greediest_counts_for_a_while(core):
    scenario = after(core(), *[0.5] * ENOUGH, 9.0)
    assert units_of(scenario) == []
    scenario.finish("last")
    after(scenario, *[0.5] * 15)
    assert scenario.machine.state.learned.cpu_usage
    scenario.submit(an_action("later", cost={}, family="look"))
    assert scenario.the_grant("later").allocations[0].amount == 500


def test_throttling_does_not_make_a_family_look_smaller(core):
    scenario = after(core(), *[1.0] * ENOUGH, seconds=10.0, throttled_seconds=8.0)
    assert units_of(scenario) == [], "it had one second in two seconds of running: half a core"


@pytest.mark.parametrize(
    "fields",
    [
        {"cost": {"cpu": 1}},
        {"family": None},
        {"family": "compile"},
        {"kind": Kind.NOOP},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_stated_cores_and_unknown_families_are_granted_as_before(core, fields):
    scenario = after(core(), *[0.5] * ENOUGH)
    assert not any(shared for _, _, shared in units_of(scenario, **fields))


def test_a_pool_may_switch_it_off_and_on(core):
    config = a_config(pools=[PoolConfig("default", light_by_default=False)], revision=1)
    scenario = after(core(config=config), *[0.5] * ENOUGH)
    assert units_of(scenario) == []
    scenario.configure(a_config(revision=2))
    scenario.submit(an_action("on", cost={}, family="look"))
    assert scenario.the_grant("on").allocations[0].shared


def test_a_pool_without_cores_is_not_asked_for_them(core):
    node = a_node()
    del node.resources["cpu"]
    assert units_of(after(core(node), *[0.5] * ENOUGH)) == []


def test_a_light_action_waits_for_room_and_says_so(core):
    scenario = after(core(a_node(cpus=1)), *[0.5] * ENOUGH)
    scenario.submit(an_action("whole"))
    scenario.submit(an_action("light", cost={}, family="look"))
    assert scenario.why("light").code == "short_of"
    status = scenario.machine.explain(ActionId("light"))
    assert status is not None
    why = wait_details(status)
    assert why is not None
    assert why.units == {"cpu": 0.2}


def test_a_replayed_journal_and_a_snapshot_lead_to_the_same_grants(core):
    scenario = core()
    entries: list[bytes] = []
    handle = scenario.machine.handle

    def recording(*seen):
        decisions = handle(*seen)
        entry = JournalEntry(1, 1, scenario.now, 0.0, "", list(seen), decisions)
        entries.append(encode(entry))
        return decisions

    scenario.machine.handle = recording
    after(scenario, 0.2, 0.9, 0.1, 0.5, 1.5, 0.6)
    restored = snapshot.load(snapshot.dump(scenario.machine), make_ledger)
    assert units_of(scenario) == [("cpu:n1", 400, True)]

    replayed = Machine(make_ledger, a_config())
    (node,) = scenario.machine.state.supply.nodes.values()
    replayed.handle(events.NodeJoined(node=node.inventory, at=START))
    for entry in map(decode_entry, entries):
        assert encode(replayed.handle(*entry.events)) == encode(entry.decisions)
    last = decode_entry(entries[-1])
    assert encode(restored.handle(*last.events)) == encode(last.decisions)


@given(st.lists(st.tuples(st.floats(0.001, 100.0), st.floats(0.0, 400.0)), min_size=5, max_size=40))
def test_no_observed_action_would_have_been_stretched_by_more_than_a_quarter(uses):
    scenario = Scenario()
    state, action = scenario.machine.state, an_action("a", cost={}, family="look")
    for seconds, cpu_seconds in uses[-5:]:
        observe(state, action, seconds, UsedResources(cpu_seconds, 0.0, 0))
    amount = light_amount(state, action, "default", None)
    seconds, cpu_seconds = uses[-1]
    if amount:
        quota = amount / 1000
        assert cpu_seconds / quota - cpu_seconds <= STRETCH * seconds * 1.01
        assert amount <= 500
        assert amount % 100 == 0


def test_light_actions_on_shared_cores_leave_the_whole_capacity_to_others(core):
    node = a_node(cpus=2)
    cores = ResourceInventory(2000, ((1, 2),), shared_units=(0,), shared_capacity=500)
    play = core(replace(node, resources={**node.resources, "cpu": cores}))
    for number in range(6):
        play.submit(an_action(f"light{number}", cost={"cpu": 0.1}))
    granted = [play.the_grant(f"light{number}").allocations[0] for number in range(6)]
    assert [each.units for each in granted] == [(0,)] * 5 + [(0, 1)]
    play.finish("light5")
    play.submit(an_action("whole", cost={"cpu": 2}))
    assert play.the_grant("whole").allocations[0].units == (1, 2)


def a_small_node(**beside: Any) -> Any:
    """Two cores; ``beside`` has the room for light actions."""
    cores = ResourceInventory(2000, ((1, 2),), **beside)
    return replace(a_node(cpus=2), resources={**a_node().resources, "cpu": cores})


BESIDE = [{"shared_units": (0,), "shared_capacity": 500}, {"yielding_capacity": 500}]


@pytest.mark.parametrize("beside", BESIDE, ids=["kept core", "lower weight"])
def test_a_light_action_never_waits_behind_wide_ones(core, beside):
    scenario = core(a_small_node(**beside))
    scenario.submit(an_action("wide", cost={"cpu": 2}))
    for number in range(3):
        scenario.submit(an_action(f"waiting{number}", cost={"cpu": [1, 2]}))
    for number in range(5):
        scenario.submit(an_action(f"light{number}", cost={"cpu": 0.1}))
        assert scenario.the_grant(f"light{number}").allocations[0].shared
    scenario.submit(an_action("one too many", cost={"cpu": 0.1}))
    assert scenario.why("one too many").code in {"behind", "short_of"}
    scenario.finish("light0")
    assert scenario.the_grant("one too many").allocations[0].shared
    scenario.finish("wide")
    assert scenario.the_grant("waiting0")


@pytest.mark.parametrize("beside", BESIDE, ids=["kept core", "lower weight"])
def test_a_light_action_that_is_short_of_memory_keeps_no_wide_one_waiting(core, beside):
    node = a_small_node(**beside)
    memory = {"memory": ResourceInventory(100)}
    scenario = core(replace(node, resources=node.resources | memory))
    large = EnvironmentSpec(memory_bytes=100)
    scenario.submit(an_action("holds", cost={"cpu": 0.1}, trajectory="t-1", environment=large))
    scenario.submit(an_action("light", cost={"cpu": 0.1}, trajectory="t-2", environment=large))
    assert scenario.why("light").resource == "memory:n1"
    scenario.submit(an_action("wide", cost={"cpu": 2}))
    assert scenario.the_grant("wide").allocations[0].units == (1, 2)


def test_what_runs_beside_the_capacity_is_in_no_share(core):
    config = a_config(
        pools=[PoolConfig("default", shares={"cpu": {"default": Share(1000, borrow=0)}})]
    )
    scenario = core(a_small_node(yielding_capacity=500), config=config)
    scenario.submit(an_action("light", cost={"cpu": 0.5}))
    assert scenario.the_grant("light").allocations[0].yields
    scenario.submit(an_action("whole", cost={"cpu": 1}))
    assert scenario.the_grant("whole")
