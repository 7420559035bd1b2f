"""chaos: kills, stops, shortages and bad networks against a throw-away Tangram under load, and its invariants.

    python -m benchmarks.chaos --for 30m                 SQLite; parts reach Redis through a proxy
    python -m benchmarks.chaos --for 30m --postgres      PostgreSQL, behind a proxy too
    python -m benchmarks.chaos --for 60s --seed 7        short; the same order of disturbances for a seed

The long form of what `tests/faults` samples. In rounds: a load of trajectories, disturbances in random order
(each once before one comes again), then the count of `tests.faults.audit`. The first violation ends the run
with exit code 1; the table of invariants comes in any case.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.interruption import end_on_sigterm
from benchmarks.record import store
from domain.ids import trajectory_key
from managers.cpu.workspaces import safe_name
from tests.faults.audit import Audit
from tests.faults.disturbances import Disturbance, catalogue, play, small_disk
from tests.faults.load import Load
from tests.faults.system import System
from tests.postgres_server import PostgresServer

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
#: Disturbances in one round, between two counts.
PER_ROUND: Final = 6
DISK_MEGABYTES: Final = 512
CONTROL_SECONDS: Final = 0.25
LEASE_SECONDS: Final = 2.0
#: A lease ends so long after its time at most, disturbances included.
LEASE_LATE_SECONDS: Final = 60.0
REMOVED_WITHIN_SECONDS: Final = 120.0

INVARIANTS: Final = {
    "I1": "every accepted action ends once",
    "I2": "only what completed has a reward",
    "I3": "nothing runs twice, what completed ran",
    "I4": "granted ≤ capacity at each journal entry, and a replay decides the same",
    "I5": "a lease without its holder is freed",
    "I6": "delete racing create leaves nothing behind",
    "I7": "processes of others live on",
    "I8": "freed capacity wakes the queue: nothing waits at the end of a round",
    "I9": "a timeout counts execution alone",
    "I10": "effective cores = granted ones (tests/conformance/process)",
    "I11": "GPU memory is free before a grant (tests/integration/gpu)",
    "I12": "a restored service answers as before (tests/integration/gpu)",
    "I13": "a quota holds in any window (tests/integration/runtime/test_quotas_hold.py)",
    "I14": "every waiting action says why",
    "I15": "control endpoints answer within 250 ms between disturbances",
    "rows": "rows are as the journal",
}


def seconds_of(text: str) -> float:
    """Return seconds of ``90``, ``60s``, ``30m`` or ``1h``."""
    number, unit = (text[:-1], text[-1]) if text[-1] in _UNITS else (text, "s")
    return float(number) * _UNITS[unit]


class Bystander:
    """A process beside Tangram, named like one of an action."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["sleep", "1000000"])

    def check(self) -> None:
        assert self._process.poll() is None, "I7: a process of others was ended"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Watcher:
    """Asks the system during a round, in a thread, and keeps what it finds."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.checked: Counter[str] = Counter()
        self.violations: list[str] = []
        #: Trajectories that were finished.
        self.raced: list[str] = []
        #: Durations of `/livez` between disturbances.
        self.control_seconds: list[float] = []
        self.quiet = threading.Event()
        self._over = threading.Event()
        self._leases: dict[str, float] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join(180)

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            try:
                self._look()
            except (OSError, urllib.error.HTTPError, json.JSONDecodeError):
                continue  # a disturbance; whether service returns is checked elsewhere

    def _look(self) -> None:
        if self.quiet.is_set():
            began = time.monotonic()
            self._ask("/livez")
            if self.quiet.is_set():
                self.control_seconds.append(time.monotonic() - began)
                self.checked["I15"] += 1
        self._check_waiting()
        self._check_leases()
        self._submit_what_times_out()
        self._race_delete_against_create()

    def _check_waiting(self) -> None:
        for action in self._ask("/api/v1/actions?state=queued&limit=5").get("results", ()):
            view = self._ask(f"/api/v1/actions/{action['id']}")
            if view.get("state") == "queued":
                self.checked["I14"] += 1
                if not view.get("waiting"):
                    self.violations.append(f"I14: {action['id']} waits and does not say why")

    def _check_leases(self) -> None:
        """I5: leases that are never renewed."""
        lease = {"task": "chaos", "kind": "lease", "cost": {"cpu": 1},
                 "lease": {"ttl_seconds": LEASE_SECONDS}}  # fmt: skip
        if len(self._leases) < 3:
            self._leases[self._ask("/api/v1/actions", lease)["id"]] = time.monotonic()
        for name, since in list(self._leases.items()):
            view = self._ask(f"/api/v1/actions/{name}")
            if view.get("state") == "finished":
                self.checked["I5"] += 1
                del self._leases[name]
            elif time.monotonic() - since > LEASE_SECONDS + LEASE_LATE_SECONDS:
                self.violations.append(f"I5: the lease {name} is held for ever")
                del self._leases[name]

    def _submit_what_times_out(self) -> None:
        """I9: the audit compares the time of execution with the limit."""
        self._ask("/api/v1/actions", {
            "task": "chaos", "kind": "exec", "cost": {"cpu": 1}, "timeout_seconds": 1,
            "exec": {"command": ["sleep", "600"]},
        })  # fmt: skip

    def _race_delete_against_create(self) -> None:
        """I6: a trajectory is finished while its first action may be starting."""
        name = f"race-{len(self.raced)}"
        self._ask("/api/v1/actions", {
            "task": "chaos", "kind": "exec", "cost": {"cpu": 1}, "trajectory": name,
            "exec": {"command": ["sh", "-c", "echo made > file"]},
        })  # fmt: skip
        self._ask(f"/api/v1/trajectories/{name}/finish", {})
        self.raced.append(name)

    def _ask(self, path: str, body: object = None) -> Any:
        headers = {"Authorization": f"Bearer {self._system.token}"}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self._system.address.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read()
        return json.loads(text) if text[:1] in b"{[" else {}


class Chaos:
    """A run: rounds until the time is over or an invariant is violated."""

    def __init__(self, system: System, options: argparse.Namespace, disk: Path | None) -> None:
        self._system = system
        self._options = options
        self._audit = Audit(system)
        self._watcher = Watcher(system)
        self._bystander = Bystander()
        self._order = self._endless(catalogue(system, disk), random.Random(options.seed))
        self.played: Counter[str] = Counter()
        self.back_seconds: dict[str, list[float]] = {}
        self.accepted = self.rounds = 0
        self.violation = ""
        self._began = time.monotonic()

    @staticmethod
    def _endless(
        named: dict[str, Disturbance], order: random.Random
    ) -> Iterator[tuple[str, Disturbance]]:
        while True:
            names = list(named)
            order.shuffle(names)
            yield from ((name, named[name]) for name in names)

    def run(self) -> None:
        """Play rounds."""
        seconds = seconds_of(self._options.duration)
        try:
            while time.monotonic() - self._began < seconds:
                self._round(self._began + seconds)
        except AssertionError as error:
            self.violation = str(error) or repr(error)
            traceback.print_exc()
            sys.stderr.write(self._system.tails() + "\n")
        finally:
            self._watcher.end()
            self._bystander.end()

    def _round(self, until: float) -> None:
        load = Load(trajectories=self._options.in_flight + 20, actions=1_000_000)
        load.start(self._system)
        load.wait_until_in_flight(self._options.in_flight)
        for _ in range(PER_ROUND):
            name, disturbance = next(self._order)
            self._say(f"{name} …")
            self._watcher.quiet.clear()
            seconds = play(self._system, disturbance)
            self._watcher.quiet.set()
            self.played[name] += 1
            self.back_seconds.setdefault(name, []).append(seconds)
            self._say(f"{name}: service after {seconds:.2f} s")
            if time.monotonic() > until:
                break
        load.end_early()
        load.join(600)
        self._watcher.quiet.clear()
        assert not load.failures, load.failures[:3]
        self._audit.check(load)
        self._check_the_end(load)
        self.accepted += len(load.accepted)
        self.rounds += 1
        self._say(f"round {self.rounds}: {len(load.accepted)} actions counted, nothing violated")

    def _check_the_end(self, load: Load) -> None:
        assert not self._watcher.violations, self._watcher.violations[0]
        self._bystander.check()
        self._audit.checked["I7"] += 1
        queued = sum(pool["queued"] for pool in self._system.status()["pools"].values())
        assert queued <= 3, f"I8: {queued} actions wait though all units are free"
        self._audit.checked["I8"] += 1
        self._check_raced()

    def _check_raced(self) -> None:
        raced = list(self._watcher.raced)
        nodes = self._system.home.path / "nodes"
        until = time.monotonic() + REMOVED_WITHIN_SECONDS
        left = raced
        while left and time.monotonic() < until:
            names = {safe_name(trajectory_key("default", name)): name for name in left}
            left = [names[n] for n in names if list(nodes.glob(f"*/cpu/environments/{n}"))]
            time.sleep(0.1)
        assert not left, f"I6: finished trajectories left workspaces: {left[:5]}"
        self._audit.checked["I6"] += len(raced)

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s  {text}", flush=True)

    def table(self) -> list[dict[str, Any]]:
        """Return the invariants, how often each was checked, and its violations."""
        checked = self._audit.checked + self._watcher.checked
        slow = sum(each > CONTROL_SECONDS for each in self._watcher.control_seconds)
        rows = []
        for name, meaning in INVARIANTS.items():
            violated = 1 if self.violation.startswith(f"{name}:") else 0
            if name == "I15":
                violated = slow
            rows.append({"invariant": name, "checked": checked[name], "violated": violated,
                         "meaning": meaning})  # fmt: skip
        return rows


def show(chaos: Chaos) -> None:
    """Print what was played, and the table."""
    print(f"\n{'disturbance':32} {'times':>5} {'back s (max)':>12}")
    for name, times in sorted(chaos.played.items()):
        print(f"{name:32} {times:5} {max(chaos.back_seconds[name]):12.2f}")
    print(f"\n{'':5} {'checked':>9} {'violated':>8}")
    for row in chaos.table():
        count = row["checked"] or "not here"
        print(f"{row['invariant']:5} {count:>9} {row['violated']:8}  {row['meaning']}")
    if chaos.violation:
        print(f"\nviolated: {chaos.violation}")


def main() -> int:
    """Play, print, store; return 1 after a violation."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--for", dest="duration", default="60s", help="90, 60s, 30m, 1h")
    parser.add_argument("--seed", type=int, default=0, help="order of the disturbances")
    parser.add_argument("--in-flight", type=int, default=100)
    parser.add_argument("--postgres", action="store_true", help="PostgreSQL instead of SQLite")
    parser.add_argument(
        "--store", action=argparse.BooleanOptionalAction, default=True, help="keep the result"
    )
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tangram-chaos-")))
        postgres = PostgresServer().create() if options.postgres else None
        if postgres is not None:
            stack.callback(postgres.stop)
        disk = stack.enter_context(small_disk(folder / "disk", DISK_MEGABYTES))
        system = System(folder / "s", redis_directory=disk, postgres=postgres, proxied=True)
        stack.callback(system.stop)
        system.start()
        chaos = Chaos(system, options, disk)
        chaos.run()
    show(chaos)
    result = {
        "seconds": seconds_of(options.duration), "seed": options.seed, "accepted": chaos.accepted,
        "rounds": chaos.rounds, "played": dict(chaos.played), "violation": chaos.violation,
        "invariants": chaos.table(),
    }  # fmt: skip
    if options.store:
        print("stored in", store("chaos_postgres" if options.postgres else "chaos", result))
    return 1 if chaos.violation else 0


if __name__ == "__main__":
    sys.exit(main())
