"""Passes over a node group whose shape changes, whose instances fail, or whose machines are silent."""

from __future__ import annotations

from threading import Barrier

import pytest
from msgspec.structs import replace

from scheduler.runtime.node_groups.group_pass import GIVE_UP_SECONDS
from tests.unit.runtime.test_node_group_passes import BUSY, IDLE, SPEC, Scene


@pytest.fixture
async def scene() -> Scene:
    """A group of two idle nodes."""
    scene = Scene()
    await scene.run()
    scene.join(g_1=IDLE, g_2=IDLE)
    await scene.run()
    return scene


async def test_a_new_shape_replaces_one_node_after_the_other_and_says_how_far_it_is(scene: Scene):
    bigger = replace(SPEC, cpus=2)
    await scene.run(bigger)
    assert set(scene.engine.found) == {"g-1", "g-2", "g-3"}
    report = scene.group.report
    await scene.run(bigger)
    assert [each.outdated for each in report.instances] == [True, True, False]
    assert report.rollout.startswith("1 of 3 instances have the new shape; g-2 waits for its successor g-3")  # fmt: skip
    assert scene.reasons_of == {}
    scene.join(g_3=IDLE, g_2=BUSY)
    await scene.run(bigger)
    assert scene.reasons_of == {"g-1": "node group g: it has a former shape"}
    for _ in range(9):
        await scene.run(bigger)
        scene.loads = {name: scene.loads.get(name, IDLE) for name in scene.engine.found}
    # A trajectory is on the other one: it is let finish.
    assert set(scene.engine.found) == {"g-1", "g-2", "g-3"}
    assert report.rollout == "2 of 3 instances have the new shape; g-2 lets its trajectories finish"
    scene.join(g_2=IDLE)
    await scene.run(bigger)
    await scene.run(bigger)
    assert set(scene.engine.found) == {"g-1", "g-3"}
    assert report.rollout == ""


async def test_options_that_say_how_machines_are_reached_replace_nothing(scene: Scene):
    await scene.run(replace(SPEC, options={"hosts": "a,b"}))
    assert set(scene.engine.found) == {"g-1", "g-2"}
    await scene.run(replace(SPEC, options={"hosts": "a,b", "prefix": "nice"}))
    assert set(scene.engine.found) == {"g-1", "g-2", "g-3"}


async def test_instances_that_fail_before_they_join_are_launched_less_often(scene: Scene):
    bigger = replace(SPEC, cpus=2)
    scene.engine.starts_fail = True
    scene.engine.orders.clear()
    for second in range(40):
        scene.now = float(second)
        await scene.run(bigger)
    # At 0, 1 + 5, 7 + 10, 18 + 20 s: a failure is seen in the pass after the launch.
    assert len(scene.engine.orders) == 4
    assert scene.reasons_of == {}, "the nodes of the former shape go on"
    assert "failed before its node joined: exit code 1" in scene.group.report.error
    scene.engine.starts_fail = False
    await scene.run(replace(SPEC, cpus=3))
    assert len(scene.engine.orders) == 5, "another shape is tried at once"


async def test_instances_of_a_silent_machine_are_unknown_and_the_others_go_on(scene: Scene):
    scene.engine.silent = {"m-g-1": "ssh does not reach m-g-1; try it"}
    scene.join(g_1=replace(BUSY, lost=True))
    await scene.run(replace(SPEC, count=3))
    report = scene.group.report
    assert scene.engine.orders[-1].name == "g-3"
    assert (report.silent, report.error) == (scene.engine.silent, "")
    unknown = next(each for each in report.instances if each.name == "g-1")
    assert (unknown.state, unknown.machine) == ("unknown", "m-g-1")
    assert scene.events == [], "its actions do not end before the grace period"
    scene.engine.silent = {}
    await scene.run(replace(SPEC, count=3))
    assert {each.state for each in report.instances} == {"running"}


async def test_an_instance_that_its_machine_does_not_list_is_gone_although_others_are_silent(
    scene: Scene,
):
    scene.engine.silent = {"m-g-1": "ssh does not reach m-g-1; try it"}
    del scene.engine.found["g-2"]
    await scene.run()
    assert scene.engine.orders[-1].name == "g-2"


async def test_a_deleted_group_whose_last_machines_are_silent_is_given_up(scene: Scene):
    scene.engine.silent = {"m-g-1": "ssh does not reach m-g-1; try it"}
    scene.join(g_1=replace(IDLE, lost=True), g_2=replace(IDLE, lost=True))
    for _ in range(4):
        assert not await scene.run(None)
    assert set(scene.engine.found) == {"g-1"}
    scene.now = GIVE_UP_SECONDS
    assert await scene.run(None)


async def test_launches_are_made_at_once_where_the_engine_allows_it():
    scene = Scene()
    scene.engine.launches_at_once, scene.engine.at_once = 3, Barrier(3)
    await scene.run(replace(SPEC, count=6))
    assert len(scene.engine.found) == 6
