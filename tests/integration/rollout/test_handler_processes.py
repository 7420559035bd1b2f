"""Handlers run in processes of their own: what one does to its process costs its own rollout alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from typing import Any

import psutil
import pytest
import uvloop

from domain.rollouts import RolloutOutcome
from rollout.handlers.process_options import ProcessOptions
from rollout.testing.fake_port import succeeds
from rollout.worker.handler_pool import COMPANY
from rollout.worker.process_launch import NICE, environment_of
from tests.integration.rollout.conftest import RealBench

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def waits_for(gate: asyncio.Event) -> Any:
    """Return a program of actions that end once the gate is open."""

    async def program(members: Any) -> Any:
        await gate.wait()
        return "completed", {"exit_code": 0}

    return program


async def test_rollouts_run_in_another_process(bench: RealBench):
    worker = await bench.begin()

    result = await bench.result(bench.submit("Tools"))

    assert (result.outcome, result.reward) == ("completed", 1.0)
    assert worker.processes == 1


async def test_handler_processes_yield_to_the_parts_that_answer_requests(bench: RealBench):
    """A thousand rollouts that begin at once compete for the cores with the web process and the loop."""
    await bench.begin()
    await bench.result(bench.submit("Tools"))  # its process waits for the next rollout

    # A zombie is a child of an earlier test.
    running = [
        each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE
    ]
    handlers = [each for each in running if "rollout.worker.handler_process" in each.cmdline()]
    assert handlers
    assert {each.nice() for each in handlers} == {min(19, os.nice(0) + NICE)}


def test_a_worker_runs_on_the_event_loop_that_hosts_it_in_production():
    async def work() -> list[float | None]:
        async with AsyncExitStack() as stack:
            bench = RealBench(stack)
            await bench.begin()
            made = [bench.submit("Tools"), bench.submit("Kills"), bench.submit("Parallel")]
            return [(await bench.result(each)).reward for each in made]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        # `Parallel` needs an answer that the plain program does not give.
        assert runner.run(work()) == [1.0, None, None]


async def test_a1_6_a_handler_that_ends_its_process_fails_and_the_others_complete(bench: RealBench):
    await bench.begin()
    others = [bench.submit("Tools") for _ in range(12)]
    guilty = bench.submit("Kills")

    ended = await bench.result(guilty)
    results = [await bench.result(each) for each in others]

    assert (ended.outcome, ended.reward) == (RolloutOutcome.FAILED, None)
    assert ended.reason == "RUN raised HandlerProcessEnded: it was ended by signal 9"
    assert [result.reward for result in results] == [1.0] * 12
    assert all(len(bench.port.actions(each.id)) == 5 for each in others)


async def test_after_a_crash_fewer_rollouts_share_a_process(bench: RealBench):
    """At first all, then a few, at last the guilty one alone: which one it was is known then."""
    gate = asyncio.Event()
    bench.port.program = waits_for(gate)
    await bench.begin()
    others = [bench.submit("WaitsForAnAction") for _ in range(20)]
    for each in others:
        await bench.port.has_action(each.id)
    guilty = bench.submit("Kills")

    ended = await bench.result(guilty)
    gate.set()
    results = [await bench.result(each) for each in others]

    assert ended.outcome is RolloutOutcome.FAILED
    assert [result.reward for result in results] == [1.0] * 20
    # One for all of them, those of a few, and those that the company of the guilty one moved to.
    assert len(bench.programs) <= 1 + 21 // COMPANY[1] + 1 + COMPANY[1]
    assert all(len(bench.port.actions(each.id)) == 1 for each in others)


async def test_a_handler_that_blocks_its_process_fails_and_the_others_complete(bench: RealBench):
    gate = asyncio.Event()
    bench.port.program = waits_for(gate)
    bench.blocked_seconds = 3.0
    await bench.begin()
    other = bench.submit("WaitsForAnAction")
    await bench.port.has_action(other.id)
    guilty = bench.submit("Blocks")

    ended = await bench.result(guilty)
    gate.set()

    assert ended.outcome is RolloutOutcome.FAILED
    assert ended.reason == "RUN raised HandlerProcessEnded: a handler blocked its event loop"
    assert (await bench.result(other)).reward == 1.0
    # It was named by its process: it was not tried again.
    assert [each.kind for each in bench.port.log(guilty.id)].count("artefact") == 1


async def test_a_handler_that_never_stops_ends_with_its_process(bench: RealBench, monkeypatch):
    monkeypatch.setattr("rollout.worker.handler_pool.STOP_SECONDS", 0.2)
    await bench.begin()
    rollout = bench.submit("NeverStops")
    bench.port.program = waits_for(asyncio.Event())
    await bench.port.has_action(rollout.id)

    bench.port.cancel_rollout(rollout.id)

    assert (await bench.result(rollout)).outcome is RolloutOutcome.CANCELLED
    bench.port.program = succeeds
    assert (await bench.result(bench.submit("Tools"))).reward == 1.0
    await bench.until(lambda: bench.programs[0].process.poll() is not None)


async def test_a_process_that_is_killed_is_noticed_at_once(bench: RealBench):
    """No further request has to arrive: the rollouts continue in another process."""
    gate = asyncio.Event()
    bench.port.program = waits_for(gate)
    await bench.begin()
    rollout = bench.submit("WaitsForAnAction")
    await bench.port.has_action(rollout.id)

    os.kill(bench.programs[0].process.pid, signal.SIGKILL)
    await bench.until(lambda: len(bench.programs) == 2)
    gate.set()

    assert (await bench.result(rollout)).reward == 1.0
    assert len(bench.port.actions(rollout.id)) == 1


async def test_a1_7_i7_a_worker_that_stops_ends_its_own_processes_alone(bench: RealBench):
    worker = await bench.begin()
    await bench.result(bench.submit())
    stranger = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", "input()", "-m", "rollout.worker.handler_process"],
        stdin=subprocess.PIPE,
    )
    try:
        await bench.stop(worker)

        assert bench.alive() == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate()


async def test_a_process_whose_worker_is_killed_ends(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(
        "import time\n"
        "from rollout.worker.process_launch import HandlerProcess\n"
        "program = HandlerProcess(600.0)\n"
        "print(program.process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    worker = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment_of(os.environ),
    )
    assert worker.stdout is not None
    pid = int(await asyncio.to_thread(worker.stdout.readline))
    watched = os.pidfd_open(pid)

    worker.kill()
    worker.wait()
    worker.stdout.close()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(watched, ended.set)
    async with asyncio.timeout(60):
        await ended.wait()
    asyncio.get_running_loop().remove_reader(watched)
    os.close(watched)


async def test_a_handler_sees_no_settings_and_secrets_of_tangram(bench: RealBench, monkeypatch):
    monkeypatch.setenv("TANGRAM_REDIS_URL", "redis://secret")
    monkeypatch.setenv("DJANGO_SECRET_KEY", "secret")
    monkeypatch.setenv("MODEL", "seen")
    await bench.begin()

    variables = (await bench.result(bench.submit("KnowsItsProcess"))).reason.split()

    assert "MODEL" in variables
    assert not [name for name in variables if name.startswith(("TANGRAM_", "DJANGO_"))]


async def test_a_handler_gets_the_folders_of_tokenizers_that_its_operator_allows(bench: RealBench):
    bench.options = ProcessOptions(tokenizers=("/models/a b", '/models/"c"'))
    await bench.begin()

    result = await bench.result(bench.submit("KnowsItsTokenizers"))

    assert result.reason == '/models/a b /models/"c"'


async def test_i15_64_rollouts_are_cancelled_while_their_handlers_hang(
    bench: RealBench, monkeypatch
):
    """Each handler stops when it is asked to: no limit of time ends it."""
    monkeypatch.setattr("rollout.worker.handler_pool.STOP_SECONDS", 3600.0)
    worker = await bench.begin()
    rollouts = [bench.submit("HangsInInit") for _ in range(64)]
    for each in rollouts:
        await bench.port.has_action(each.id)

    for each in rollouts:
        bench.port.cancel_rollout(each.id)
    await bench.until(lambda: worker.rollouts == 0)

    results = [await bench.result(each) for each in rollouts]
    assert {result.outcome for result in results} == {RolloutOutcome.CANCELLED}
    assert (await bench.result(bench.submit())).reward == 1.0


async def test_a_thousand_rollouts_at_once_share_few_processes(bench: RealBench):
    worker = await bench.begin(processes=2)
    rollouts = [bench.submit("noop", request={"environment": None}) for _ in range(1000)]

    results = await asyncio.gather(*(bench.result(each) for each in rollouts))

    assert [result.reward for result in results] == [1.0] * 1000
    assert worker.processes == 2
