"""Idle environments leave a draining node for another one, with real commands, files and crashes of each party."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from domain.decisions import MoveEnvironment, ReceiveEnvironment
from domain.ids import TrajectoryKey
from domain.moves import IN_USE, PROCESS, SESSION
from domain.redis_keys import Keys
from tests.conformance.isolations import isolations
from tests.integration.runtime.moving_rig import MOVING, MovingRig, ran
from tests.integration.runtime.rig import LoopThread
from tests.redis_server import RedisServer

T1 = TrajectoryKey("default/t1")
pytestmark = pytest.mark.skipif("bwrap" not in isolations(), reason="no bubblewrap here")


@pytest.fixture
async def rig(
    runtime_redis: RedisServer,
    keys: Keys,
    tmp_path: Path,
    nodes_live_on: None,
    request: pytest.FixtureRequest,
) -> AsyncIterator[MovingRig]:
    rig = MovingRig(runtime_redis.url, keys, tmp_path)
    rig.isolation = getattr(request, "param", "bwrap")
    node = await rig.start("n1")
    if not node.driver.moving.works:
        await rig.end()
        pytest.skip("environments have no whole trees here")
    yield rig
    await rig.end()


async def begin_move(rig: MovingRig, client: Any, step: str) -> asyncio.Event:
    """Begin to move t1 from n1 to n2; return in the middle of a step, with what lets it go on."""
    await ran(client, "t1", "echo 1 > a")
    await rig.start("n2")
    come, go_on = held_up(rig, "n1" if step == "pack" else "n2", step)
    rig.drain("n1")
    await come.wait()
    return go_on


def held_up(rig: MovingRig, name: str, step: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Let a node's next order of a step wait; return what says that it has come, and what lets it go on."""
    moving: Any = rig.nodes[name].driver.moving
    whole, come, go_on = getattr(moving, step), asyncio.Event(), asyncio.Event()

    async def slow(order: MoveEnvironment | ReceiveEnvironment, *rest: Any) -> None:
        come.set()
        await go_on.wait()
        await whole(order, *rest)

    setattr(moving, step, slow)
    return come, go_on


async def test_an_idle_environment_moves_and_goes_on_as_if_nothing_had_happened(rig):
    async with rig.client() as client:
        await ran(client, "t1", "echo 1 > a; echo 2 > /tmp/b", environment={"memory_bytes": 2**20})
        await rig.start("n2")
        rig.drain("n1")
        await rig.moved("t1", "n2")

        view = await ran(client, "t1", "cat a /tmp/b && echo 3 > c")
        assert (view["placement"]["node"], view["result"]["stdout"]) == ("n2", "1\n2\n")
        assert (await client.get("/trajectories/t1/files/c")).content == b"3\n"
        await client.put("/trajectories/t1/files/d", content=b"4")
        assert (await ran(client, "t1", "cat d"))["result"]["stdout"] == "4"
    assert not rig.nodes["n1"].driver._workspaces.of(T1).exists()
    assert await rig.nodes["n1"].driver.snapshots() == []
    assert rig.state.supply.nodes["n1"].moved == 1


async def test_an_action_that_waits_for_its_node_runs_on_another_one_with_its_files(rig):
    async with rig.client() as client:
        await ran(client, "t1", "echo 1 > a")
        long = asyncio.create_task(ran(client, "long", "sleep 60", cost={"cpu": 4}))
        await rig.until(lambda: rig.state.supply.ledgers["cpu:n1"].free == 0)
        waits = asyncio.create_task(ran(client, "t1", "cat a"))
        await rig.start("n2")

        view = await waits

        assert (view["placement"]["node"], view["result"]["stdout"]) == ("n2", "1\n")
        assert not long.done()
        long.cancel()


@pytest.mark.parametrize("rig", ["process"], indirect=True)
async def test_without_a_sandbox_the_workspace_moves(rig):
    async with rig.client() as client:
        await ran(client, "t1", "echo 1 > a", environment={"memory_bytes": 2**20})
        await rig.start("n2")
        rig.drain("n1")
        await rig.moved("t1", "n2")

        view = await ran(client, "t1", "cat a")
        assert (view["placement"]["node"], view["result"]["stdout"]) == ("n2", "1\n")
    assert not rig.nodes["n1"].driver._workspaces.of(T1).exists()


async def test_an_action_and_an_upload_that_arrive_in_the_middle_wait_and_then_run_there(rig):
    async with rig.client() as client:
        go_on = await begin_move(rig, client, "receive")

        action = asyncio.create_task(ran(client, "t1", "cat a"))
        upload = asyncio.create_task(client.put("/trajectories/t1/files/b", content=b"2"))
        await rig.until(lambda: rig.trajectory("t1").live)
        (waiting,) = rig.trajectory("t1").live
        why = (await client.get(f"/actions/{waiting}")).json()["waiting"]
        assert (why["code"], why["subject"]) == ("trajectory_moved", "n2")
        go_on.set()

        view = await action
        assert (view["placement"]["node"], view["result"]["stdout"]) == ("n2", "1\n")
        assert (await upload).status_code == 201
        assert (await ran(client, "t1", "cat b"))["result"]["stdout"] == "2"


@pytest.mark.parametrize("what", [PROCESS, SESSION, IN_USE])
async def test_what_is_used_stays_and_says_why(rig, what):
    async with rig.client() as client:
        stays = "sleep 600 > /dev/null 2>&1 &" if what == PROCESS else "true"
        await ran(client, "t1", stays)
        if what == SESSION:
            opened = await client.post(
                "/trajectories/t1/sessions", json={"name": "s", "pty": False}
            )
            assert opened.status_code == 201, opened.text
        if what == IN_USE:
            gate = rig.nodes["n1"].worker._moves._gate
            using = gate.using(T1)
            await using.__aenter__()
        await rig.start("n2")
        rig.drain("n1")
        await rig.until(lambda: rig.trajectory("t1").stays == what)
        if what == IN_USE:
            await using.__aexit__(None, None, None)

        assert (await ran(client, "t1", "true"))["placement"]["node"] == "n1"


@pytest.mark.parametrize("killed", ["loop", "source", "target"])
@pytest.mark.parametrize("step", ["pack", "receive"])
async def test_each_party_may_be_restarted_in_the_middle(rig, killed, step):
    async with rig.client() as client:
        go_on = await begin_move(rig, client, step)

        if killed == "loop":
            rig.loop.stop()
            rig.loop = LoopThread(rig.url, rig.keys, MOVING)
            await rig.until(lambda: hasattr(rig.loop.loop, "term"))
        else:
            name = "n1" if killed == "source" else "n2"
            await rig.stop(name)
            await rig.start(name)
        go_on.set()
        # A restart of the source while the target reads from it ends the fetch: then it is tried again later.
        await rig.until(lambda: rig.trajectory("t1").move is None)
        view = await ran(client, "t1", "cat a")

    assert view["result"]["stdout"] == "1\n"
    assert view["placement"]["node"] in {"n1", "n2"}
    home = rig.trajectory("t1").node
    assert view["placement"]["node"] == home
    await rig.until(lambda: not rig.trajectory("t1").copies)
    for name, node in rig.nodes.items():
        assert node.driver._workspaces.of(T1).exists() == (name == home)


async def test_a_target_that_is_lost_leaves_the_trajectory_where_it_was(
    rig: MovingRig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("scheduler.core.state.moves.MOVE_SECONDS", 0.5)
    async with rig.client() as client:
        await begin_move(rig, client, "receive")
        await rig.stop("n2")

        view = await ran(client, "t1", "cat a")
        assert (view["placement"]["node"], view["result"]["stdout"]) == ("n1", "1\n")
        assert rig.trajectory("t1").copies == ["n2"]
        await rig.start("n2")
        await rig.until(lambda: not rig.trajectory("t1").copies)
    assert not rig.nodes["n2"].driver._workspaces.of(T1).exists()


async def test_a_trajectory_that_ends_in_the_middle_leaves_nothing_on_either_node(rig):
    async with rig.client() as client:
        go_on = await begin_move(rig, client, "receive")
        await client.post("/trajectories/t1/finish")
        await rig.until(lambda: rig.trajectory("t1").removing)
        go_on.set()
        await rig.until(lambda: T1 not in rig.state.trajectories)
    for node in rig.nodes.values():
        assert not node.driver._workspaces.of(T1).exists()
        assert await node.driver.snapshots() == []
