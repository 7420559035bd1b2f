"""The pool of handler processes starts few, ends what is not used, and leaves none."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from domain.rollouts import Stage
from rollout.core.steps import Callback, Invoke
from rollout.testing.local_handlers import LocalProgram
from rollout.worker import handler_pool
from rollout.worker.handler_pool import COMPANY, HandlerPool, ProcessEnded
from rollout.worker.process_launch import HandlerProgram


class Launcher:
    """Starts programs of this process, once its gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.programs: list[LocalProgram] = []

    async def __call__(self) -> HandlerProgram:
        await self.gate.wait()
        self.programs.append(LocalProgram())
        return self.programs[-1]

    @property
    def running(self) -> int:
        return sum(not program.ended for program in self.programs)


async def answer(method: str, arguments: list[Any]) -> Any:
    raise AssertionError("no handler asks for anything here")


async def until(holds: Any) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0)


async def test_jobs_that_arrive_at_once_share_the_processes_there_may_be():
    launcher = Launcher()
    pool = HandlerPool(3, launcher)

    await asyncio.gather(*(pool.job(answer) for _ in range(100)))

    assert pool.processes == len(launcher.programs) == 3
    await pool.close()
    assert launcher.running == 0


@pytest.mark.parametrize("crashes", [1, 2, 5])
async def test_rollouts_in_quarantine_have_less_company(crashes):
    launcher = Launcher()
    pool = HandlerPool(1, launcher)
    company = COMPANY[min(crashes, 2)]

    jobs = [
        await pool.job(answer, crashes) for _ in range(handler_pool.QUARANTINE_PROCESSES * company)
    ]
    late = asyncio.ensure_future(pool.job(answer, crashes))
    await asyncio.sleep(0)

    assert pool.processes == handler_pool.QUARANTINE_PROCESSES
    assert not late.done()
    jobs[0].close()
    assert (await asyncio.wait_for(late, 60)).number
    await pool.close()


async def test_a_process_that_is_not_used_ends(monkeypatch):
    monkeypatch.setattr(handler_pool, "IDLE_SECONDS", 0.0)
    launcher = Launcher()
    pool = HandlerPool(1, launcher)
    first, second = await pool.job(answer), await pool.job(answer)

    first.close()
    await asyncio.sleep(0)
    assert pool.processes == 1
    second.close()

    await until(lambda: launcher.running == 0)
    assert pool.processes == 0


async def test_a_process_that_is_used_again_in_time_stays(monkeypatch):
    monkeypatch.setattr(handler_pool, "IDLE_SECONDS", 0.01)
    launcher = Launcher()
    pool = HandlerPool(1, launcher)
    (await pool.job(answer)).close()
    await pool.job(answer)

    loop, waited = asyncio.get_running_loop(), asyncio.Event()
    loop.call_later(0.02, waited.set)
    await waited.wait()

    assert pool.processes == 1
    await pool.close()


async def test_a_pool_that_closes_while_a_process_starts_leaves_none():
    launcher = Launcher()
    launcher.gate.clear()
    pool = HandlerPool(1, launcher)
    job = asyncio.ensure_future(pool.job(answer))
    await asyncio.sleep(0)
    job.cancel()
    closing = asyncio.ensure_future(pool.close())
    await asyncio.sleep(0)

    launcher.gate.set()
    await asyncio.wait_for(closing, 60)

    assert len(launcher.programs) == 1
    assert launcher.running == 0


class DeafProgram:
    """A program that reads nothing."""

    def __init__(self) -> None:
        self.socket, self._theirs = socket.socketpair()
        self.killed = False

    def kill(self) -> None:
        self.killed = True

    async def end(self) -> tuple[str, int | None]:
        self._theirs.close()
        return "it was ended by signal 9", None


async def test_a_process_that_answers_no_ping_is_ended(monkeypatch, caplog):
    monkeypatch.setattr(handler_pool, "PING_SECONDS", 0.05)
    program = DeafProgram()

    async def launch() -> HandlerProgram:
        return program

    job = await HandlerPool(1, launch).job(answer)

    with pytest.raises(ProcessEnded, match="signal 9"):
        await job.invoke(Invoke(Callback.RUN, Stage.RUN), None)
    assert program.killed
    assert "answers nothing" in caplog.text
