"""redis failover: a master of Redis is killed or isolated under load, and Sentinel promotes a replica; what is lost, and how long grants pause.

A master, its replicas and three sentinels are processes of this machine, with the settings of docs/operations.md. The parts reach the
master through a proxy that asks Sentinel who it is, as HAProxy or a service of the cluster does: Tangram itself has one address. In each
round the master fails while trainers submit without a pause; then it is there again, as a replica. ``--isolate``: servers and
sentinels reach it no more, and Tangram does, until another one is promoted: what it answers meanwhile is thrown away.

``--replicas-to-write 1`` and ``--wait-replicas 1`` are what docs/operations.md asks for; there are two replicas then. The result says
how many accepted actions were lost and how many ran twice, and how many answered verbs of an operator were lost: with
``--wait-replicas 1`` all must be 0. ``submit_ms`` is the time of a submission before the first fault.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import redis
from redis.sentinel import Sentinel

from benchmarks.interruption import end_on_sigterm
from benchmarks.record import quantiles, store_parts
from benchmarks.steady_operator import SteadyOperator
from benchmarks.steady_trainers import SteadyTrainers
from benchmarks.upgrade_nodes import until
from tangram_client import RetryPolicy
from tests.faults.audit import Audit
from tests.faults.network import Network
from tests.faults.system import System
from tests.ports import free_port

NAME: Final = "tangram"
DOWN_AFTER_MS: Final = 2000
#: From the kill of a master until actions end again.
PAUSE_SECONDS: Final = 15.0
#: Actions of each trainer before the first fault, for the cost of a confirmation.
CALM_ACTIONS: Final = 20
#: Trainers that wait longer for an end wait for what was lost.
PATIENCE_SECONDS: Final = 120.0
#: Of each action, so that one whose order or report was lost ends, too.
TIMEOUT_SECONDS: Final = 30.0
#: The SDK's own policy gives up after 6 to 11 s of refusals.
PATIENT: Final = RetryPolicy(attempts=100, total_seconds=120.0)


class Replicated:
    """Servers and three sentinels; `url` leads to the present master."""

    def __init__(self, directory: Path, servers: int, replicas_to_write: int) -> None:
        self._directory, self._to_write = directory, replicas_to_write
        self._program = shutil.which("redis-server") or shutil.which("valkey-server")
        if self._program is None:
            raise SystemExit("redis-server is not installed: apt-get install redis-server")
        self.ports = [free_port() for _ in range(servers)]
        #: Port at which others reach a server → the network to it, and its own port.
        self._lanes: dict[int, tuple[Network, int]] = {}
        self._sentinels = [free_port() for _ in range(3)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._over = threading.Event()

    def start(self) -> None:
        """Start all, and the proxy; return once the replica follows."""
        for port in self.ports:
            lane = free_port()
            self._lanes[lane] = Network(("127.0.0.1", lane), ("127.0.0.1", port)), port
        first, *others = self.ports
        reached = next(iter(self._lanes))
        self.start_server(first)
        for port in others:
            self.start_server(port, "--replicaof", f"127.0.0.1 {reached}")
        until(self.is_whole, "the replicas follow")
        for port in self._sentinels:
            file = self._directory / f"sentinel-{port}.conf"
            file.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {self._directory}\nprotected-mode no\n"
                f"sentinel monitor {NAME} 127.0.0.1 {reached} 2\n"
                f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}\n"
                f"sentinel failover-timeout {NAME} 10000\n"
            )
            self._run(port, str(file), "--sentinel")
        places = [("127.0.0.1", port) for port in self._sentinels]
        self._asked: Any = Sentinel(places, socket_timeout=1)  # type: ignore[no-untyped-call]
        until(self._knows_all, "sentinels know each other")
        self._port = free_port()
        self._proxy = Network(("127.0.0.1", self._port), ("127.0.0.1", first))
        threading.Thread(target=self._follow, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def start_server(self, port: int, *more: str) -> None:
        """Start a server on its data."""
        folder = self._directory / str(port)
        folder.mkdir(exist_ok=True)
        options = {
            "port": port, "bind": "127.0.0.1", "dir": folder, "appendonly": "yes", "appendfsync": "always",
            "maxmemory-policy": "noeviction", "min-replicas-to-write": self._to_write, "min-replicas-max-lag": 2,
            "repl-diskless-sync-delay": 0, "replica-announce-ip": "127.0.0.1", "replica-announce-port": self._lane_of(port),
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self._run(port, *words, *more)

    def kill_master(self) -> int:
        """Kill the master; return its port."""
        port = self.master()
        assert port is not None
        self._processes[port].send_signal(signal.SIGKILL)
        self._processes[port].wait()
        return port

    def isolate_master(self) -> int:
        """Let no server and no sentinel reach the master; return its port."""
        port = self.master()
        assert port is not None
        self._lanes[self._lane_of(port)][0].lose()
        return port

    def reconnect(self, port: int) -> None:
        """Let others reach a server again."""
        lane = self._lanes[self._lane_of(port)][0]
        lane.cut()
        lane.restore()

    def _lane_of(self, port: int) -> int:
        return next(lane for lane, (_, behind) in self._lanes.items() if behind == port)

    def master(self) -> int | None:
        """Return the port of the master, as sentinels have it; None while they have none that answers."""
        try:
            return self._lanes[int(self._asked.discover_master(NAME)[1])][1]
        except redis.RedisError:
            return None

    def is_whole(self) -> bool:
        """Whether all other servers follow the master."""
        for port in self.ports:
            try:
                facts: Any = redis.Redis(port=port, socket_timeout=2).info("replication")
            except redis.RedisError:
                return False
            if facts["role"] == "master" and facts["connected_slaves"] == len(self.ports) - 1:
                states = [facts[f"slave{n}"]["state"] for n in range(len(self.ports) - 1)]
                return states == ["online"] * len(states)
        return False

    def stop(self) -> None:
        """End all."""
        self._over.set()
        for process in self._processes.values():
            process.kill()
            process.wait()
        for lane, _ in self._lanes.values():
            lane.close()
        if hasattr(self, "_proxy"):
            self._proxy.close()

    def _run(self, port: int, *words: str) -> None:
        with (self._directory / f"{port}.log").open("ab") as log:
            command = [str(self._program), *words]
            self._processes[port] = subprocess.Popen(command, stdout=log, stderr=log)

    def _knows_all(self) -> bool:
        try:
            facts: list[Any] = [redis.Redis(port=p).sentinel_master(NAME) for p in self._sentinels]
        except redis.RedisError:
            return False
        return all(
            f["num-other-sentinels"] == 2 and f["num-slaves"] == len(self.ports) - 1 for f in facts
        )

    def _follow(self) -> None:
        present = self.ports[0]
        while not self._over.wait(0.1):
            port = self.master()
            if port is not None and port != present:
                present = port
                self._proxy.target = ("127.0.0.1", port)
                self._proxy.cut()


def play(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Play all rounds, and count."""
    # With one replica a new master that needs one would accept nothing until the former one is back.
    count = 3 if options.replicas_to_write or options.wait_replicas or options.isolate else 2
    servers = Replicated(directory / "servers", count, options.replicas_to_write)
    (directory / "servers").mkdir()
    servers.start()
    environment = {
        "TANGRAM_REDIS_URL": servers.url, "TANGRAM_NODE_ISOLATION": "process", "TANGRAM_JOURNAL_SECONDS": "7200",
        "TANGRAM_REDIS_WAIT_REPLICAS": str(options.wait_replicas),
    }  # fmt: skip
    system = System(directory / "system", cpus=200, environment=environment)
    system.redis_url = servers.url
    try:
        system.start()
        audit = Audit(system)
        load = SteadyTrainers(
            [system.address.url],
            system.token,
            directory / "ran",
            options.trainers,
            retry=PATIENT,
            timeout_seconds=TIMEOUT_SECONDS,
        )
        load.start()
        load.wait_for(CALM_ACTIONS * options.trainers)
        calm = quantiles(load.submit_seconds), quantiles(load.took)
        operator = SteadyOperator(system.address.url, system.token, "upgrade", PATIENT)
        operator.start()
        pauses, stall = _rounds(servers, load, options)
        operator.stop(PATIENCE_SECONDS)
        audit.replay()
        return {
            "rounds": options.rounds,
            "trainers": options.trainers,
            "fault": "isolate" if options.isolate else "kill",
            "servers": count,
            "wait_replicas": options.wait_replicas,
            "replicas_to_write": options.replicas_to_write,
            "down_after_seconds": DOWN_AFTER_MS / 1000,
            **_counted(load, audit),
            "verbs": len(operator.answered),
            "verbs_lost": len(operator.lost(system)),
            "stalled": stall,
            "errors_of_the_sdk": len(load.failures) + len(operator.failures),
            "pause_seconds": [round(each, 2) for each in pauses],
            "submit_ms": calm[0],
            "action_ms": calm[1],
        }
    finally:
        system.stop()
        servers.stop()


def _counted(load: SteadyTrainers, audit: Audit) -> dict[str, int]:
    """Return what became of the actions."""
    accepted = load.accepted
    lost = [each for each in accepted if not audit.finishes[each]]
    return {
        "accepted": len(accepted),
        "lost": len(lost),
        "lost_with_an_outcome": sum(each in load.outcomes for each in lost),
        "other_outcome": sum(
            audit.outcomes.get(each, outcome) != outcome for each, outcome in load.outcomes.items()
        ),
        "ran_twice": len(load.ran_twice()),
        "ended_twice": sum(count > 1 for count in audit.finishes.values()),
        "not_completed": sum(each != "completed" for each in load.outcomes.values()),
        "without_an_end": len(accepted - load.outcomes.keys()),
    }


def _rounds(
    servers: Replicated, load: SteadyTrainers, options: argparse.Namespace
) -> tuple[list[float], str]:
    """Play the rounds; return the pauses, and what did not end where something was lost."""
    load.patience_seconds = PATIENCE_SECONDS
    pauses: list[float] = []
    try:
        for number in range(options.rounds):
            pauses += [_round(servers, load, number, isolate=options.isolate)]
        load.wait_for(2 * load.trainers)
        load.stop()
    except SystemExit as error:
        return pauses, str(error)
    return pauses, ""


def _round(servers: Replicated, load: SteadyTrainers, number: int, *, isolate: bool) -> float:
    """Take the master away once; return the longest time without an end of an action."""
    load.wait_for(4 * load.trainers)
    began = time.monotonic()
    port = servers.isolate_master() if isolate else servers.kill_master()
    until(lambda: servers.master() not in (None, port), "the replica is the master")
    load.wait_for(load.trainers)
    pause = load.longest_stall(began, time.monotonic())
    if isolate:
        servers.reconnect(port)
    else:
        servers.start_server(port)
    until(servers.is_whole, "the former master follows")
    print(f"round {number}: {pause:.2f} s, errors: {load.failures}", flush=True)
    return pause


def main() -> int:
    """Play, print, store; return 1 when grants paused too long, or a confirmed action was lost."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trainers", type=int, default=16)
    parser.add_argument("--replicas-to-write", type=int, default=0, choices=(0, 1))
    parser.add_argument("--wait-replicas", type=int, default=0, choices=(0, 1))
    parser.add_argument(
        "--isolate", action="store_true", help="isolate the master, and do not kill it"
    )
    parser.add_argument("--store", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tangram-failover-") as directory:
        result = play(Path(directory), options)
    print(result)
    if options.store:
        fault = result["fault"]
        part = f"{fault}, {options.replicas_to_write} to write, {options.wait_replicas} confirm"
        print("stored in", store_parts("redis_failover", {part: result}))
    late = max(result["pause_seconds"], default=PATIENCE_SECONDS) > PAUSE_SECONDS
    harmed = options.wait_replicas and (
        result["lost"]
        or result["verbs_lost"]
        or result["ran_twice"]
        or result["other_outcome"]
        or result["stalled"]
    )
    missed = ["an accepted action or verb was lost, or an action ran twice"] if harmed else []
    missed += [f"a pause of more than {PAUSE_SECONDS:g} s"] if late else []
    print(f"missed: {'; '.join(missed)}" if missed else "all targets are met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
