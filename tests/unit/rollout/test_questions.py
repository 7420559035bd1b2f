"""Handlers are asked from outside while RUN lasts, also after a crash of their process; errors keep their types."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from domain.errors import Conflict, NotFound, TangramError, Unavailable
from rollout.worker.worker import RolloutWorker
from tests.unit.rollout import odd_handlers
from tests.unit.rollout.conftest import Bench, handler_reached


async def asked(worker: RolloutWorker, rollout: Any, method: str = "ask", n: int = 1) -> Any:
    """Return an answer; a question that may be asked again is, as web processes do."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await worker.ask(rollout.id, method, {"n": n})
            except (Unavailable, NotFound):
                await asyncio.sleep(0)


async def test_a_handler_answers_while_it_runs(bench: Bench) -> None:
    worker = await bench.start()
    rollout = bench.submit("Serves")

    found = [await asked(worker, rollout, n=n) for n in range(3)]

    assert [each["n"] for each in found] == [0, 1, 2]
    assert found[0]["access"] == {"trajectory": "rol_1-run", "token": "tgc_rol_1-run"}
    kinds = [each.kind for each in bench.port.log(rollout.id)]
    assert kinds.count("artefact") == 3
    odd_handlers.released[rollout.id].set()
    assert (await bench.result(rollout)).reward == 1.0


async def test_errors_of_the_request_keep_their_types(bench: Bench) -> None:
    worker = await bench.start()
    rollout = bench.submit("Serves")
    await asked(worker, rollout)

    with pytest.raises(Conflict, match="not now") as refused:
        await worker.ask(rollout.id, "refuse", {})
    assert (refused.value.pointer, refused.value.code) == ("/n", "busy")
    with pytest.raises(TangramError, match="LookupError: no such thing"):
        await worker.ask(rollout.id, "fail", {})
    with pytest.raises(NotFound) as elsewhere:
        await worker.ask("rol_9", "ask", {})
    assert elsewhere.value.code == "not_here"


async def test_who_asks_too_early_waits_and_too_late_is_refused(bench: Bench) -> None:
    bench.port.hold_leases()
    worker = await bench.start()
    rollout = bench.submit("Serves")
    await bench.port.waits_for_lease(rollout.id)
    with pytest.raises(Unavailable, match="has not begun"):
        await worker.ask(rollout.id, "ask", {})
    bench.port.grant_leases()
    await asked(worker, rollout)
    lease, evaluates = bench.port.lease, asyncio.Event()

    async def held(*arguments: Any) -> Any:
        evaluates.set()
        await asyncio.Event().wait()
        return await lease(*arguments)

    bench.port.lease = held  # type: ignore[method-assign,assignment]
    odd_handlers.released[rollout.id].set()
    await asyncio.wait_for(evaluates.wait(), 60)

    with pytest.raises(Conflict, match="RUN of rol_1 is over"):
        await worker.ask(rollout.id, "ask", {})


async def test_a_handler_that_serves_nothing_has_the_asker_wait(bench: Bench) -> None:
    worker = await bench.start()
    rollout = bench.submit("NeedsItsFile")
    await handler_reached(rollout)

    with pytest.raises(Unavailable, match="serves no agent"):
        await worker.ask(rollout.id, "ask", {})


async def test_after_a_crash_of_the_process_the_handler_that_continues_answers(
    bench: Bench,
) -> None:
    worker = await bench.start()
    rollout = bench.submit("Serves")
    await asked(worker, rollout)
    hangs = asyncio.create_task(worker.ask(rollout.id, "hang", {}))
    await handler_reached(rollout)

    [process] = worker._pool._processes
    process.kill()

    with pytest.raises(Unavailable, match="continues in another process"):
        await hangs
    assert (await asked(worker, rollout, n=2))["n"] == 2
    assert worker._pool._processes != [process]


async def test_a_question_that_is_dropped_ends_what_the_handler_does_for_it(bench: Bench) -> None:
    worker = await bench.start()
    rollout = bench.submit("Serves")
    await asked(worker, rollout)
    hangs = asyncio.create_task(worker.ask(rollout.id, "hang", {}))
    await handler_reached(rollout)
    before = len(asyncio.all_tasks())

    hangs.cancel()
    await asyncio.wait({hangs})

    await bench.until(lambda: len(asyncio.all_tasks()) <= before - 2)
    assert (await asked(worker, rollout, n=2))["n"] == 2


async def test_questions_of_a_method_that_ends_get_an_answer(bench: Bench) -> None:
    worker = await bench.start()
    rollout = bench.submit("Serves")
    await asked(worker, rollout)
    hangs = asyncio.create_task(worker.ask(rollout.id, "hang", {}))
    await handler_reached(rollout)

    odd_handlers.released[rollout.id].set()

    with pytest.raises(Unavailable):
        await asyncio.wait_for(hangs, 60)
