"""Decisions on the number of nodes of a group with bounds."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from contract.node_group_reports import NodeGroupEstimate
from contract.pool_demands import DemandRow, PoolDemand
from domain.node_groups import NodeGroupSpec
from scheduler.runtime.node_groups.act_estimate import PoolEstimate
from scheduler.runtime.node_groups.elastic import WINDOW_SECONDS, ElasticGroup
from scheduler.runtime.node_groups.pool_choice import MOST_GAIN, fewest
from scheduler.runtime.node_groups.pool_load import NodesFrom, PoolLoad
from scheduler.runtime.node_groups.pool_sight import START_SECONDS, ComingNodes, GroupSight
from tests.tiers import by_tier

SPEC = NodeGroupSpec("fake", min_count=1, max_count=16, cpus=4)
NOTHING = PoolDemand([], {})
FEW = settings(max_examples=by_tier(10, 40, 400), deadline=None)
#: Quarters of an hour would take long to look at each three seconds.
PASS_SECONDS = 15.0


def waiting(count: int, seconds: float = 60.0, cores: int = 1) -> DemandRow:
    return DemandRow({"cpu": 1000 * cores}, 0, False, seconds, waiting=count)


def running(count: int, seconds: float = 10.0) -> DemandRow:
    """Actions in the middle of their time; as many end each second as arrive."""
    return replace(last(count, seconds), ending_per_second=count / seconds)


def last(count: int, seconds: float) -> DemandRow:
    """The same, but none arrives after them."""
    return DemandRow(
        {"cpu": 1000}, 0, True, seconds, running=count, residual_seconds=seconds / 2
    )  # fmt: skip


def demand(*rows: DemandRow, **fields: int) -> PoolDemand:
    return replace(PoolDemand(list(rows), {}), **fields)


class GroupOverTime:
    """One group whose engine does what is wanted after the start time."""

    def __init__(self, nodes: int, spec: NodeGroupSpec = SPEC) -> None:
        self.spec, self.group = spec, ElasticGroup("g")
        self.wanted = self.ready = nodes
        self.now, self.asked_at = 1000.0, 0.0
        self.blocked = False

    def look(self, found: PoolDemand, passed: float = PASS_SECONDS) -> NodeGroupEstimate:
        """Make a pass."""
        self.now += passed
        if not self.blocked and self.now >= self.asked_at + START_SECONDS:
            self.ready = self.wanted
        missing = max(0, self.wanted - self.ready)
        starting = (self.now - self.asked_at,) * missing
        sight = GroupSight(self.ready, self.wanted, starting, START_SECONDS, found)
        estimate = self.group.decide(self.spec, sight, self.now)
        if estimate.wanted > self.wanted and not missing:
            self.asked_at = self.now
        self.wanted = estimate.wanted
        self.ready = min(self.ready, self.wanted)
        return estimate


def test_a_backlog_grows_the_group_at_once_and_says_what_it_gains():
    scene = GroupOverTime(1)
    estimate = scene.look(demand(running(4, 60.0), waiting(40)))
    assert 2 <= estimate.wanted <= 16
    assert estimate.more == estimate.wanted - 1
    assert estimate.gain > 0.3
    assert estimate.reason.startswith(
        f"{estimate.more} more nodes would lower the mean ACT by {estimate.gain:.0%}, from "
    )


def test_nodes_that_would_come_too_late_are_not_asked_for():
    scene = GroupOverTime(1)
    estimate = scene.look(demand(last(4, 1.0), waiting(8, 1.0)))
    assert estimate.wanted == 1
    assert f"to grow it takes {MOST_GAIN:.0%}" in estimate.reason


def test_actions_that_are_bound_to_their_nodes_ask_for_no_others():
    bound = replace(waiting(40), bound=True)
    assert GroupOverTime(1).look(demand(bound)).wanted == 1


def test_actions_that_fit_no_node_of_the_group_ask_for_none():
    scene = GroupOverTime(1)
    gpus = DemandRow({"gpu": 1000}, 0, False, 60.0, waiting=50)
    estimate = scene.look(demand(waiting(50, cores=8), gpus))
    assert estimate.wanted == 1
    lacks = "no node of this group has 8 cores or 1 GPU, for which actions wait"
    assert estimate.reason == f"nothing waits or arrives that its nodes take; {lacks}"


def test_a_group_without_nodes_gets_one_for_one_action():
    scene = GroupOverTime(0, replace(SPEC, min_count=0))
    assert scene.look(demand(waiting(1))).wanted == 1


def test_a_load_that_arrives_grows_the_group_before_much_of_it_waits():
    scene = GroupOverTime(2)
    assert scene.look(demand(running(8))).wanted > 2


def test_nodes_on_their_way_count_until_they_are_enough():
    scene = GroupOverTime(1)
    burst = demand(last(4, 60.0), waiting(40))
    found = [scene.look(burst, 1.0) for _ in range(12)]
    assert found[1].act_seconds < found[0].act_seconds
    assert 5 <= found[-2].wanted == found[-1].wanted


def test_a_blocked_engine_is_not_asked_for_more():
    scene = GroupOverTime(1, replace(SPEC, max_count=1000))
    scene.blocked = True
    first = scene.look(demand(running(4, 60.0), waiting(10))).wanted
    for number in range(20):
        estimate = scene.look(demand(running(4, 60.0), waiting(10 + 20 * number)))
        if scene.now > scene.asked_at + 3 * START_SECONDS:
            break
    later = scene.look(demand(running(4, 60.0), waiting(10_000)))
    assert later.wanted == estimate.wanted >= first
    assert "but the engine has not started" in later.reason


def test_nodes_of_others_in_the_pool_count():
    there = PoolDemand([running(8)], {"own": {"cpu": 64_000}})
    assert GroupOverTime(1).look(there).wanted == 1


def test_what_other_groups_have_on_their_way_counts():
    group = ElasticGroup("g")
    burst = demand(running(4, 60.0), waiting(40))
    alone = GroupSight(1, 1, (), START_SECONDS, burst)
    shared = alone._replace(coming={"fixed": ComingNodes("default", {"cpu": 64_000}, 1)})
    assert (
        group.decide(SPEC, shared, 0.0).wanted < ElasticGroup("g").decide(SPEC, alone, 0.0).wanted
    )


def test_nodes_that_an_operator_drained_take_nothing():
    busy = demand(running(6))
    alone = GroupSight(4, 4, (), START_SECONDS, busy)
    aside = alone._replace(ready=2, aside=2)
    assert ElasticGroup("g").decide(SPEC, alone, 0.0).wanted == 4
    assert ElasticGroup("g").decide(SPEC, aside, 0.0).wanted > 4


def test_a_group_shrinks_only_after_the_window_and_says_why():
    scene = GroupOverTime(8)
    light = demand(running(2))
    reason = scene.look(light).reason
    assert "the group shrinks when that has held for 300 s" in reason
    began = scene.now
    while scene.wanted == 8:
        estimate = scene.look(light)
    assert scene.now - began >= WINDOW_SECONDS
    assert 1 <= estimate.wanted < 8
    assert "enough for the last 300 s" in estimate.reason
    assert "fewer the mean ACT rises by" in estimate.reason


def test_one_busy_moment_within_the_window_keeps_the_nodes():
    scene = GroupOverTime(8)
    for _ in range(15):
        scene.look(demand(running(2)))
    scene.look(demand(running(32, 60.0), waiting(60)))
    grown = scene.wanted
    for _ in range(15):
        scene.look(demand(running(2)))
    assert scene.wanted == grown


def test_an_idle_group_falls_to_its_fewest_nodes_but_keeps_environments():
    scene = GroupOverTime(8, replace(SPEC, min_count=0, memory_bytes=100))
    for _ in range(30):
        scene.look(demand(trajectories=3, memory_held=170))
    assert scene.wanted == 2
    for _ in range(30):
        scene.look(demand(trajectories=3))
    assert scene.wanted == 1
    for _ in range(30):
        scene.look(NOTHING)
    assert scene.wanted == 0


ROWS = st.lists(
    st.builds(
        DemandRow,
        needs=st.fixed_dictionaries({"cpu": st.integers(1, 6).map(lambda n: 1000 * n)}),
        memory_bytes=st.sampled_from([0, 10]),
        bound=st.booleans(),
        seconds=st.floats(0.01, 1000),
        waiting=st.integers(0, 300),
        running=st.integers(0, 30),
        residual_seconds=st.floats(0, 500),
        ending_per_second=st.floats(0, 20),
    ),
    max_size=5,
)


@FEW
@given(ROWS, st.integers(0, 12), st.integers(0, 8), st.integers(0, 20))
def test_decisions_stay_within_the_bounds(
    rows: list[DemandRow], least: int, more: int, before: int
) -> None:
    spec = replace(SPEC, min_count=least, max_count=least + more, memory_bytes=100)
    scene = GroupOverTime(before, spec)
    for _ in range(2):
        assert least <= scene.look(demand(*rows, memory_held=40)).wanted <= least + more


@FEW
@given(st.integers(1, 6), st.floats(0.5, 300), st.integers(1, 60), st.integers(4, 20))
def test_a_longer_queue_of_the_same_asks_for_no_fewer_nodes(
    nodes: int, seconds: float, count: int, times: int
) -> None:
    found = []
    for waits in (count, count * times):
        rows = [last(4 * nodes, seconds), waiting(waits, seconds)]
        found.append(GroupOverTime(nodes).look(demand(*rows)).wanted)
    # The list is of whole actions: a last wave that is nearly empty may be worth one node.
    assert found[0] <= found[1] + 1


@FEW
@example(busy=10, seconds=0.1, nodes=2)
@given(busy=st.integers(0, 60), seconds=st.floats(0.05, 100), nodes=st.integers(1, 16))
def test_a_constant_load_never_makes_a_group_grow_after_it_shrank(
    busy: int, seconds: float, nodes: int
) -> None:
    scene, shrank = GroupOverTime(nodes), False
    load = demand(running(busy, seconds)) if busy else NOTHING
    for _ in range(20):
        before = scene.wanted
        scene.look(load, 60.0)
        shrank = shrank or scene.wanted < before
        assert not (shrank and scene.wanted > before)


@FEW
@given(ROWS)
def test_the_estimate_is_finite_and_not_negative(rows: list[DemandRow]) -> None:
    estimate = PoolEstimate(PoolLoad(rows, (), [{"cpu": 8000}]))
    for nodes in (0, 1, 10):
        act = estimate.act([NodesFrom(0.0, (nodes,))])
        assert 0.0 <= act < float("inf")


def test_the_estimate_of_a_list_is_that_of_its_schedule():
    estimate = PoolEstimate(PoolLoad([waiting(8, 10.0)], (), [{"cpu": 4000}]))
    # Four start at once, four after ten seconds.
    assert estimate.act([NodesFrom(0.0, (1,))]) == pytest.approx((4 * 10 + 4 * 20) / 8)
    # A second node joins after five seconds.
    two = [NodesFrom(0.0, (1,)), NodesFrom(5.0, (2,))]
    assert estimate.act(two) == pytest.approx((4 * 10 + 4 * 15) / 8)


def test_the_fewest_are_found_by_bisection():
    assert fewest(0, 9, lambda nodes: nodes >= 0) == 0
    assert fewest(0, 9, lambda nodes: nodes >= 4) == 4
    assert fewest(0, 9, lambda nodes: nodes >= 9) == 9
    assert fewest(0, 9, lambda nodes: nodes >= 20) == 9
