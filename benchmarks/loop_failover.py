"""loop failover: from ``kill -9`` of the leading loop to the first grant of the next one, by a warm and by a cold standby.

``python -m benchmarks.loop_failover [--trajectories 100000] [--nodes 1000] [--cores 256] [--rate 200] [--seconds 30] [--rounds 5]``.
Events make a state of open trajectories, which the loops restore from a real Redis; loops are processes, as a worker hosts them.
The nodes are played by this process: it reports for them what the journal grants. Actions come at a rate throughout. In turn
the standby keeps its state level with the journal, and does not (as before it could). A round kills the leader after the
seconds of load, during which the journal behind its snapshot grows.

Target: at most 5 s with 100,000 trajectories, the expiry of the lease included; no action is lost, none ends twice.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from benchmarks.interruption import end_on_sigterm
from benchmarks.record import store
from domain.action import Outcome
from domain.codec import JournalEntry, encode, pack_fields
from domain.decisions import Finish, Grant
from domain.events import (
    ActionFinished,
    ActionStarted,
    ActionSubmitted,
    ConfigApplied,
    Event,
    NodeJoined,
    TimeAdvanced,
)
from domain.redis_keys import Keys
from managers.registry import load
from scheduler.core.machine import Machine
from scheduler.core.state import snapshot
from scheduler.runtime.liveness import process_name
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.loop.scheduler_loop import SchedulerLoop
from scheduler.runtime.loop.stored_snapshot import StoredSnapshot
from scheduler.runtime.loop.watchdog import Watchdog, WatchedLoop
from scheduler.runtime.redis.clients import connect
from scheduler.runtime.redis.journal import START, Journal
from tangram_web.lib.garbage import collect_rarely
from tests.builders import a_config, a_node, an_action
from tests.redis_server import RedisServer

KEYS: Final = Keys("failover")
BATCH: Final = 200
TARGET_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 300.0


def lead(url: str, kind: str) -> None:
    """Run a loop until this process is killed."""
    gc.disable()
    client, name = connect(url), process_name("loop")
    watchdog = Watchdog(WatchedLoop(url, KEYS.hung_pass, KEYS.leader, name))
    watchdog.start()
    leadership = Leadership(client, KEYS, name)
    loop = SchedulerLoop(client, KEYS, load().make_ledger, leadership, a_config(), watch=watchdog)
    if kind == "cold":
        loop._standby.follow = lambda: False  # type: ignore[method-assign]
    thread = threading.Thread(target=loop.run, args=(threading.Event(),))
    thread.start()
    collect_rarely()
    thread.join()


def fill(client: Any, options: argparse.Namespace) -> None:
    """Store the snapshot of a system in which each trajectory is open and has had one action, and its first entry."""
    machine = Machine(load().make_ledger, a_config())
    now = time.time() - 60.0
    nodes = [a_node(f"n{n}", cpus=options.cores, memory_bytes=2**40) for n in range(options.nodes)]
    machine.handle(
        ConfigApplied(at=now, config=a_config()), *(NodeJoined(at=now, node=each) for each in nodes)
    )
    for first in range(0, options.trajectories, BATCH):
        numbers = range(first, min(first + BATCH, options.trajectories))
        granted = _grants(machine.handle(*(_submission(f"first-{n}", n, now) for n in numbers)))
        machine.handle(*(report for grant in granted for report in _reports(grant, now)))
    begins: list[Event] = [TimeAdvanced(at=now)]
    entry = JournalEntry(1, 0, now, 0.0, START, begins, machine.handle(*begins))
    entry_id = client.xadd(KEYS.journal, {"e": encode(entry)}).decode()
    state = StoredSnapshot(entry_id, START, 1, snapshot.dump(machine))
    client.set(KEYS.snapshot, msgspec.msgpack.encode(state))
    for node in nodes:
        client.set(KEYS.alive(node.name), node.incarnation)


def _submission(name: str, trajectory: int, at: float = 0.0) -> ActionSubmitted:
    action = an_action(name, cost={"cpu": [1, 2, 4]}, trajectory=f"trj-{trajectory}")
    return ActionSubmitted(at=at, action=action, accepted_at=time.time())


def _reports(grant: Grant, at: float = 0.0) -> list[Event]:
    assert grant.node is not None
    return [
        ActionStarted(at=at, action_id=grant.action_id, node=grant.node, attempt=grant.attempt),
        ActionFinished(
            at=at, action_id=grant.action_id, node=grant.node, outcome=Outcome.COMPLETED,
            attempt=grant.attempt, execution_seconds=0.2,
        ),
    ]  # fmt: skip


def _grants(decisions: list[Any]) -> list[Grant]:
    return [each for each in decisions if isinstance(each, Grant)]


class Load(threading.Thread):
    """Submits actions at a rate, in turn of the trajectories, as web processes do."""

    def __init__(self, url: str, rate: float, trajectories: int) -> None:
        super().__init__(daemon=True)
        self._client, self._rate, self._trajectories = connect(url), rate, trajectories
        self.accepted = 0
        self.over = threading.Event()

    def run(self) -> None:
        """Submit until `over`."""
        began, each = time.monotonic(), max(1, round(self._rate / 20))
        for number in count():
            if self.over.wait(max(0.0, began + number * each / self._rate - time.monotonic())):
                return
            names = range(self.accepted, self.accepted + each)
            messages = [encode(_submission(f"act-{n}", n % self._trajectories)) for n in names]
            packed = pack_fields(messages)
            self._client.xadd(KEYS.inbox, dict(zip(packed[::2], packed[1::2], strict=True)))
            self.accepted += each


class Nodes(threading.Thread):
    """Reads the journal as it grows, reports for the nodes, and notes when each epoch first granted."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._client = connect(url)
        self.ends: Counter[str] = Counter()
        #: Epoch → instants of its first entry and of its first grant.
        self.entered: dict[int, float] = {}
        self.granted: dict[int, float] = {}
        self.over = threading.Event()

    def run(self) -> None:
        """Read until `over`."""
        journal, after = Journal(self._client, KEYS), START
        while not self.over.is_set():
            reports: list[Event] = []
            for entry_id, entry in journal.read(after, count=200, block_seconds=0.5):
                after, at = entry_id, int(entry_id.partition("-")[0]) / 1000
                self.entered.setdefault(entry.epoch, at)
                for grant in _grants(entry.decisions):
                    self.granted.setdefault(entry.epoch, at)
                    reports += _reports(grant)
                self.ends.update(
                    each.action_id for each in entry.decisions if isinstance(each, Finish)
                )
            if reports:
                packed = pack_fields(encode(report) for report in reports)
                self._client.xadd(KEYS.inbox, dict(zip(packed[::2], packed[1::2], strict=True)))
        journal.close()


class Loops:
    """The processes of the leader and the standby."""

    def __init__(self, url: str, client: Any) -> None:
        self._url, self._client = url, client

    def start(self, kind: str) -> subprocess.Popen[bytes]:
        """Start a loop."""
        command = [
            sys.executable,
            "-m",
            "benchmarks.loop_failover",
            "--lead",
            kind,
            "--url",
            self._url,
        ]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def until(self, role: str, process: subprocess.Popen[bytes], level: bool = False) -> None:
        """Wait until the sign of life of a process says so."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            rows = [json.loads(row) for row in self._client.hvals(KEYS.workers)]
            own: dict[str, Any] = next((row for row in rows if row["pid"] == process.pid), {})
            behind = own.get("behind_seconds")
            if own.get("role") == role and (not level or (behind is not None and behind < 1.0)):
                return
            time.sleep(0.1)
        raise SystemExit(f"no process became {role}")


def _round(
    kind: str, leader: Any, loops: Loops, nodes: Nodes, client: Any, seconds: float
) -> tuple[Any, dict[str, float]]:
    """Let a standby replace the leader; return it, and what was measured."""
    began = time.monotonic()
    standby = loops.start(kind)
    loops.until("standby", standby, level=kind == "warm")
    ready = time.monotonic() - began
    processes = [psutil.Process(each.pid) for each in (leader, standby)]
    before = [each.cpu_times() for each in processes]
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    leads, stands = [
        (now.user + now.system - then.user - then.system) / took
        for now, then in zip([each.cpu_times() for each in processes], before, strict=True)
    ]
    memory, led = [each.memory_info().rss / 2**20 for each in processes]
    epoch = int(client.get(KEYS.epoch))
    lease, killed = client.pttl(KEYS.leader) / 1000, time.time()
    leader.kill()
    leader.wait()
    until = time.monotonic() + PATIENCE_SECONDS
    while epoch + 1 not in nodes.granted and time.monotonic() < until:
        time.sleep(0.01)
    granted = nodes.granted[epoch + 1] - killed
    return standby, {
        "to_grant_seconds": round(granted, 2),
        "lease_seconds": round(lease, 2),
        "behind_the_lease_seconds": round(granted - lease, 2),
        "ready_seconds": round(ready, 1),
        "cpu_of_leader": round(leads, 3),
        "cpu_of_standby": round(stands, 3),
        "memory_of_leader_mib": round(memory),
        "memory_of_standby_mib": round(led),
    }


def measure(options: argparse.Namespace, server: RedisServer) -> dict[str, Any]:
    """Play the rounds, and return what was measured."""
    client = connect(server.url)
    fill(client, options)
    loops = Loops(server.url, client)
    rounds: dict[str, list[dict[str, float]]] = {"warm": [], "cold": []}
    leader = loops.start("warm")
    try:
        loops.until("loop", leader)
        nodes, submitted = Nodes(server.url), Load(server.url, options.rate, options.trajectories)
        nodes.start()
        submitted.start()
        for number in range(2 * options.rounds):
            kind = ("warm", "cold")[number % 2]
            leader, found = _round(kind, leader, loops, nodes, client, options.seconds)
            print(kind, found, flush=True)
            rounds[kind].append(found)
        submitted.over.set()
        submitted.join()
        until = time.monotonic() + PATIENCE_SECONDS
        while len(nodes.ends) < submitted.accepted and time.monotonic() < until:
            time.sleep(0.2)
        nodes.over.set()
        nodes.join()
    finally:
        leader.kill()
    return {
        "trajectories": options.trajectories,
        "nodes": options.nodes,
        "cores": options.nodes * options.cores,
        "per_second": options.rate,
        "snapshot_mib": round(client.strlen(KEYS.snapshot) / 2**20, 1),
        **{kind: {**_summary(found), "rounds": found} for kind, found in rounds.items()},
        "accepted": submitted.accepted,
        "not_ended": submitted.accepted - len(nodes.ends),
        "ended_twice": sum(times > 1 for times in nodes.ends.values()),
    }


def _summary(found: list[dict[str, float]]) -> dict[str, float]:
    medians = {name: round(statistics.median(each[name] for each in found), 3) for name in found[0]}
    return {**medians, "to_grant_most_seconds": max(each["to_grant_seconds"] for each in found)}


def main() -> int:
    """Measure, print and store; return 1 when the target is missed."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--cores", type=int, default=256)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lead", default="", help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.lead:
        lead(options.url, options.lead)
    with tempfile.TemporaryDirectory(prefix="tangram-failover-") as folder:
        server = RedisServer(Path(folder)).start()
        try:
            found = measure(options, server)
        finally:
            server.stop()
    print(json.dumps(found, indent=1))
    print("stored in", store("loop_failover", found))
    missed = found["warm"]["to_grant_most_seconds"] > TARGET_SECONDS
    return 1 if missed or found["not_ended"] or found["ended_twice"] else 0


if __name__ == "__main__":
    sys.exit(main())
