"""Faults of a cluster, planted in real parts, are found over REST: a loop, node workers, a keeper, and Redis."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import Any, TypeVar

import msgspec
import pytest

from contract.node_group_reports import NodeGroupReport
from domain.codec import encode
from domain.inventory import ResourceInventory
from domain.node_groups import NodeGroupSpec
from domain.principals import Scope
from domain.protection import Protection, UidMode
from domain.version import VERSION
from managers.cpu.apptainer import program
from managers.cpu.fake import FakeDriver
from managers.launch.launcher import Instance, InstanceState, LaunchOrder, NodeLauncher
from managers.launch.registry import make_launcher
from scheduler.runtime.node import life_signs, machine_facts, worker
from scheduler.runtime.node.door.routes import DoorRoutes
from scheduler.runtime.node.door.server import DoorOptions, NodeDoor
from scheduler.runtime.node.worker import NodeOptions, NodeWorker
from scheduler.runtime.node_groups.keeper import GroupPorts, NodeGroupKeeper
from scheduler.runtime.redis.clients import connect, connect_async
from scheduler.runtime.redis.door_addresses import DoorAddresses
from scheduler.runtime.redis.journal import START
from scheduler.runtime.redis.journal import Journal as RuntimeJournal
from tangram_web.doctor import door_trials, group_findings
from tangram_web.doctor.cluster_finding import ClusterFinding
from tangram_web.doctor.cluster_reading import findings_of, read_cluster
from tangram_web.lib import bus
from tangram_web.records.models import NodeRecord
from tangram_web.records.projection import project
from tests.integration.runtime.rig import CONFIG, LoopThread
from tests.redis_server import RedisServer

WITHIN_SECONDS = 120.0
T = TypeVar("T")
LIMITED = Protection("bwrap", UidMode.OWN, seccomp=True, memory="limited by control groups")


class SandboxDriver(FakeDriver):
    """A driver that reports a sandbox."""

    isolation = "bwrap"
    protection = LIMITED


class Proxy:
    """The network between a node and Redis: a port that leads to its socket until a firewall closes it."""

    def __init__(self, redis_socket: Path) -> None:
        self._redis_socket = redis_socket
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """End all connections, and accept no other one."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(
            *(each.wait_closed() for each in self._writers), return_exceptions=True
        )
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, away = await asyncio.open_unix_connection(self._redis_socket)
        self._writers += [writer, away]
        await asyncio.gather(_copy(reader, away), _copy(there, writer), return_exceptions=True)


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    while piece := await source.read(65536):
        to.write(piece)
        await to.drain()


class Cluster:
    """A loop in a thread; nodes and keepers in the event loop of another one."""

    def __init__(self, server: RedisServer, directory: Path) -> None:
        self.server, self.directory = server, directory
        self.keys = bus.keys()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leader = LoopThread(server.url, self.keys, CONFIG)
        self._until(lambda: bus.redis_client().hlen(self.keys.workers) > 0)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something among the nodes."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WITHIN_SECONDS)

    def node(
        self,
        name: str,
        *,
        protection: Protection = LIMITED,
        state: Path | None = None,
        url: str = "",
        door: Mapping[str, str] = {},
        **options: Any,
    ) -> None:
        """Start a node, and have its row written as soon as it has joined."""
        folder = state or self.directory / name
        given = {"version": VERSION, **options}
        cores = {"cpu": ResourceInventory(4000), "memory": ResourceInventory(2**30)}
        named = NodeOptions(name, "default", folder, cores, disk_folders=[folder], **given)

        async def start() -> None:
            client = connect_async(url or self.server.url)
            driver = SandboxDriver()
            driver.isolation, driver.protection = protection.isolation, protection
            address = DoorOptions(folder / "door", **door)
            opened = NodeDoor(DoorAddresses(client, self.keys), name, address, DoorRoutes())
            started = NodeWorker(client, self.keys, named, [driver], door=opened)

            async def live() -> None:
                try:
                    await started.run()
                finally:
                    await client.aclose()

            self._tasks[name] = asyncio.create_task(live())
            await asyncio.wait_for(started.joined.wait(), WITHIN_SECONDS)

        folder.mkdir(exist_ok=True)
        self.run(start())
        self.until_row(name, "ready")

    def until_row(self, node: str, state: str) -> None:
        """Write the rows of the journal until a node has this state."""
        with connect(self.server.url) as client:
            journal = RuntimeJournal(client, self.keys)

            def holds() -> bool:
                project(journal.read(START, count=10_000))
                return NodeRecord.objects.filter(name=node, state=state).exists()

            self._until(holds)

    def keep(self, group: NodeGroupSpec, find_launcher: Callable[..., NodeLauncher]) -> None:
        """Declare the group ``g``, and start a keeper."""
        config = msgspec.structs.replace(CONFIG, revision=2, node_groups={"g": group})
        bus.redis_client().set(self.keys.config, encode(config))

        async def start() -> None:
            client = connect_async(self.server.url)
            ports = GroupPorts(find_launcher, lambda node, spec: (["worker", node], {}), self)
            keeper = NodeGroupKeeper(client, self.keys, ports, pass_seconds=0.05)

            async def keeps() -> None:
                try:
                    await keeper.run()
                finally:
                    await client.aclose()

            self._tasks["keeper"] = asyncio.create_task(keeps())

        self.run(start())

    def until_reported(self, holds: Callable[[NodeGroupReport], object]) -> None:
        """Wait until the keeper has reported the group as stated."""

        def has() -> bool:
            stored = bus.redis_client().hget(self.keys.node_group_reports, "g")
            return stored is not None and bool(
                holds(msgspec.json.decode(stored, type=NodeGroupReport))
            )

        self._until(has)

    def find(self, **more: Any) -> list[ClusterFinding]:
        return findings_of(read_cluster(**more))

    def only(self, **more: Any) -> tuple[str, str, str, str]:
        (finding,) = self.find(**more)
        assert finding.cure
        return finding.severity.value, finding.kind, finding.subject, finding.sentence

    async def reasons(self) -> Mapping[str, str]:
        return {}

    async def drain(self, node: str, reason: str) -> None:
        raise AssertionError(f"{node} is drained: {reason}")

    async def resume(self, node: str) -> None:
        raise AssertionError(f"{node} is resumed")

    def close(self) -> None:
        for name in list(self._tasks):
            self.run(self.end(name))
        self._leader.stop()
        self.run(asyncio.sleep(0))  # closed transports say so in the next turn
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WITHIN_SECONDS)
        self.loop.close()

    async def end(self, name: str) -> None:
        task = self._tasks.pop(name)
        task.cancel()
        await asyncio.wait({task})

    @staticmethod
    def _until(holds: Callable[[], object]) -> None:
        deadline = time() + WITHIN_SECONDS
        while not holds():
            assert time() < deadline
            threading.Event().wait(0.01)


@pytest.fixture
def cluster(
    defaults: None,
    redis_bus: Any,
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Cluster]:
    # A busy machine can exceed the usual times.
    monkeypatch.setattr(life_signs, "ALIVE_SECONDS", 600.0)
    monkeypatch.setattr(door_trials, "TRY_SECONDS", WITHIN_SECONDS)
    monkeypatch.setattr(door_trials, "ALL_SECONDS", WITHIN_SECONDS)
    made = Cluster(redis_server, tmp_path)
    yield made
    made.close()


@contextmanager
def closed_port() -> Iterator[int]:
    """A port at which nothing listens, and nothing else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 32 MiB."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "test", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_healthy_cluster_has_no_finding(cluster: Cluster, caller: Callable[..., Any]) -> None:
    cluster.node("n1")
    cluster.node("n2", door={"listen": "127.0.0.1:0", "advertise": "127.0.0.1:0"})

    answer = caller(Scope.READ).get("/api/v1/cluster/checks")

    assert answer.status_code == 200
    assert answer.json() == {
        "in_order": True,
        "examined": {"nodes": 2, "doors": 2, "parts": 1, "groups": 0},
        "findings": [],
    }


def test_a_token_of_one_project_sees_no_cluster(
    defaults: None, redis_bus: Any, caller: Callable[..., Any]
) -> None:
    client = caller(Scope.READ, project="default")
    assert client.get("/api/v1/cluster/checks").status_code == 403


def test_a_cluster_without_a_loop_is_not_in_order(
    defaults: None, redis_bus: Any, caller: Callable[..., Any]
) -> None:
    answer = caller(Scope.READ).get("/api/v1/cluster/checks").json()
    assert answer["in_order"] is False
    assert [each["kind"] for each in answer["findings"]] == ["part_dead"]


def test_a_node_with_a_shifted_clock_is_found(cluster: Cluster) -> None:
    cluster.node("n1", clock=lambda: time() + 93.0)
    severity, kind, subject, sentence = cluster.only()
    assert (severity, kind, subject) == ("fault", "clock", "n1")
    assert "93 s ahead of the loop's" in sentence


def test_a_web_process_with_a_shifted_clock_is_found(cluster: Cluster) -> None:
    severity, kind, subject, sentence = cluster.only(clock=lambda: time() - 20.0)
    assert (severity, kind, subject) == ("fault", "clock", f"web@{socket.gethostname()}")
    assert "20 s behind the loop's" in sentence


@pytest.mark.parametrize(("version", "severity"), [("0.2.0", "note"), ("0.3.1", "fault")])
def test_a_node_of_another_version_is_found(cluster: Cluster, version: str, severity: str) -> None:
    cluster.node("n1", version=version)
    found, kind, subject, sentence = cluster.only()
    assert (found, kind, subject) == (severity, "version", "n1")
    assert f"is {version}, and the loop's is {VERSION}" in sentence


def test_a_worker_of_an_earlier_release_is_not_known_and_no_fault(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(_: life_signs.LifeSigns) -> None:
        return None

    monkeypatch.setattr(life_signs.LifeSigns, "_machine_now", nothing)
    cluster.node("n1")
    assert cluster.only()[:3] == ("unknown", "machine", "n1")


def test_a_door_on_a_closed_port_is_found(cluster: Cluster) -> None:
    with closed_port() as port:
        cluster.node("n1", door={"listen": "127.0.0.1:0", "advertise": f"127.0.0.1:{port}"})
        severity, kind, subject, sentence = cluster.only()
    assert (severity, kind, subject) == ("fault", "door", "n1")
    assert f"cannot be reached at 127.0.0.1:{port}: Connection refused" in sentence


def test_a_door_whose_packets_a_firewall_drops_is_found(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_trials, "TRY_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # nothing accepts
        port = silent.getsockname()[1]
        cluster.node("n1", door={"listen": "127.0.0.1:0", "advertise": f"127.0.0.1:{port}"})
        assert "no answer within 0.2 s" in cluster.only()[3]


def test_a_door_that_leads_to_another_node_is_found(cluster: Cluster) -> None:
    cluster.node("n1", door={"listen": "127.0.0.1:0", "advertise": "127.0.0.1:0"})
    stored = bus.redis_client().hget(cluster.keys.node_doors, "n1")
    address = msgspec.json.decode(stored or b"")["address"]
    cluster.node("n2", door={"listen": "127.0.0.1:0", "advertise": address})
    _, kind, subject, sentence = cluster.only()
    assert (kind, subject) == ("door", "n2")
    assert "is another node's" in sentence


def test_a_node_that_is_cut_off_from_redis_is_found_as_silent(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life_signs, "ALIVE_SECONDS", 2.0)
    monkeypatch.setattr(worker, "HEARTBEAT_SECONDS", 0.05)
    proxy = Proxy(cluster.server.socket)
    cluster.run(proxy.open())
    cluster.node("n1", url=f"redis://127.0.0.1:{proxy.port}")

    cluster.run(proxy.cut())
    cluster.until_row("n1", "lost")

    severity, kind, subject, sentence = cluster.only()
    assert (severity, kind, subject) == ("fault", "node_lost", "n1")
    assert "no heartbeat has reached Redis for" in sentence


def test_a_data_folder_on_a_full_disk_is_found(cluster: Cluster) -> None:
    with small_disk(cluster.directory / "disk") as disk:
        (disk / "filling").write_bytes(bytes(31 * 2**20))
        cluster.node("n1", state=disk / "n1")
        cluster._until(lambda: any(each.kind == "disk_short" for each in cluster.find()))
        severity, kind, subject, sentence = cluster.only()
        cluster.run(cluster.end("n1"))
    assert (severity, kind, subject) == ("fault", "disk_short", "n1")
    assert "of 32 MiB free" in sentence
    assert "%" in sentence


def test_control_groups_of_version_1_are_found_where_memory_is_not_limited(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mounts").write_text(f"cgroup {tmp_path}/memory cgroup rw,memory 0 0\n")
    (tmp_path / "cgroup").write_text("4:memory:/\n")
    read = machine_facts.cgroup_facts
    monkeypatch.setattr(machine_facts, "cgroup_facts", lambda: read(tmp_path))
    watched = Protection("bwrap", memory="watched, without control groups: Permission denied")
    cluster.node("n1", protection=watched)
    severity, kind, subject, sentence = cluster.only()
    assert (severity, kind, subject) == ("fault", "cgroups", "n1")
    assert "of version 1" in sentence


def test_a_machine_that_forbids_user_namespaces_is_found(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "max_user_namespaces").write_text("0\n")
    monkeypatch.setattr(
        machine_facts,
        "forbidden_namespaces",
        lambda for_root: program.forbidden_namespaces(tmp_path, for_root=for_root),
    )
    cluster.node("n1")
    severity, kind, subject, sentence = cluster.only()
    assert (severity, kind, subject) == ("fault", "sandbox", "n1")
    assert "max_user_namespaces is 0" in sentence


def test_a_node_without_the_sandbox_that_its_pool_requires_is_found(cluster: Cluster) -> None:
    cluster.node("n1", protection=Protection("process", missing="bubblewrap does not work here"))
    severity, kind, subject, sentence = cluster.only()
    assert (severity, kind, subject) == ("fault", "sandbox", "n1")
    assert "gets no actions, as pool default requires a sandbox" in sentence


def test_an_engine_that_does_not_answer_is_found(cluster: Cluster) -> None:
    with closed_port() as port:
        options = {"hosts": "127.0.0.1", "port": str(port), "config_file": "/dev/null"}
        cluster.keep(NodeGroupSpec("ssh", count=1, options=options), make_launcher)
        cluster.until_reported(lambda report: report.error)
        severity, kind, subject, sentence = cluster.only()
    assert (severity, kind, subject) == ("fault", "engine", "g")
    assert "ssh does not reach 127.0.0.1" in sentence


def test_what_an_engine_lacks_is_found_by_its_launcher(cluster: Cluster) -> None:
    with small_disk(cluster.directory / "disk") as disk:
        spec = NodeGroupSpec("processes", count=0, options={"folder": str(disk)})
        cluster.keep(spec, make_launcher)
        cluster.until_reported(lambda report: report.problems)
        severity, kind, subject, sentence = cluster.only()
    assert (severity, kind, subject) == ("fault", "engine", "g")
    assert str(disk) in sentence
    assert "is full: free 256 MiB" in sentence


class FullEngine:
    """An engine whose machines are all taken."""

    def __init__(self) -> None:
        self._found: list[Instance] = []

    def instances(self, installation: str, group: str) -> list[Instance]:
        return list(self._found)

    def launch(self, order: LaunchOrder) -> None:
        self._found.append(Instance(order.name, InstanceState.PENDING, "job 7", reason="Resources"))

    def end(self, installation: str, group: str, name: str) -> None:
        raise AssertionError(f"{name} is ended")

    def problems(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing is open."""


def test_a_group_that_stays_below_its_count_is_found(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FullEngine()
    cluster.keep(NodeGroupSpec("slurm", count=2), lambda *_: engine)
    cluster.until_reported(lambda report: len(report.instances) == 2)
    assert cluster.find() == []

    monkeypatch.setattr(group_findings, "UNSEEN_LAUNCH_SECONDS", 0.0)

    severity, kind, subject, sentence = cluster.only()
    assert (severity, kind, subject) == ("fault", "node_group", "g")
    assert "has 0 of 2 nodes" in sentence
    assert "g-1 is pending (Resources) and has not joined" in sentence


def test_groups_whose_keeper_has_ended_are_found(cluster: Cluster) -> None:
    cluster.keep(NodeGroupSpec("slurm", count=0), lambda *_: FullEngine())
    cluster.until_reported(lambda report: report.at)
    assert cluster.find() == []
    cluster.run(cluster.end("keeper"))
    assert cluster.only()[:2] == ("fault", "node_group_keeper")
