"""rollout_faults: each part is killed again and again under rollouts with tools; what is lost, run twice, and how long.

    python -m benchmarks.rollout_faults                        50 kills of each part; about an hour
    python -m benchmarks.rollout_faults --minutes 10           as many as fit
    python -m benchmarks.rollout_faults --only rollout --rounds 5 --no-store

Targets: 50 kills (SIGKILL) of web process, scheduler loop, rollout worker, handler process, node worker and Redis with 32
rollouts in flight: 0 rollouts lost, 0 tools run twice, service back within 5 s at p95. The first lost rollout ends the run.

lost        a rollout that did not end completed, once, with its reward and all of its turns
run twice   the steps of an agent append their numbers to a file that its last command reads; each is one action in the journal
back        seconds from the restart until a rollout that is submitted then is completed, its tool included
continued   the same until all rollouts that were in RUN at the kill have taken two further turns or ended
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from benchmarks.interruption import end_on_sigterm
from benchmarks.record import store
from benchmarks.rollouts.agents import HANDLER, SAMPLING, handlers_on_path
from benchmarks.rollouts.language_models import language_models
from benchmarks.rollouts.plans import PlannedRollout, PlannedStep
from tangram_client.aio import AsyncClient
from tests.faults.load import PATIENT
from tests.faults.rollout_audit import RolloutAudit
from tests.faults.rollout_load import POOL, TASK, TOKENS, RolloutLoad, declare_backends
from tests.faults.system import System

BACK_SECONDS: Final = 5.0
WITHIN_SECONDS: Final = 240.0
PARTS: Final = ("web", "loop", "rollout", "handler", "node", "redis")
_LISTED: Final = 1000


class Killed(NamedTuple):
    """One kill."""

    part: str
    back_seconds: float
    continued_seconds: float


@contextmanager
def a_system(directory: Path, workers: int) -> Iterator[System]:
    """Start a system whose rollout workers have the handler of the benchmarks."""
    path = {"PYTHONPATH": handlers_on_path(directory / "packages")}
    system = System(directory, cpus=4000, environment=path, rollout_workers=workers)
    try:
        system.start()
        yield system
    finally:
        system.stop()


def kill(system: System, part: str) -> Killed:
    """Kill a part, start it again, and wait until rollouts are served and those in RUN go on."""
    before = asyncio.run(_turns(system))
    if part == "handler":
        os.kill(_handler_process(system).pid, signal.SIGKILL)
    else:
        killed = system.leader() if part == "loop" else system[part]
        killed.kill()
        killed.start()
    began = time.monotonic()
    back, continued = asyncio.run(_served_and_continued(system, before, began))
    return Killed(part, back, continued)


def _handler_process(system: System) -> psutil.Process:
    """Return the oldest handler process of the rollout workers: it has most of the rollouts."""
    workers = [system[name] for name in system.parts if name.startswith("rollout")]
    children = [each for part in workers for each in psutil.Process(part.pid).children()]
    handlers = [each for each in children if "rollout.worker.handler_process" in each.cmdline()]
    return min(handlers, key=lambda each: each.create_time())


async def _served_and_continued(
    system: System, before: dict[str, int], began: float
) -> tuple[float, float]:
    async with (
        asyncio.timeout(WITHIN_SECONDS),
        AsyncClient(system.address.url, system.token, retry=PATIENT) as client,
    ):
        return await asyncio.gather(_probe(client, began), _until_continued(client, before, began))


async def _probe(client: AsyncClient, began: float) -> float:
    """Return when a rollout with one tool is completed that is submitted now."""
    plan = PlannedRollout("probe", "probe", (PlannedStep(TOKENS, 0.01),), 1.0)
    [rollout] = await client.rollouts.submit(
        TASK, HANDLER, [{"id": plan.name, "data": {"question": plan.question, "reward": 1.0}}],
        llm=POOL, sampling=SAMPLING, environment={}, priority=1,
    )  # fmt: skip
    found = await client.rollouts.wait(rollout, tokens=False)
    assert found.outcome == "completed", f"a probe is {found.outcome}: {found.reason}"
    return time.monotonic() - began


async def _until_continued(client: AsyncClient, before: dict[str, int], began: float) -> float:
    """Return when each rollout of ``before`` has more turns or has ended."""
    left = set(before)
    while left:
        await asyncio.sleep(0.1)
        now = {each.id: each.turns for each in await client.rollouts.list(limit=_LISTED)}
        # Reports are up to a second old: one more turn may be from before the kill.
        left = {each for each in left if now.get(each, sys.maxsize) <= before[each] + 1}
    return time.monotonic() - began


async def _turns(system: System) -> dict[str, int]:
    """Return the rollouts in RUN, with their turns."""
    async with AsyncClient(system.address.url, system.token, retry=PATIENT) as client:
        live = await client.rollouts.list(limit=_LISTED)
    return {each.id: each.turns for each in live if each.stage == "run" and each.turns}


def play(
    system: System, audit: RolloutAudit, parts: Sequence[str], options: argparse.Namespace,
    deadline: float,
) -> tuple[int, list[Killed]]:  # fmt: skip
    """Kill each part so many times in the middle of one load, then count all of it."""
    load = RolloutLoad(options.in_flight)
    load.start(system)
    load.wait_until_in_flight()
    found: list[Killed] = []
    for _ in range(options.rounds_per_count):
        for part in parts:
            system.wait_until_whole()
            found.append(kill(system, part))
            print(f"{part:8} back after {found[-1].back_seconds:5.2f} s,"
                  f" all went on after {found[-1].continued_seconds:5.2f} s", flush=True)  # fmt: skip
        if time.monotonic() > deadline:
            break
    load.end_early()
    load.join()
    audit.check_rollouts(load)  # ends the run at the first lost rollout or doubled tool
    return len(load.accepted), found


def rows_of(killed: Sequence[Killed]) -> dict[str, dict[str, float]]:
    """Return the times by part."""
    times: dict[str, list[Killed]] = defaultdict(list)
    for each in killed:
        times[each.part].append(each)
    return {
        part: {
            "kills": len(each),
            "back_p95_seconds": _p95([one.back_seconds for one in each]),
            "back_max_seconds": round(max(one.back_seconds for one in each), 2),
            "continued_p95_seconds": _p95([one.continued_seconds for one in each]),
        }
        for part, each in times.items()
    }


def _p95(values: list[float]) -> float:
    return round(sorted(values)[min(len(values) - 1, int(0.95 * len(values)))], 2)


def missed(rows: dict[str, dict[str, float]], parts: Sequence[str], rounds: int) -> list[str]:
    """Return the targets that were missed: times, and parts that were killed less often than asked."""
    late = [
        f"{part}: back after {row['back_p95_seconds']:g} s"
        for part, row in rows.items()
        if row["back_p95_seconds"] > BACK_SECONDS
    ]
    kills = {part: int(rows[part]["kills"]) if part in rows else 0 for part in parts}
    return [*late, *(f"{part}: {n} of {rounds} kills" for part, n in kills.items() if n < rounds)]


def campaign(options: argparse.Namespace) -> dict[str, Any]:
    """Kill until all rounds are played, or the time is over."""
    deadline = time.monotonic() + 60 * options.minutes
    parts = options.only or PARTS
    killed: list[Killed] = []
    accepted = 0
    with (
        tempfile.TemporaryDirectory(prefix="tangram-faults-") as directory,
        language_models([1.0], slots=4 * options.in_flight, token_seconds=0.005) as models,
        a_system(Path(directory), options.workers) as system,
    ):
        declare_backends(system, models.addresses, 4 * options.in_flight)
        audit = RolloutAudit(system)
        while len(killed) < options.rounds * len(parts) and time.monotonic() < deadline:
            count, found = play(system, audit, parts, options, deadline)
            accepted += count
            killed += found
            print(f"{accepted} rollouts so far: none lost, no tool run twice", flush=True)
        repairs = dict(audit.repairs)
    return {
        "in_flight": options.in_flight,
        "rollouts": accepted,
        # The audit ends the campaign at the first one that is not 0.
        "lost": 0,
        "tools_run_twice": 0,
        "repairs": repairs,
        "rows": rows_of(killed),
    }


def main() -> int:
    """Measure, print, store; return 1 when a target is missed."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="kills of each part")
    parser.add_argument("--rounds-per-count", type=int, default=5, help="between two audits")
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1, help="rollout workers")
    parser.add_argument("--only", choices=PARTS, action="append", help="default: all parts")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no round after that")
    parser.add_argument("--store", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    result = campaign(options)
    print(result)
    if options.store:
        print("stored in", store("rollout_faults", result))
    late = missed(result["rows"], options.only or PARTS, options.rounds)
    print("missed:" if late else "all targets are met", *late)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
