"""A node group for real: a keeper, a loop, and node workers that are processes of this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from contract.node_group_reports import NodeGroupReport
from domain.codec import encode
from domain.events import ConfigApplied
from domain.node_groups import NodeGroupSpec
from domain.redis_keys import Keys
from managers.launch.registry import make_launcher
from scheduler.runtime.node_groups.keeper import GroupPorts, NodeGroupKeeper
from scheduler.runtime.redis.clients import connect_async
from tests.integration.runtime.rig import CONFIG, LoopThread, Rig
from tests.redis_server import RedisServer

#: Node workers start slowly on a busy machine.
WITHIN_SECONDS = 240.0


class GroupRig(Rig):
    """A leader, and keepers of the group ``g``."""

    def __init__(self, url: str, keys: Keys, directory: Path) -> None:
        super().__init__(url, keys, directory)
        self.config = CONFIG
        self.reasons_of: dict[str, str] = {}
        self.loop = LoopThread(url, keys, CONFIG)
        self._keepers: list[asyncio.Task[None]] = []

    def apply(self, **changes: Any) -> None:
        """Put a configuration in force, as the web process does."""
        drained = frozenset(self.reasons_of)
        self.config = replace(
            self.config, revision=self.config.revision + 1, drained_nodes=drained,
            finishing_nodes=drained, **changes,
        )  # fmt: skip
        self.redis.set(self.keys.config, encode(self.config))
        self.redis.xadd(self.keys.inbox, {"0": encode(ConfigApplied(config=self.config))})

    def size(self, count: int | None) -> None:
        """Declare the number of nodes; None: no group."""
        self.apply(node_groups={} if count is None else {"g": self._spec(count=count)})

    def bounds(self, least: int, most: int) -> None:
        """Declare the bounds of a number that follows what waits."""
        self.apply(node_groups={"g": self._spec(min_count=least, max_count=most)})

    def _spec(self, **fields: Any) -> NodeGroupSpec:
        options = {"folder": str(self.directory / "instances"), "own_cores": "false"}
        return NodeGroupSpec("processes", options=options, **fields)

    async def reasons(self) -> Mapping[str, str]:
        return dict(self.reasons_of)

    async def drain(self, node: str, reason: str) -> None:
        self.reasons_of.setdefault(node, reason)
        self.apply()

    async def resume(self, node: str) -> None:
        del self.reasons_of[node]
        self.apply()

    def _command(self, node: str, spec: NodeGroupSpec) -> tuple[Sequence[str], Mapping[str, str]]:
        command = [
            sys.executable, "-m", "celery", "-A", "tangram_web.celery", "--skip-checks", "worker",
            "-Q", "node", "-n", f"{node}@%h", "-P", "solo",
            "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "INFO",
        ]  # fmt: skip
        return command, {
            "TANGRAM_ROLE": "node", "TANGRAM_HOME": str(self.directory / "home"), "TANGRAM_NODE": node,
            "TANGRAM_REDIS_URL": self.url, "TANGRAM_KEY_PREFIX": self.keys.prefix,
            "TANGRAM_NODE_CPUS": "1", "TANGRAM_NODE_ISOLATION": "process", "TANGRAM_NODE_GPUS": "0",
            "TANGRAM_NODE_MEMORY_BYTES": str(2**30),
        }  # fmt: skip

    def keep(self) -> asyncio.Task[None]:
        """Start a keeper."""
        client = connect_async(self.url)
        ports = GroupPorts(make_launcher, self._command, self, installation="second")
        keeper = NodeGroupKeeper(client, self.keys, ports, pass_seconds=0.3, lease_seconds=3.0)

        async def run() -> None:
            try:
                await keeper.run()
            finally:
                await client.aclose()

        self._keepers.append(asyncio.create_task(run()))
        return self._keepers[-1]

    def report(self) -> NodeGroupReport | None:
        stored = self.redis.hget(self.keys.node_group_reports, "g")
        return None if stored is None else msgspec.json.decode(stored, type=NodeGroupReport)

    async def until(self, holds: Callable[[NodeGroupReport | None], object]) -> None:
        """Wait until the report is as stated."""
        async with asyncio.timeout(WITHIN_SECONDS):
            while not holds(self.report()):
                await asyncio.sleep(0.05)

    async def has(self, *names: str) -> None:
        """Wait until these instances are listed, with nodes that take work."""
        await self.until(
            lambda report: (
                report is not None
                and [each.name for each in report.instances] == list(names)
                and report.ready == len(names)
            )
        )

    async def end(self) -> None:
        self.size(None)
        if not self._keepers or self._keepers[-1].done():
            self.keep()
        await self.until(lambda report: report is None)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.wait(self._keepers)
        await super().end()


@pytest.fixture
async def groups(runtime_redis: RedisServer, keys: Keys, tmp_path: Path) -> AsyncIterator[GroupRig]:
    rig = GroupRig(runtime_redis.url, keys, tmp_path)
    yield rig
    await rig.end()


def step(trajectory: str, *command: str) -> dict[str, Any]:
    return {
        "task": "t", "trajectory": trajectory, "kind": "exec", "cost": {"cpu": 1}, "exec": {"command": command}
    }  # fmt: skip


async def test_a_group_grows_runs_actions_and_shrinks_without_interrupting_a_trajectory(
    groups: GroupRig,
) -> None:
    groups.size(2)
    groups.keep()
    await groups.has("g-1", "g-2")
    async with groups.client() as client:
        # A trajectory on each node: they hold a core each meanwhile.
        posted = [
            await client.post(
                "/actions", json=step(f"t{n}", "sh", "-c", f"echo {n} > file; sleep 1")
            )
            for n in (1, 2)
        ]
        done = [
            (await client.get(f"/actions/{each.json()['id']}?wait=120")).json() for each in posted
        ]
        assert [each["outcome"] for each in done] == ["completed"] * 2
        of = {each["placement"]["node"]: n for n, each in enumerate(done, 1)}
        assert set(of) == {"g-1", "g-2"}

        groups.size(1)
        await groups.until(lambda report: any(each.drained for each in report.instances))  # type: ignore[union-attr]
        assert set(groups.reasons_of) == {"g-2"}
        leaving = f"t{of['g-2']}"
        # It is in the middle of its trajectory: its steps go on there, and others go elsewhere.
        again = await client.post("/actions?wait=120", json=step(leaving, "cat", "file"))
        assert again.json()["placement"]["node"] == "g-2"
        assert again.json()["result"]["stdout"] == f"{of['g-2']}\n"
        other = await client.post("/actions?wait=120", json=step("t3", "true"))
        assert other.json()["placement"]["node"] == "g-1"
        assert [each.name for each in groups.report().instances] == ["g-1", "g-2"]  # type: ignore[union-attr]

        await client.post(f"/trajectories/{leaving}/finish")
        await groups.has("g-1")
        stays = await client.post("/actions?wait=120", json=step(f"t{of['g-1']}", "cat", "file"))
        assert stays.json()["result"]["stdout"] == f"{of['g-1']}\n"
        # The name tells engines which instances are ours; a restored copy of this Tangram has another one.
        assert list((groups.directory / "instances").glob("*/second/g/g-1/order.json"))
        # The group is deleted at the end of the test, which waits for trajectories.
        for name in (f"t{of['g-1']}", "t3"):
            await client.post(f"/trajectories/{name}/finish")
    # The next node of this name is a new one.
    await groups.until(lambda report: report is not None and report.launched == ["g-1"])
    assert groups.reasons_of == {}


async def test_another_keeper_goes_on_and_replaces_a_node_whose_shape_has_changed(
    groups: GroupRig,
) -> None:
    groups.size(1)
    first = groups.keep()
    await groups.until(lambda report: report is not None and bool(report.launched))
    first.cancel()
    await asyncio.wait([first])
    groups.keep()
    await groups.has("g-1")
    report = groups.report()
    assert report is not None
    assert report.instances[0].restarts == 0

    async with groups.client() as client:
        await client.post("/actions?wait=120", json=step("t1", "sh", "-c", "echo kept > file"))
        groups.apply(node_groups={"g": groups._spec(count=1, labels={"disk": "ssd"})})
        await groups.until(lambda report: "g-1" in groups.reasons_of)
        # Its successor takes actions by then; the trajectory goes on where its environment is.
        again = await client.post("/actions?wait=120", json=step("t1", "cat", "file"))
        assert (again.json()["placement"]["node"], again.json()["result"]["stdout"]) == ("g-1", "kept\n")  # fmt: skip
        other = await client.post("/actions?wait=120", json=step("t2", "true"))
        assert other.json()["placement"]["node"] == "g-2"
        report = groups.report()
        assert report is not None
        assert report.rollout == "1 of 2 instances have the new shape; g-1 lets its trajectories finish"  # fmt: skip
        await client.post("/trajectories/t1/finish")
        await groups.has("g-2")
        await client.post("/trajectories/t2/finish")
    assert groups.report().rollout == ""  # type: ignore[union-attr]


async def test_a_node_whose_processes_were_killed_is_launched_again_with_its_workspaces(
    groups: GroupRig,
) -> None:
    groups.size(1)
    groups.keep()
    await groups.has("g-1")
    async with groups.client() as client:
        await client.post("/actions?wait=120", json=step("t1", "sh", "-c", "echo kept > file"))
        (before,) = groups.report().instances  # type: ignore[union-attr]
        os.kill(int(before.handle.removeprefix("pid ")), signal.SIGKILL)
        await groups.until(
            lambda report: (
                report is not None
                and [each.handle for each in report.instances if each.joined]
                not in ([], [before.handle])
            )
        )
        # The former worker's sign of life may last for a moment: what is granted to it runs again.
        body = step("t1", "cat", "file") | {"replay_safe": True}
        again = (await client.post("/actions?wait=120", json=body)).json()
        await client.post("/trajectories/t1/finish")
    assert (again["result"]["stdout"], again["placement"]["node"]) == ("kept\n", "g-1")


async def test_a_group_with_bounds_grows_by_what_the_scheduler_says_waits(groups: GroupRig) -> None:
    groups.bounds(1, 2)
    groups.keep()
    await groups.has("g-1")
    async with groups.client() as client:
        # Long by their declaration: a node that starts meanwhile helps.
        posted = [
            await client.post(
                "/actions", json=step(f"t{n}", "sleep", "2") | {"duration_seconds": 600}
            )
            for n in range(8)
        ]
        grown: list[NodeGroupReport] = []

        def has_grown(report: NodeGroupReport | None) -> bool:
            if report is not None and report.wanted == 2:
                grown.append(report)
            return bool(grown)

        await groups.until(has_grown)
        estimate = grown[0].estimate
        assert estimate is not None
        assert estimate.reason.startswith("1 more node would lower the mean ACT by ")
        await groups.has("g-1", "g-2")
        for number, each in enumerate(posted):
            done = (await client.get(f"/actions/{each.json()['id']}?wait=120")).json()
            assert done["outcome"] == "completed"
            await client.post(f"/trajectories/t{number}/finish")
