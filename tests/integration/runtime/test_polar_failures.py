"""Polar's door where something fails between two steps: no rollout is lost, doubled or left running."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import Iterable
from typing import Any

import httpx
import pytest

from domain.errors import Unavailable
from facades import polar
from facades.polar import records, sessions, tasks, watches
from scheduler.runtime.gateway.callbacks import Callbacks
from scheduler.runtime.gateway.native_calls import NativeCalls
from scheduler.runtime.gateway.native_rollouts import NativeRollouts
from tests.api_server import answer, local_api
from tests.integration.runtime.rollout_rig import RolloutRig
from tests.integration.runtime.test_polar_door import (
    URL,
    Sessions,
    end_watches,
    ended,
    submitted,
    trainer,
)

PATH = f"{URL}/rollout/task/golden-task"


async def live(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Return the rollouts of the door that have not ended."""
    found = await client.get("/rollouts", params={"door": "polar", "limit": "1000"})
    items: list[dict[str, Any]] = found.json()["items"]
    return items


def cancels_break_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first request that cancels several rollouts cancel one of them, and find no leader."""
    cancel_all, broke_off = NativeRollouts.cancel_all, False

    async def failing(self: NativeRollouts, rollouts: Iterable[str], reason: str) -> None:
        nonlocal broke_off
        names = list(rollouts)
        breaks = not broke_off and len(names) > 1
        broke_off = broke_off or breaks
        await cancel_all(self, names[:1] if breaks else names, reason)
        if breaks:
            raise Unavailable("no leader")

    monkeypatch.setattr(NativeRollouts, "cancel_all", failing)


async def test_large_metadata_of_many_samples_are_shown_and_its_rollouts_are_found(
    rollouts: RolloutRig,
) -> None:
    """The ids of 200 rollouts and these metadata are together larger than a record may be."""
    metadata = {"instance_id": "i-1", "tests": ["tests/a.py::test_" + "x" * 40] * 3000}
    async with trainer(rollouts) as client:
        made = await submitted(client, num_samples=200, metadata=metadata)
        assert made.status_code == 200, made.text
        assert len(await live(client)) == 200
        deleted = (await client.delete(PATH)).json()
        assert (deleted["status"], deleted["total_sessions"]) == ("cancelled", 200)
        while await live(client):
            await asyncio.sleep(0.02)
        found = (await client.get(PATH)).json()
    assert found["results"][0]["metadata"] == metadata


async def test_metadata_that_cannot_be_stored_are_422_and_submit_nothing(
    rollouts: RolloutRig,
) -> None:
    async with trainer(rollouts) as client:
        refused = await submitted(client, metadata={"blob": secrets.token_hex(60_000)})
        assert refused.status_code == 422
        assert refused.json()["detail"][0]["loc"] == ["body", "metadata"]
        assert await live(client) == []
        assert (await client.get(PATH)).status_code == 404


async def test_a_delete_that_failed_between_two_cancels_is_completed_by_its_repetition(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancels_break_off(monkeypatch)
    await rollouts.start_worker(Sessions(0, 1, 2))
    async with trainer(rollouts) as client:
        await submitted(client, num_samples=3)
        assert (await client.delete(PATH)).status_code == 503
        assert len(await live(client)) >= 1
        assert (await client.delete(PATH)).json()["status"] == "cancelled"
        while await live(client):
            await asyncio.sleep(0.02)


async def test_an_early_stop_that_failed_between_two_cancels_begins_again(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancels_break_off(monkeypatch)
    monkeypatch.setattr(watches, "RETRY_SECONDS", 0.01)
    await rollouts.start_worker(Sessions(1, 2))
    async with trainer(rollouts) as client:
        await submitted(client, num_samples=3, early_stop_min_usable_sessions=1)
        found = await ended(client)
    assert [each["status"] for each in found["results"]] == ["COMPLETED", "ERROR", "ERROR"]
    assert all(each["metadata"]["early_stop_cancelled"] for each in found["results"][1:])


async def test_a_submission_whose_answer_is_lost_is_continued_by_its_repetition(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, lost = NativeCalls.call, False

    async def losing(self: NativeCalls, operation: str, *parameters: str, **options: Any) -> Any:
        nonlocal lost
        found = await call(self, operation, *parameters, **options)
        if operation == "rollouts_submit" and not lost:
            lost = True
            raise Unavailable("redis does not answer")
        return found

    monkeypatch.setattr(NativeCalls, "call", losing)
    await rollouts.start_worker(Sessions(0, 1))
    async with trainer(rollouts) as client:
        assert (await submitted(client)).status_code == 503
        assert (await submitted(client, instruction="Another one.")).status_code == 409
        assert (await submitted(client)).status_code == 200
        assert len(await live(client)) == 2
        assert (await client.get(PATH)).json()["status"] == "running"


async def killed_while_submitting(
    rollouts: RolloutRig, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Submit the task in a web process that ends between the rollouts and the record, and lets nothing go."""

    async def ends(*_: Any) -> None:
        raise Unavailable("its web process is killed")

    async def nothing(*_: Any) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(tasks.PolarTasks, "_run", ends)
        patch.setattr(records.PolarRecords, "let_go", nothing)
        assert (await submitted(client)).status_code == 503
    assert (await submitted(client)).status_code == 409  # its process may live
    for name in rollouts.rig.redis.scan_iter("*submitting/golden-task*"):  # it expires
        rollouts.rig.redis.delete(name)


async def test_a_submission_of_a_killed_web_process_is_continued_with_its_rollouts(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Sessions(0, 1)
    await rollouts.start_worker(work)
    async with trainer(rollouts) as client:
        await killed_while_submitting(rollouts, client, monkeypatch)
        assert (await submitted(client)).status_code == 200
        work.let_go()
        found = await ended(client)
    assert {each["session_id"] for each in found["results"]} == {
        given.rollout.id for given in work.given
    }
    assert len(work.given) == 2


async def test_a_delete_cancels_what_a_killed_web_process_has_submitted(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rollouts.start_worker(Sessions(0, 1))
    async with trainer(rollouts) as client:
        await killed_while_submitting(rollouts, client, monkeypatch)
        assert (await client.delete(PATH)).json()["status"] == "cancelled"
        while await live(client):
            await asyncio.sleep(0.02)


async def test_a_task_that_reuses_an_id_is_watched_while_the_former_watch_lives(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "PAUSES", (3600.0,))
    rollouts.rig.callbacks = Callbacks(loopback=True)
    await rollouts.start_worker(Sessions())
    async with local_api() as api, trainer(rollouts) as client:
        api.says(answer(503), answer(200))
        url = f"http://127.0.0.1:{api.port}/callbacks/session_result"
        for number in range(2):
            assert (await submitted(client, callback_url=url)).status_code == 200
            while len(api.asked) <= number:
                await asyncio.sleep(0.02)


async def test_tokens_are_rendered_in_threads_and_sent_in_pieces_and_a_delete_reads_none(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, render, asked, rendered = NativeCalls.call, sessions._result, [], []

    async def noting(self: NativeCalls, operation: str, *parameters: str, **options: Any) -> Any:
        asked.append(operation)
        return await call(self, operation, *parameters, **options)

    def rendering(*given: Any) -> tuple[bytes, bool]:
        rendered.append(threading.current_thread())
        return render(*given)

    monkeypatch.setattr(NativeCalls, "call", noting)
    monkeypatch.setattr(sessions, "_result", rendering)
    monkeypatch.setattr(polar, "_PIECE_BYTES", 64)
    await rollouts.start_worker(Sessions())
    async with trainer(rollouts) as client:
        await submitted(client, num_samples=8)
        await ended(client)
        polled = await client.get(PATH)
        asked.clear()
        rendered_once = len(rendered)
        assert (await client.get(PATH)).content == polled.content
        assert (asked, len(rendered)) == (["rollouts_list"], rendered_once)  # no log is read again
        asked.clear()
        deleted = (await client.delete(PATH)).json()
    results = polled.json()["results"]
    assert [each["trajectory"]["traces"][0]["reward"] for each in results] == list(range(8))
    assert "content-length" not in polled.headers
    assert threading.current_thread() not in rendered
    assert asked == ["rollouts_list"]
    assert (deleted["status"], deleted["results"]) == ("completed", [])
    assert (deleted["total_sessions"], deleted["completed_sessions"]) == (8, 8)


async def test_a_callback_of_a_killed_web_process_is_sent_by_another_one_without_a_request(
    rollouts: RolloutRig,
) -> None:
    """A trainer that named a callback asks for nothing."""
    rollouts.rig.callbacks = Callbacks(loopback=True)
    work = Sessions(0, 1)
    await rollouts.start_worker(work)
    async with local_api() as api, asyncio.timeout(120):
        url = f"http://127.0.0.1:{api.port}/callbacks/session_result"
        async with trainer(rollouts) as client:
            assert (await submitted(client, callback_url=url)).status_code == 200
        for name in rollouts.rig.redis.scan_iter("*watch/golden-task*"):  # it expires
            rollouts.rig.redis.delete(name)
        work.let_go()
        async with rollouts.rig.gateway() as gateway:
            await gateway.resume()
            while not api.asked:
                await asyncio.sleep(0.02)
            await end_watches()
    [callback] = api.asked
    assert json.loads(callback.body)["status"] == "completed"


async def test_watches_of_another_web_process_that_ends_are_looked_for_now_and_then(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "ADOPT_SECONDS", 0.02)
    rollouts.rig.callbacks = Callbacks(loopback=True)
    work = Sessions(0, 1)
    await rollouts.start_worker(work)
    async with local_api() as api, trainer(rollouts) as first, trainer(rollouts) as second:
        url = f"http://127.0.0.1:{api.port}/callbacks/session_result"
        await second.get(f"{URL}/health")
        assert (await submitted(first, callback_url=url)).status_code == 200
        for task in asyncio.all_tasks():
            if "PolarWatches._watching" in str(task.get_coro()):
                task.cancel()
                await asyncio.wait({task})
        for name in rollouts.rig.redis.scan_iter("*watch/golden-task*"):  # it expires
            rollouts.rig.redis.delete(name)
        work.let_go()
        while not api.asked:
            await asyncio.sleep(0.02)
