"""Several groups with bounds of one pool: shapes, costs, GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from contract.node_group_reports import NodeGroupEstimate
from contract.pool_demands import DemandRow, NodesAlike, PoolDemand
from contract.requests import ActionRequest
from domain.action import ExecSpec, Kind
from domain.errors import NeverFits
from domain.node_groups import NodeGroupSpec
from domain.principals import Principal, Scope
from scheduler.runtime.capacity import capacity_of
from scheduler.runtime.gateway.admission import Admission
from scheduler.runtime.node_groups.act_estimate import PoolEstimate
from scheduler.runtime.node_groups.elastic import WINDOW_SECONDS, ElasticPools
from scheduler.runtime.node_groups.pool_choice import LEAST_GAIN, MOST_GAIN, PoolChoice
from scheduler.runtime.node_groups.pool_load import NodesFrom, Place, PoolLoad
from scheduler.runtime.node_groups.pool_sight import START_SECONDS, GroupSight, SeenGroup, load_of
from tests.builders import a_config, a_node
from tests.scenario import Scenario
from tests.tiers import by_tier

SMALL = NodeGroupSpec("fake", min_count=0, max_count=16, cpus=8)
BIG = NodeGroupSpec("fake", min_count=0, max_count=8, cpus=32)
GPUS = NodeGroupSpec("fake", min_count=0, max_count=4, cpus=8, gpus=8)
FEW = settings(max_examples=by_tier(8, 30, 300), deadline=None)
PASS_SECONDS = 10.0


def waiting(count: int, cores: int = 1, seconds: float = 60.0) -> DemandRow:
    return DemandRow({"cpu": 1000 * cores}, 0, False, seconds, waiting=count)


def running(count: int, cores: int = 1, seconds: float = 10.0) -> DemandRow:
    """Actions in the middle of their time; as many end each second as arrive."""
    return DemandRow(
        {"cpu": 1000 * cores}, 0, False, seconds, running=count, residual_seconds=seconds / 2,
        ending_per_second=count / seconds,
    )  # fmt: skip


class Pool:
    """Groups whose engines do what is wanted after the start time, and what waits for them."""

    def __init__(
        self, specs: Mapping[str, NodeGroupSpec], rows: Sequence[DemandRow] = (), **nodes: int
    ) -> None:
        self.specs, self.pools = specs, ElasticPools()
        self.deciders = {name: self.pools.group(name) for name in specs}
        self.wanted = {name: nodes.get(name, 0) for name in specs}
        self.ready = dict(self.wanted)
        self.asked_at = dict.fromkeys(specs, 0.0)
        self.blocked: set[str] = set()
        self.now = 1000.0
        self.look(*rows, passed=0.0)  # all have been seen

    def look(self, *rows: DemandRow, nodes: list[NodesAlike] | None = None, passed: float = PASS_SECONDS) -> dict[str, NodeGroupEstimate]:  # fmt: skip
        """Make a pass over all groups, one after the other."""
        self.now += passed
        demand = PoolDemand(list(rows), {}, nodes=nodes or [])
        found = {}
        for name, spec in self.specs.items():
            if name not in self.blocked and self.now >= self.asked_at[name] + START_SECONDS:
                self.ready[name] = self.wanted[name]
            missing = max(0, self.wanted[name] - self.ready[name])
            starting = (self.now - self.asked_at[name],) * missing
            sight = GroupSight(
                self.ready[name], self.wanted[name], starting, START_SECONDS, demand, peers=self.specs.keys() - {name}
            )  # fmt: skip
            estimate = found[name] = self.deciders[name].decide(spec, sight, self.now)
            if estimate.wanted > self.wanted[name] and not missing:
                self.asked_at[name] = self.now
            self.wanted[name] = estimate.wanted
            self.ready[name] = min(self.ready[name], self.wanted[name])
        return found


def bar(begins: str, count: int, cores: int, free: int) -> NodesAlike:
    return NodesAlike(begins, count, {"cpu": 1000 * cores}, {"cpu": 1000 * free})


def test_an_action_that_no_single_node_has_room_for_asks_for_one():
    one = {"g": replace(BIG, max_count=10)}
    rows = [replace(running(96, seconds=600.0), ending_per_second=0.0), waiting(1, cores=16)]
    # 32 cores are free in both, on four nodes and on one.
    scattered = Pool(one, g=4).look(*rows, nodes=[bar("g", 4, 32, 8)])["g"]
    together = Pool(one, g=4).look(*rows, nodes=[bar("g", 1, 32, 32), bar("g", 3, 32, 0)])["g"]
    assert scattered.wanted == 5
    assert together.wanted == 4


def test_an_action_with_free_cores_on_two_nodes_waits_for_one_of_them():
    rows = [DemandRow({"cpu": 16_000}, 0, False, 10.0, waiting=2)]
    place = Place(0, 2, (15_000,))
    load = PoolLoad(rows, (), [{"cpu": 32_000}], places=[place])
    assert PoolEstimate(load).act([NodesFrom(0.0, (2,))]) > 1000  # nothing there ends
    free = PoolLoad(rows, (), [{"cpu": 32_000}], places=[place._replace(free=(16_000,))])
    assert PoolEstimate(free).act([NodesFrom(0.0, (2,))]) == pytest.approx(10.0)


def test_new_nodes_take_as_many_large_actions_as_fit_on_each():
    # 20 of 32 cores: one on each node, although 60 would fit into the cores of two.
    rows = [DemandRow({"cpu": 20_000}, 0, False, 10.0, waiting=3)]
    estimate = PoolEstimate(PoolLoad(rows, (), [{"cpu": 32_000}]))
    assert estimate.act([NodesFrom(0.0, (2,))]) == pytest.approx(10 + 10 / 3)
    assert estimate.act([NodesFrom(0.0, (3,))]) == pytest.approx(10.0)


def test_nodes_must_bring_more_the_more_they_add_to_the_cost_of_the_pool():
    def choice(small: int, big: int) -> PoolChoice:
        numbers = ((SMALL, "small", small), (BIG, "big", big))
        groups = [
            SeenGroup(name, spec, GroupSight(nodes, nodes, (), START_SECONDS, PoolDemand([], {})), 0.0, nodes)
            for spec, name, nodes in numbers
        ]  # fmt: skip
        return PoolChoice(groups, PoolEstimate(load_of(groups, PoolDemand([], {}), {}, ())), 0.0)

    at_noon, at_night = choice(12, 4), choice(1, 1)
    assert at_noon.needed(0, 1) == at_noon.needed(0, 3) == LEAST_GAIN  # 3 to 11 % more cost
    assert LEAST_GAIN < at_night.needed(1, 1) < at_night.needed(1, 2) < MOST_GAIN
    assert choice(0, 0).needed(0, 1) == MOST_GAIN


def test_large_actions_grow_the_group_that_has_their_cores_and_the_other_says_why_not():
    pool = Pool({"big": BIG, "small": SMALL}, small=4, big=1)
    found = pool.look(running(30, seconds=600.0), waiting(4, cores=32))
    assert found["small"].wanted == 4
    assert "no node of this group has 32 cores, for which actions wait" in found["small"].reason
    assert found["big"].wanted > 1
    assert "of actions that no node of small takes" in found["big"].reason


def test_small_actions_grow_the_group_with_most_gain_for_its_cost():
    dear = replace(SMALL, cost_per_hour=4.0)
    cheap = replace(SMALL, cost_per_hour=1.0)
    for costs in ({"a": dear, "b": cheap}, {"b": dear, "a": cheap}):
        pool = Pool(costs, a=1, b=1)
        found = pool.look(running(16, seconds=60.0), waiting(60))
        grown = next(name for name, spec in costs.items() if spec is cheap)
        other = "a" if grown == "b" else "b"
        assert found[grown].wanted > 1
        assert found[other].wanted == 1
        assert f"more for its cost than {other}" in found[grown].reason
        assert f"but group {grown} lowers it more for its cost" in found[other].reason


def test_without_costs_of_all_groups_sizes_are_compared():
    declared = {"a": replace(SMALL, cost_per_hour=0.01), "b": replace(SMALL, cpus=4, max_count=32)}
    pool = Pool(declared, a=1, b=1)
    found = pool.look(running(12, seconds=60.0), waiting(40))
    assert found["a"].wanted == 1
    assert found["b"].wanted > 1


def test_a_group_whose_engine_is_blocked_gives_way_to_the_next():
    pool = Pool({"a": SMALL, "b": replace(SMALL, cpus=9)}, a=1, b=1)
    pool.blocked.add("a")
    rows = [running(17, seconds=600.0), waiting(40, seconds=600.0)]
    first = pool.look(*rows)
    assert first["a"].wanted > 1
    assert first["b"].wanted == 1
    for _ in range(15):
        later = pool.look(*rows)
    assert later["b"].wanted > 1


def test_the_dearest_surplus_goes_first():
    specs = {
        "cheap": replace(SMALL, cost_per_hour=1.0),
        "dear": replace(SMALL, cost_per_hour=5.0),
    }
    pool = Pool(specs, cheap=4, dear=4)
    while pool.wanted == {"cheap": 4, "dear": 4}:
        pool.look(running(22))
    assert pool.wanted["cheap"] == 4
    assert pool.wanted["dear"] < 4
    assert pool.now >= 1000 + WINDOW_SECONDS


def test_what_only_large_nodes_take_keeps_one_of_them():
    pool = Pool({"big": replace(BIG, cost_per_hour=99.0), "small": replace(SMALL, cost_per_hour=1.0)}, big=3, small=4)  # fmt: skip
    for _ in range(60):
        pool.look(running(2), running(1, cores=16, seconds=30.0))
    assert 1 <= pool.wanted["big"] < 3


def test_two_idle_groups_do_not_give_up_the_last_node_on_account_of_each_other():
    pool = Pool({"a": SMALL, "b": SMALL}, a=1, b=1)
    for _ in range(60):
        pool.now += PASS_SECONDS
        for name, spec in pool.specs.items():
            demand = PoolDemand([], {}, trajectories=3)
            sight = GroupSight(pool.wanted[name], pool.wanted[name], (), START_SECONDS, demand)
            pool.wanted[name] = pool.deciders[name].decide(spec, sight, pool.now).wanted
    assert sorted(pool.wanted.values()) == [0, 1]


def gpu_calls(count: int, gpus: int) -> DemandRow:
    return DemandRow({"gpu": 1000 * gpus}, 0, False, 60.0, waiting=count)


def test_waiting_gpu_calls_grow_the_group_with_gpus_alone():
    pool = Pool({"cpus": SMALL, "gpus": GPUS}, cpus=2, gpus=1)
    found = pool.look(
        DemandRow({"gpu": 8000}, 0, False, 60.0, running=1, residual_seconds=30.0, ending_per_second=1 / 60),
        gpu_calls(6, 4),
    )  # fmt: skip
    assert found["gpus"].wanted > 1
    assert found["cpus"].wanted == 2
    assert "no node of this group has 4 GPUs" in found["cpus"].reason


def test_free_gpus_that_are_no_chunk_take_no_call_for_two():
    rows = [gpu_calls(1, 2)]
    place = Place(0, 1, (8_000, 2_000), (2, 0, 0, 0))
    shape = {"cpu": 8_000, "gpu": 8_000}
    apart = PoolEstimate(PoolLoad(rows, (), [shape], places=[place]))
    assert apart.act([NodesFrom(0.0, (1,))]) > 60.0
    buddies = PoolEstimate(PoolLoad(rows, (), [shape], places=[place._replace(chunks=(0, 1, 0, 0))]))  # fmt: skip
    assert buddies.act([NodesFrom(0.0, (1,))]) == pytest.approx(60.0)


def test_an_action_is_admitted_where_a_group_of_the_pool_may_have_its_node():
    groups = {"gpus": GPUS, "none": replace(BIG, max_count=0), "far": replace(BIG, pool="p")}
    scenario = Scenario(a_node(cpus=4), config=a_config(node_groups=groups, pools=("default", "p")))
    admission = Admission()
    admission.view = capacity_of(scenario.machine.state)

    def admit(kind: str, count: int) -> object:
        asked = ActionRequest(
            task="t", kind=Kind.EXEC, cost={kind: count}, exec=ExecSpec(("true",))
        )
        return admission.action(asked, Principal("trainer", None, frozenset({Scope.SUBMIT}))).cost

    assert admit("gpu", 8) == {"gpu": (8000,)}
    assert admit("cpu", 8) == {"cpu": (8000,)}
    with pytest.raises(NeverFits, match="cpu: 9 asked, the largest node of pool 'default' has 8"):
        admit("cpu", 9)


SPECS = st.lists(
    st.builds(
        NodeGroupSpec,
        engine=st.just("fake"),
        min_count=st.integers(0, 2),
        max_count=st.integers(2, 12),
        cpus=st.sampled_from([4, 8, 32]),
        cost_per_hour=st.sampled_from([0.0, 1.0, 7.0]),
    ),
    min_size=1,
    max_size=3,
)
LOADS = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from([1, 2, 6, 16]), st.floats(0.5, 100)), max_size=3
)


@FEW
@given(SPECS, LOADS)
def test_a_constant_load_makes_no_group_of_a_pool_grow_after_one_shrank(
    specs: list[NodeGroupSpec], loads: list[tuple[int, int, float]]
) -> None:
    named = {f"g{number}": spec for number, spec in enumerate(specs)}
    rows = [running(count, cores, seconds) for count, cores, seconds in loads if count]
    pool = Pool(named, rows, **{name: spec.max_count or 0 for name, spec in named.items()})
    shrank = False
    for _ in range(80):
        before = dict(pool.wanted)
        pool.look(*rows)
        assert not (shrank and any(pool.wanted[name] > before[name] for name in named))
        shrank = shrank or any(pool.wanted[name] < before[name] for name in named)


@FEW
@given(SPECS, st.integers(1, 40), st.integers(2, 10), st.sampled_from([1, 4, 16]))
def test_a_longer_queue_of_the_same_costs_no_less(
    specs: list[NodeGroupSpec], count: int, times: int, cores: int
) -> None:
    costs = []
    for waits in (count, count * times):
        pool = Pool({f"g{number}": spec for number, spec in enumerate(specs)})
        for _ in range(3 * len(specs)):  # one group grows after the other
            pool.look(waiting(waits, cores))
        costs.append(sum(pool.wanted[name] * spec.cpus for name, spec in pool.specs.items()))
    assert costs[0] <= costs[1] + max(spec.cpus for spec in specs)


@FEW
@given(SPECS, LOADS, st.integers(0, 50))
def test_each_group_stays_within_its_bounds(
    specs: list[NodeGroupSpec], loads: list[tuple[int, int, float]], waits: int
) -> None:
    pool = Pool({f"g{number}": spec for number, spec in enumerate(specs)})
    rows = [running(count, cores, seconds) for count, cores, seconds in loads if count]
    for _ in range(3):
        pool.look(*rows, *([waiting(waits)] if waits else []))
        for name, spec in pool.specs.items():
            assert spec.min_count <= pool.wanted[name] <= (spec.max_count or 0)
