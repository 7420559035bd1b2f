"""Passes over a node group: an engine that is a dictionary, nodes whose load the test says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from threading import Barrier
from typing import Any

import pytest
from msgspec.structs import replace

from contract.node_group_reports import NodeGroupEstimate, NodeGroupReport
from contract.pool_demands import PoolDemand
from contract.status import NodeLoad
from domain.events import Event, NodeFenced, NodeForgetAsked
from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import (
    Instance,
    InstanceState,
    LaunchError,
    LaunchOrder,
    MachinesSilent,
)
from scheduler.runtime.node_groups.group_pass import (
    CHECK_SECONDS,
    FIRST_PAUSE_SECONDS,
    GIVE_UP_SECONDS,
    GroupPass,
    KeeperPorts,
    Surroundings,
    first_report,
)
from scheduler.runtime.node_groups.pool_sight import START_SECONDS, ComingNodes, GroupSight

SPEC = NodeGroupSpec("fake", count=2)
IDLE = NodeLoad(1, lost=False, drained=False, actions=0, trajectories=0)
BUSY = replace(IDLE, trajectories=1)


class FakeEngine:
    """An engine, and a launcher of it."""

    reach = ("hosts",)

    def __init__(self) -> None:
        #: Machine → why it does not answer.
        self.silent: dict[str, str] = {}
        self.launches_at_once = 1
        self.at_once = Barrier(1)
        self.starts_fail = False
        self.found: dict[str, Instance] = {}
        self.orders: list[LaunchOrder] = []
        self.options: Mapping[str, str] = {}
        self.fails = ""
        self.lacks: list[str] = []
        self.checks = 0

    def instances(self, installation: str, group: str) -> list[Instance]:
        if self.fails == "list":
            raise LaunchError("the engine does not answer; start it")
        found = [each for each in self.found.values() if each.machine not in self.silent]
        if self.silent:
            raise MachinesSilent(found, self.silent)
        return found

    def launch(self, order: LaunchOrder) -> None:
        self.at_once.wait(10)
        self.orders.append(order)
        if self.fails == "launch":
            raise LaunchError("no machine is free; add one")
        state = InstanceState.FAILED if self.starts_fail else InstanceState.RUNNING
        self.found[order.name] = Instance(
            order.name, state, f"h{len(self.orders)}", f"m-{order.name}", reason="exit code 1" * self.starts_fail,
            fingerprint=order.fingerprint,
        )  # fmt: skip

    def end(self, installation: str, group: str, name: str) -> None:
        self.found.pop(name, None)

    def problems(self) -> list[str]:
        self.checks += 1
        return self.lacks

    def close(self) -> None:
        """Nothing is open."""


class SaidSize:
    """Decides what the test says."""

    def __init__(self) -> None:
        self.wanted = 0
        self.sights: list[GroupSight] = []

    def decide(self, spec: NodeGroupSpec, sight: GroupSight, now: float) -> NodeGroupEstimate:
        self.sights.append(sight)
        return NodeGroupEstimate(spec.within(self.wanted), reason="the test says so")


class Scene:
    """A group on an engine, its nodes, and the drains of the configuration."""

    def __init__(self) -> None:
        self.engine, self.other = FakeEngine(), FakeEngine()
        self.loads: dict[str, NodeLoad] = {}
        self.reasons_of: dict[str, str] = {}
        self.events: list[Event] = []
        self.stored: list[list[str]] = []
        self.now = 0.0
        self.size = SaidSize()
        self.demands: dict[str, PoolDemand] = {}
        self.coming: dict[str, ComingNodes] = {}
        self.peers: dict[str, frozenset[str]] = {}
        ports = KeeperPorts(
            "i", self._launcher, lambda node, spec: (["worker", node], {"A": "b"}), self,
            self._store, self._append, lambda group: self.size,
        )  # fmt: skip
        self.group = GroupPass("g", ports, first_report(SPEC))

    def _launcher(self, engine: str, options: Mapping[str, str]) -> FakeEngine:
        chosen = self.engine if engine == "fake" else self.other
        chosen.options = options
        return chosen

    async def _store(self, group: str, report: NodeGroupReport) -> None:
        self.stored.append(list(report.launched))
        # The engine has not been asked for them.
        assert not set(report.launched) <= self.engine.found.keys()

    async def _append(self, events: list[Event]) -> None:
        self.events += events

    async def reasons(self) -> Mapping[str, str]:
        return self.reasons_of

    async def drain(self, node: str, reason: str) -> None:
        self.reasons_of.setdefault(node, reason)

    async def resume(self, node: str) -> None:
        del self.reasons_of[node]

    async def run(self, spec: NodeGroupSpec | None = SPEC) -> bool:
        """Make a pass; the loop knows the drains by then."""
        drained = {
            name: replace(load, drained=name in self.reasons_of)
            for name, load in self.loads.items()
        }
        around = Surroundings(drained, self.reasons_of, self.demands, self.coming, self.peers)
        return await self.group.run(spec, around, self.now)

    def join(self, **loads: Any) -> None:
        self.loads |= {name.replace("_", "-"): load for name, load in loads.items()}


@pytest.fixture
async def scene() -> Scene:
    """A group of two idle nodes."""
    scene = Scene()
    await scene.run()
    scene.join(g_1=IDLE, g_2=IDLE)
    await scene.run()
    return scene


async def test_missing_nodes_are_launched_with_command_and_variables(scene: Scene):
    order = scene.engine.orders[1]
    assert [each.name for each in scene.engine.orders] == ["g-1", "g-2"]
    assert (order.command, order.environment, order.installation) == (
        ["worker", "g-2"], {"A": "b"}, "i"
    )  # fmt: skip
    assert (scene.group.report.wanted, scene.group.report.ready) == (2, 2)


async def test_nodes_are_on_record_before_the_engine_is_asked(scene: Scene):
    assert scene.stored == [["g-1", "g-2"]]


async def test_a_surplus_node_is_drained_until_nothing_hangs_on_it(scene: Scene):
    one = replace(SPEC, count=1)
    scene.join(g_1=BUSY, g_2=BUSY)
    await scene.run(one)
    assert scene.reasons_of == {"g-2": "node group g: the group needs 1 nodes"}
    await scene.run(one)
    assert set(scene.engine.found) == {"g-1", "g-2"}
    scene.join(g_2=IDLE)
    await scene.run(one)
    assert set(scene.engine.found) == {"g-1"}


async def test_a_drain_that_the_loop_does_not_know_yet_ends_nothing(scene: Scene):
    one = replace(SPEC, count=1)
    await scene.run(one)
    late = Surroundings(scene.loads, scene.reasons_of)
    await scene.group.run(one, late, 0.0)
    assert set(scene.engine.found) == {"g-1", "g-2"}


async def test_a_group_that_grows_again_resumes_its_own_drains_alone(scene: Scene):
    scene.reasons_of = {"g-1": "broken fan"}
    await scene.run(replace(SPEC, count=0))
    scene.join(g_1=BUSY, g_2=BUSY)
    await scene.run(replace(SPEC, count=0))
    assert set(scene.reasons_of) == {"g-1", "g-2"}
    await scene.run()
    assert scene.reasons_of == {"g-1": "broken fan"}


async def test_a_node_that_ended_is_forgotten_with_its_drain(scene: Scene):
    one = replace(SPEC, count=1)
    await scene.run(one)
    await scene.run(one)
    await scene.run(one)
    assert scene.events == []  # it sends heartbeats for a moment
    scene.join(g_2=replace(IDLE, lost=True))
    await scene.run(one)
    assert [type(each) for each in scene.events] == [NodeForgetAsked]
    del scene.loads["g-2"]
    await scene.run(one)
    assert (scene.reasons_of, scene.group.report.launched) == ({}, ["g-1"])


async def test_what_hangs_on_a_node_without_an_instance_ends_at_once(scene: Scene):
    del scene.engine.found["g-2"]
    scene.join(g_2=replace(BUSY, lost=True, incarnation=7))
    for _ in range(2):
        await scene.run(replace(SPEC, count=1))
    (event,) = scene.events
    assert isinstance(event, NodeFenced)
    assert (event.node, event.incarnation) == ("g-2", 7)


async def test_a_node_that_is_launched_again_keeps_what_hangs_on_it(scene: Scene):
    del scene.engine.found["g-2"]
    scene.join(g_2=replace(BUSY, lost=True))
    await scene.run()
    assert set(scene.engine.found) == {"g-1", "g-2"}
    assert scene.events == []


async def test_a_silent_node_has_a_successor_after_its_grace_period_unless_it_was_drained(
    scene: Scene,
):
    scene.reasons_of = {"g-2": "broken fan"}
    scene.join(g_1=replace(BUSY, lost=True), g_2=replace(IDLE, lost=True))
    for scene.now in (0.0, 60.0):
        await scene.run()
    assert set(scene.engine.found) == {"g-1", "g-2"}
    scene.now = 61.0
    await scene.run()
    assert set(scene.engine.found) == {"g-1", "g-2", "g-3"}
    scene.join(g_1=replace(IDLE, lost=True), g_3=IDLE)
    await scene.run()
    assert set(scene.engine.found) == {"g-2", "g-3"}


async def test_an_instance_that_was_started_again_has_its_own_time_to_join(scene: Scene):
    scene.join(g_1=replace(BUSY, lost=True))
    await scene.run()
    scene.now = 61.0
    scene.engine.found["g-1"] = dataclasses.replace(scene.engine.found["g-1"], restarts=1)
    await scene.run()
    assert set(scene.engine.found) == {"g-1", "g-2"}


async def test_launches_that_fail_are_made_less_often(scene: Scene):
    scene.engine.found.clear()
    scene.engine.orders.clear()
    scene.engine.fails = "launch"
    times = []
    for second in range(40):
        scene.now, before = float(second), len(scene.engine.orders)
        await scene.run()
        times += [second] * (len(scene.engine.orders) > before)
        # Also between two tries.
        assert scene.group.report.error == "no machine is free; add one"
    assert times == [0, FIRST_PAUSE_SECONDS, 15, 35]
    assert scene.group.report.instances == []


async def test_an_engine_that_does_not_answer_changes_nothing_and_is_named(scene: Scene):
    scene.engine.fails = "list"
    await scene.run(replace(SPEC, count=0))
    assert scene.group.report.error == "the engine does not answer; start it"
    assert scene.group.report.wanted == 2
    assert (scene.reasons_of, scene.events) == ({}, [])
    scene.engine.fails = ""
    await scene.run()
    assert scene.group.report.error == ""


async def test_a_deleted_group_is_over_when_its_last_node_is_forgotten(scene: Scene):
    assert not await scene.run(None)
    await scene.run(None)
    assert scene.engine.found == {}
    scene.join(g_1=replace(IDLE, lost=True), g_2=replace(IDLE, lost=True))
    assert not await scene.run(None)
    scene.loads.clear()
    await scene.run(None)
    assert await scene.run(None)


async def test_another_engine_takes_over_when_the_former_one_has_no_instance(scene: Scene):
    elsewhere = replace(SPEC, engine="other")
    scene.join(g_1=BUSY)
    for _ in range(3):
        await scene.run(elsewhere)
    assert (set(scene.engine.found), scene.other.found) == ({"g-1"}, {})
    scene.join(g_1=IDLE)
    for _ in range(3):
        await scene.run(elsewhere)
    assert scene.engine.found == {}
    assert set(scene.other.found) == {"g-1", "g-2"}


async def test_a_deleted_group_whose_engine_is_gone_is_given_up_when_no_node_lives(scene: Scene):
    scene.engine.found.clear()
    scene.engine.fails = "list"
    assert not await scene.run(None)
    scene.now = GIVE_UP_SECONDS
    assert not await scene.run(None)
    scene.join(g_1=replace(IDLE, lost=True), g_2=replace(IDLE, lost=True))
    assert await scene.run(None)
    assert not await scene.run(SPEC)
    assert not await scene.run(replace(SPEC, engine="other"))
    await scene.run(replace(SPEC, engine="other"))
    assert set(scene.other.found) == {"g-1", "g-2"}


async def test_options_hold_from_the_next_pass_on(scene: Scene):
    await scene.run(replace(SPEC, options={"hosts": "a"}))
    assert scene.engine.options == {"hosts": "a"}


ELASTIC = NodeGroupSpec("fake", min_count=1, max_count=4, cpus=8)


@pytest.fixture
async def elastic() -> Scene:
    """A group with bounds and one busy node; the scheduler says what waits."""
    scene = Scene()
    scene.demands["default"] = PoolDemand([], {})
    scene.size.wanted = 1
    await scene.run(ELASTIC)
    scene.now = 20.0
    scene.join(g_1=BUSY)
    await scene.run(ELASTIC)
    return scene


async def test_a_group_with_bounds_grows_by_what_is_decided(elastic: Scene):
    elastic.size.wanted = 3
    await elastic.run(ELASTIC)
    assert set(elastic.engine.found) == {"g-1", "g-2", "g-3"}
    report = elastic.group.report
    assert (report.wanted, report.ready) == (3, 1)
    assert report.estimate == NodeGroupEstimate(3, reason="the test says so")
    assert elastic.coming["g"] == ComingNodes("default", {"cpu": 8_000}, 2)


async def test_decisions_see_the_measured_start_of_nodes_and_those_on_their_way(elastic: Scene):
    first, second = elastic.size.sights
    assert (first.start_seconds, first.wanted, first.ready) == (START_SECONDS, 2, 0)
    assert (second.start_seconds, second.wanted, second.ready) == (20.0, 1, 1)
    elastic.size.wanted = 3
    await elastic.run(ELASTIC)
    elastic.now += 7.0
    await elastic.run(ELASTIC)
    assert elastic.size.sights[-1].starting == (7.0, 7.0)


async def test_the_successor_of_a_keeper_knows_the_start_of_nodes(elastic: Scene):
    elastic.group.report.estimate = NodeGroupEstimate(1, start_seconds=42.0)
    later = GroupPass("g", elastic.group.ports, elastic.group.report)
    await later.run(ELASTIC, Surroundings(elastic.loads, {}, elastic.demands, {}), 0.0)
    assert elastic.size.sights[-1].start_seconds == 42.0


async def test_a_group_that_shrinks_lets_trajectories_finish(elastic: Scene):
    elastic.size.wanted = 2
    await elastic.run(ELASTIC)
    elastic.join(g_2=BUSY)
    elastic.size.wanted = 1
    elastic.join(g_1=replace(BUSY, trajectories=5))
    for _ in range(3):
        await elastic.run(ELASTIC)
    # The least hangs on the second one, and it stays until that is over.
    assert elastic.reasons_of == {"g-2": "node group g: the group needs 1 nodes"}
    assert set(elastic.engine.found) == {"g-1", "g-2"}
    elastic.join(g_2=IDLE)
    await elastic.run(ELASTIC)
    assert set(elastic.engine.found) == {"g-1"}


async def test_a_group_that_grows_while_a_node_drains_keeps_that_node(elastic: Scene):
    elastic.size.wanted = 2
    await elastic.run(ELASTIC)
    elastic.join(g_2=BUSY)
    elastic.size.wanted = 1
    await elastic.run(ELASTIC)
    elastic.size.wanted = 2
    await elastic.run(ELASTIC)
    assert (elastic.reasons_of, set(elastic.engine.found)) == ({}, {"g-1", "g-2"})


async def test_a_blocked_engine_shows_its_error_beside_the_estimate(elastic: Scene):
    elastic.engine.fails, elastic.size.wanted = "launch", 3
    await elastic.run(ELASTIC)
    report = elastic.group.report
    assert report.error == "no machine is free; add one"
    assert report.estimate is not None
    assert (report.estimate.wanted, report.wanted) == (3, 3)
    assert set(elastic.engine.found) == {"g-1"}


async def test_without_an_answer_of_the_scheduler_a_group_stays_as_it_is(elastic: Scene):
    elastic.size.wanted = 3
    await elastic.run(ELASTIC)
    elastic.demands.clear()
    elastic.size.wanted = 1
    await elastic.run(ELASTIC)
    assert elastic.group.report.wanted == 3
    assert elastic.group.report.estimate is not None
    assert "does not say what waits" in elastic.group.report.estimate.reason


async def test_a_group_knows_what_others_of_its_pool_have_on_their_way(elastic: Scene):
    here = ComingNodes("default", {"cpu": 4000}, 1)
    elastic.coming |= {"other": here, "far": ComingNodes("elsewhere", {"cpu": 9000}, 1)}
    await elastic.run(ELASTIC)
    assert elastic.size.sights[-1].coming == {"other": here}


async def test_a_group_knows_which_others_of_its_pool_have_bounds(elastic: Scene):
    elastic.peers = {"default": frozenset({"g", "big"}), "elsewhere": frozenset({"far"})}
    await elastic.run(ELASTIC)
    assert elastic.size.sights[-1].peers == {"big"}


async def test_nodes_that_an_operator_drained_are_set_aside(elastic: Scene):
    elastic.reasons_of = {"g-1": "broken fan"}
    await elastic.run(ELASTIC)
    assert elastic.size.sights[-1].aside == 1
    assert elastic.size.sights[-1].ready == 0


async def test_a_fixed_group_has_no_estimate(elastic: Scene):
    await elastic.run(SPEC)
    assert (elastic.group.report.estimate, elastic.group.report.wanted) == (None, 2)


async def test_what_the_engine_lacks_is_in_the_report_and_asked_now_and_then(scene: Scene):
    assert (scene.group.report.problems, scene.engine.checks) == ([], 1)
    scene.engine.lacks = ["no machine is up; start one"]
    scene.now = CHECK_SECONDS - 1
    await scene.run()
    assert scene.engine.checks == 1
    scene.now = CHECK_SECONDS
    await scene.run()
    assert scene.group.report.problems == ["no machine is up; start one"]


async def test_another_engine_is_asked_what_it_lacks_at_once(scene: Scene):
    scene.other.lacks = ["its queue is closed; open it"]
    scene.engine.found.clear()
    scene.loads.clear()
    for _ in range(3):
        await scene.run(replace(SPEC, engine="other"))
    assert scene.group.report.problems == ["its queue is closed; open it"]


async def test_a_group_reports_since_when_nodes_are_missing_and_its_longest_launch():
    scene = Scene()
    await scene.run()
    await scene.run()
    assert (since := scene.group.report.below_since)
    scene.now = 40.0
    scene.join(g_1=IDLE)
    await scene.run()
    assert (scene.group.report.below_since, scene.group.report.launch_seconds) == (since, 40.0)
    scene.now = 41.5
    scene.join(g_2=IDLE)
    await scene.run()
    assert (scene.group.report.below_since, scene.group.report.launch_seconds) == ("", 41.5)


async def test_a_node_that_an_operator_drains_is_not_missing(scene: Scene):
    await scene.drain("g-1", "maintenance")
    await scene.run()
    assert (scene.group.report.ready, scene.group.report.below_since) == (1, "")
