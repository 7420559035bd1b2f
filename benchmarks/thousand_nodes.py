"""thousand_nodes: 1,000 node workers of 256 cores against the real loop, Redis, web process, projector and pages.

``python -m benchmarks.thousand_nodes [--nodes 1000] [--cores 256] [--trajectories 100000] [--rate 2000] [--seconds 1800]``. The nodes are played by one process
(`played_nodes`): the protocol is real, the commands sleep. A client submits batches at the rate; the journal is read as it grows.
A standby loop runs. At a third of the time 10 % of the nodes are lost at once and return later; at two thirds the leader is
killed. Everything shares this machine, also the nodes and the client, which are counted apart.

Grants are divided by phase (`phase_of`): ``steady``; ``loss`` and ``lost_nodes`` while nodes are lost, the latter on those nodes;
``failover``. A grant belongs to a phase if the action waited during it. The target is compared with all of them.
``to_grant`` ends when the loop begins the pass that grants; ``to_journal`` when the grant is written, which is when the node may read it.

Targets: acceptance to grant p99 ≤ 50 ms; loop ≤ 70 % of a core; fail-over ≤ 5 s; no action is lost, none ends twice; pages usable.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, Final, NamedTuple, cast

import numpy as np
import psutil
import redis

from benchmarks.interruption import end_on_sigterm
from benchmarks.process_costs import Costs, part_of
from benchmarks.record import quantiles, store
from benchmarks.stack import Stack, tangram
from domain.decisions import Finish, Grant
from domain.events import ActionSubmitted
from domain.redis_keys import Keys
from scheduler.runtime.redis.clients import connect
from scheduler.runtime.redis.journal import START, Journal
from tangram_web.lib.env import embedded_redis_url

BATCH: Final = 200
#: Commands sleep for so long, evenly distributed.
SLEEPS: Final = (1.0, 9.0)
PAGES: Final = ("/", "/workers/", "/queues/", "/cpu/", "/actions/")
#: Time for what was accepted to end, after the last submission.
SETTLE_SECONDS: Final = 120.0


#: A phase lasts for so long after its cause is over: what waited meanwhile is worked off.
AFTER_SECONDS: Final = 5.0


class Granted(NamedTuple):
    """A grant: when its action was accepted, and when it was granted and written, in wall-clock seconds."""

    accepted: float
    granted: float
    written: float
    node: str


@dataclass
class Incidents:
    """When nodes were lost and had returned, and when the leader was killed and had a successor; wall clock."""

    lost: float = inf
    returned: float = inf
    killed: float = inf
    succeeded: float = inf

    def phase_of(self, grant: Granted, lost_nodes: set[str]) -> str:
        """Return the phase in which an action waited for its grant."""
        if grant.written >= self.killed and grant.accepted <= self.succeeded + AFTER_SECONDS:
            return "failover"
        if grant.written >= self.lost and grant.accepted <= self.returned + AFTER_SECONDS:
            return "lost_nodes" if grant.node in lost_nodes else "loss"
        return "steady"


def by_phase(grants: Iterable[Granted], incidents: Incidents, lost: set[str]) -> dict[str, Any]:
    """Return how long grants took, for each phase."""
    phases: dict[str, list[Granted]] = defaultdict(list)
    for grant in grants:
        phases[incidents.phase_of(grant, lost)].append(grant)
    return {
        phase: {
            "grants": len(found),
            "to_grant": quantiles([each.granted - each.accepted for each in found]),
            "to_journal": quantiles([each.written - each.accepted for each in found]),
            "longest_seconds": round(max(each.written - each.accepted for each in found), 2),
        }
        for phase, found in sorted(phases.items())
    }


class JournalWatch(threading.Thread):
    """Reads the journal as it grows: when each action was accepted, granted and ended."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.client = connect(url)
        #: Journal time at which a web process had it on disk.
        self.submitted: dict[str, float] = {}
        self.grants: list[Granted] = []
        self.ends: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        #: The longest pause before an entry of another epoch, and when that entry was written.
        self.fail_over_seconds, self.succeeded = 0.0, inf
        self.over = threading.Event()

    def run(self) -> None:
        """Read until `over`."""
        journal, after, at, epoch = Journal(self.client, Keys()), START, 0.0, 0
        while not self.over.is_set():
            for entry_id, entry in journal.read(after, count=500, block_seconds=0.5):
                after, written = entry_id, float(entry_id.partition("-")[0]) / 1000
                if entry.epoch != epoch and epoch:
                    self.fail_over_seconds = max(self.fail_over_seconds, written - at)
                    self.succeeded = written
                epoch, at = entry.epoch, written
                for event in entry.events:
                    if isinstance(event, ActionSubmitted):
                        self.submitted[event.action.id] = entry.at - event.lag_seconds
                for decision in entry.decisions:
                    if isinstance(decision, Grant) and decision.action_id in self.submitted:
                        accepted, node = self.submitted[decision.action_id], decision.node or ""
                        self.grants.append(Granted(accepted, entry.at, written, node))
                    elif isinstance(decision, Finish):
                        self.ends[decision.action_id] += 1
                        self.outcomes[decision.outcome] += 1
        journal.close()


class Submitter(threading.Thread):
    """Submits batches at a rate, each trajectory's actions in turn."""

    def __init__(self, stack: Stack, rate: float, trajectories: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self._stack, self._rate, self._trajectories, self._seconds = (
            stack,
            rate,
            trajectories,
            seconds,
        )
        self.accepted: list[str] = []
        self.refused: Counter[int] = Counter()

    def run(self) -> None:
        """Submit for the time."""
        connection = http.client.HTTPConnection(self._stack.host, self._stack.port, timeout=60)
        head = {"Authorization": f"Bearer {self._stack.token}", "Content-Type": "application/json"}
        chance, began, number = np.random.default_rng(1), time.monotonic(), 0
        while (elapsed := time.monotonic() - began) < self._seconds:
            if number * BATCH > elapsed * self._rate:
                time.sleep(number * BATCH / self._rate - elapsed)
            first = number * BATCH
            actions = [
                {
                    "task": "t",
                    "kind": "exec",
                    "trajectory": f"trj-{(first + n) % self._trajectories}",
                    "cost": {"cpu": [1, 2, 4]},
                    "exec": {"command": ["sleep", f"{chance.uniform(*SLEEPS):.2f}"]},
                }
                for n in range(BATCH)
            ]
            number += 1
            try:
                connection.request(
                    "POST", "/api/v1/actions/batch", json.dumps({"actions": actions}), head
                )
                answer = connection.getresponse()
                body = json.loads(answer.read())
            except (OSError, http.client.HTTPException):
                connection.close()
                self.refused[0] += BATCH
                continue
            if answer.status != 202:
                self.refused[answer.status] += BATCH
                continue
            for item in body["items"]:
                if item["status"] == 202:
                    self.accepted.append(item["id"])
                else:
                    self.refused[item["status"]] += 1


class Reader(threading.Thread):
    """Opens pages, one after another, as a person does."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(daemon=True)
        self._address = f"http://{stack.host}:{stack.port}"
        self.seconds: list[float] = []
        self.failed = 0
        self.over = threading.Event()

    def run(self) -> None:
        """Open pages until `over`."""
        while not self.over.wait(1.0):
            for page in PAGES:
                began = time.perf_counter()
                try:
                    with urllib.request.urlopen(f"{self._address}{page}", timeout=30) as answer:
                        answer.read()
                except OSError:
                    self.failed += 1
                else:
                    self.seconds.append(time.perf_counter() - began)


def _standby(stack: Stack) -> subprocess.Popen[bytes]:
    """Start a second loop beside the stack's."""
    loop = _process(stack, "loop")
    words = [word.replace("loop@", "loop-2@") for word in loop.cmdline()]
    return subprocess.Popen(words, env=loop.environ(), cwd=loop.cwd(), stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)  # fmt: skip


def _process(stack: Stack, part: str) -> psutil.Process:
    family = psutil.Process(stack.process.pid).children(recursive=True)
    return next(process for process in family if part_of(process) == part)


def _passes(client: redis.Redis) -> dict[str, Any]:
    """Return how many passes of the leader took at most so many milliseconds, and their mean, since it began."""
    signs = cast("dict[bytes, bytes]", client.hgetall(Keys().workers))
    leader = next(sign for sign in map(json.loads, signs.values()) if "pass_counts" in sign)
    bounds = [f"{bound * 1e3:g}" for bound in leader["pass_bounds"]]
    counts = dict(zip([*bounds, "more"], leader["pass_counts"], strict=True))
    mean = leader["pass_sum"] / max(1, sum(leader["pass_counts"]))
    return {"mean_ms": round(mean * 1e3, 3), "up_to_ms": counts}


def _until(watch: JournalWatch, accepted: list[str], seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and any(name not in watch.ends for name in accepted):
        time.sleep(0.5)


def _lose_nodes(
    nodes: subprocess.Popen[bytes], options: argparse.Namespace, incidents: Incidents
) -> None:
    """Lose a tenth of the nodes at once, and let them return."""
    assert nodes.stdin is not None and nodes.stdout is not None  # noqa: PT018 - pipes
    incidents.lost = time.time()
    for line in (f"lose {options.nodes // 10}\n", "return\n"):
        nodes.stdin.write(line.encode())
        nodes.stdin.flush()
        nodes.stdout.readline()
        incidents.returned = time.time()
        time.sleep(options.seconds / 12)


def measure(options: argparse.Namespace, stack: Stack, folder: str) -> dict[str, Any]:
    """Play the scenario, and return what was measured."""
    url = embedded_redis_url(stack.home / "redis")
    standby = _standby(stack)
    command = [sys.executable, "-m", "benchmarks.played_nodes", url, "tangram", folder,
               f"--nodes={options.nodes}", f"--cores={options.cores}"]  # fmt: skip
    began = time.monotonic()
    nodes = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert nodes.stdout is not None  # a pipe
    nodes.stdout.readline()
    joined = time.monotonic() - began
    watch = JournalWatch(url)
    submitter = Submitter(stack, options.rate, options.trajectories, options.seconds)
    reader = Reader(stack)
    costs, played = Costs(stack.process.pid), psutil.Process(nodes.pid).cpu_times()
    began = time.monotonic()
    for thread in (watch, submitter, reader):
        thread.start()
    time.sleep(options.seconds / 3)
    cpu, _ = costs.since()
    first_third = time.monotonic() - began
    passes, incidents = _passes(watch.client), Incidents()
    _lose_nodes(nodes, options, incidents)
    time.sleep(max(0.0, began + 2 * options.seconds / 3 - time.monotonic()))
    incidents.killed = time.time()
    _process(stack, "loop").kill()
    submitter.join()
    _until(watch, submitter.accepted, SETTLE_SECONDS)
    reader.over.set()
    watch.over.set()
    watch.join()
    after = psutil.Process(nodes.pid).cpu_times()
    nodes.kill()
    standby.terminate()
    standby.wait(30)
    incidents.succeeded = watch.succeeded
    lost_names = {f"played-{number}" for number in range(options.nodes // 10)}
    open_ones = [name for name in submitter.accepted if name not in watch.ends]
    return {
        "nodes": options.nodes,
        "cores": options.nodes * options.cores,
        "trajectories": options.trajectories,
        "join_seconds": round(joined, 1),
        "accepted": len(submitter.accepted),
        "per_second": round(len(submitter.accepted) / options.seconds, 1),
        "refused": dict(submitter.refused),
        "to_grant": quantiles([each.granted - each.accepted for each in watch.grants]),
        "phases": by_phase(watch.grants, incidents, lost_names),
        "passes_of_first_third": passes,
        "cpu_of_a_core": {
            part: round(spent / first_third, 3) for part, spent in sorted(cpu.items())
        },
        "cpu_of_played_nodes": round((after.user - played.user) / options.seconds, 3),
        "fail_over_seconds": round(watch.fail_over_seconds, 2),
        "not_ended": len(open_ones),
        "ended_twice": sum(times > 1 for times in watch.ends.values()),
        "outcomes": {str(outcome): times for outcome, times in watch.outcomes.items()},
        "pages": {**quantiles(reader.seconds), "failed": reader.failed},
    }


def main() -> int:
    """Measure, print and store."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--cores", type=int, default=256)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=2000.0)
    parser.add_argument("--seconds", type=float, default=1800.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tangram-played-") as folder, tangram() as stack:
        found = measure(options, stack, folder)
    print(json.dumps(found, indent=1))
    print("stored in", store("thousand_nodes", found, f"rate-{options.rate:g}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
