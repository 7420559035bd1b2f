"""Rollouts in quarantine: places there are few, and no rollout keeps a place or a lease while it waits for the other."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from domain.rollouts import Rollout
from rollout.testing.local_handlers import LocalProgram
from rollout.worker import handler_pool
from rollout.worker.handler_pool import HandlerPool
from rollout.worker.worker import RolloutWorker
from tests.unit.rollout.conftest import Bench, places


class CrashingBench:
    """A worker whose handler programs can be ended, and actions that wait until the test lets them end."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.programs: list[LocalProgram] = []
        self._gates: dict[str, asyncio.Event] = {}
        bench.port.program = self._program

    async def start(self) -> RolloutWorker:
        pool = HandlerPool(1, self._launch)
        bench = self.bench
        worker = RolloutWorker(
            bench.port, places(), 100, pool=pool, now=bench.now, pause=bench.pause
        )
        return await bench.run(worker)

    def crash(self) -> None:
        """End the first program, as the worker sees it: the connection to it ends."""
        self.programs[0].socket.shutdown(socket.SHUT_RDWR)

    def hold(self, trajectory: str) -> None:
        """Let actions in a trajectory wait."""
        self._gates[trajectory] = asyncio.Event()

    def free(self) -> None:
        """End all actions."""
        for gate in self._gates.values():
            gate.set()

    async def _launch(self) -> LocalProgram:
        self.programs.append(LocalProgram())
        return self.programs[-1]

    async def _program(self, members: Any) -> Any:
        if (gate := self._gates.get(members["trajectory"])) is not None:
            await gate.wait()
        return "completed", {"exit_code": 0}


@pytest.fixture
async def crashing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> CrashingBench:
    """A worker with one place in quarantine."""
    monkeypatch.setattr(handler_pool, "COMPANY", (1_000_000, 1, 1))
    monkeypatch.setattr(handler_pool, "QUARANTINE_PROCESSES", 1)
    made = CrashingBench(bench)
    await made.start()
    return made


def held(bench: Bench, rollouts: list[Rollout]) -> int:
    return sum(len(bench.port.leases(each.id)) for each in rollouts)


async def test_a_rollout_with_the_last_place_and_one_with_the_last_lease_both_complete(
    bench: Bench, crashing: CrashingBench
):
    in_run, in_eval = bench.submit("Tools"), bench.submit("Tools")
    crashing.hold(f"{in_run.id}-run")
    crashing.hold(f"{in_eval.id}-eval")
    await bench.port.has_action(in_run.id, 2)
    await bench.port.has_action(in_eval.id, 5)
    bench.port.limit_leases(1)

    crashing.crash()
    await bench.until(lambda: len(crashing.programs) == 2)
    crashing.free()

    results = [await bench.result(each) for each in (in_run, in_eval)]
    assert [result.reward for result in results] == [1.0, 1.0]


async def test_rollouts_that_wait_for_a_place_hold_no_lease(bench: Bench, crashing: CrashingBench):
    rollouts = [bench.submit("WaitsForAnAction") for _ in range(5)]
    for each in rollouts:
        crashing.hold(f"{each.id}-run")
        await bench.port.has_action(each.id)
    assert held(bench, rollouts) == 5

    crashing.crash()
    await bench.until(lambda: held(bench, rollouts) == 1)
    crashing.free()

    results = [await bench.result(each) for each in rollouts]
    assert [result.reward for result in results] == [1.0] * 5
    assert all(len(bench.port.actions(each.id)) == 1 for each in rollouts)


async def test_the_stage_after_a_crash_shares_a_process_again(
    bench: Bench, crashing: CrashingBench
):
    rollouts = [bench.submit("Tools") for _ in range(3)]
    for each in rollouts:
        crashing.hold(f"{each.id}-run")
        await bench.port.has_action(each.id, 2)
    crashing.crash()
    await bench.until(lambda: len(crashing.programs) == 2)
    crashing.free()

    results = [await bench.result(each) for each in rollouts]

    assert [result.reward for result in results] == [1.0] * 3
    # One process, one for each RUN, and one for all of EVAL.
    assert len(crashing.programs) == 5
