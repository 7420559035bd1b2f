"""Calls from the trainer's request to the API and back, through every part of the system."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from domain.apis import Cache
from domain.limits import Breaker, Limits
from domain.ports import DriverContext
from managers.quota.call_driver import CallDriver
from tests.api_server import answer
from tests.integration.runtime.call_rig import SECRET, CallRig, a_call, finished, running


async def test_a_call_returns_the_response_of_the_api(calls: CallRig) -> None:
    calls.api.says(answer(200, b'{"score": 0.75}'))
    async with running(calls) as client:
        payload = a_call(
            "/judge", call={"json": {"text": "é"}}, reward={"from": "json", "path": "score"}
        )
        view = await finished(client, payload)
    assert (view["outcome"], view["reward"], view["units"]) == (
        "completed",
        0.75,
        {"api:search": 1},
    )
    assert (view["result"]["status"], view["result"]["body"]) == (200, '{"score": 0.75}')
    (asked,) = calls.api.asked
    assert (asked.path, asked.body.decode()) == ("/judge", '{"text":"é"}')
    assert asked.headers["content-type"] == "application/json"


async def test_no_more_calls_are_open_than_may_be(calls: CallRig) -> None:
    open_now = most = 0
    all_are_open = asyncio.Event()

    async def count(_: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        if open_now == 3:
            all_are_open.set()
        await all_are_open.wait()
        await asyncio.sleep(0.02)  # one more than may be would come meanwhile
        open_now -= 1
        writer.write(answer())

    calls.api.behave = count
    async with running(calls, at_once=3) as client:
        await asyncio.gather(*(finished(client, a_call()) for _ in range(30)))
    assert (most, len(calls.api.asked)) == (3, 30)


async def test_the_secret_is_nowhere_in_redis(
    calls: CallRig, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    calls.api.says(answer(200, f"echo {SECRET}".encode()))
    declared = {"secret": "search-key", "secret_header": "X-Key"}
    async with running(calls, **declared) as client:
        view = await finished(client, a_call())
    assert calls.api.asked[0].headers["x-key"] == SECRET
    assert SECRET not in str(view)
    assert SECRET not in caplog.text
    await asyncio.to_thread(calls.loop.stop)  # type: ignore[union-attr] # leaves a snapshot
    for key in redis_client.scan_iter(f"{calls.keys.prefix}*"):
        dumped = redis_client.dump(key)
        kind = redis_client.type(key)
        content = str(redis_client.xrange(key)) if kind == b"stream" else ""
        assert SECRET.encode() not in (dumped or b"")
        assert SECRET not in content


@pytest.mark.parametrize(
    ("payload", "pointer"),
    [
        (a_call("/x", call={"target": "api:other"}), "/call/target"),
        (a_call("/x\r\nHost: y"), "/call/path"),
        (a_call("/x", call={"headers": {"A": "b\r\nc: d"}}), "/call/headers"),
        (a_call("/x", call={"method": "DELETE"}), "/call/method"),
        (a_call("/x", call={"json": 1, "body": "2"}), "/call/body"),
        ({"task": "t", "kind": "call"}, "/call"),
        ({"task": "t", "kind": "noop", "call": {"target": "api:search"}}, "/call"),
        (a_call("/x", reward={"from": "exit_code"}), "/reward/from"),
    ],
)
async def test_a_forbidden_call_is_refused_at_the_gateway(
    calls: CallRig, payload: dict[str, Any], pointer: str
) -> None:
    async with running(calls) as client:
        refused = await client.post("/actions", json=payload)
    assert refused.status_code in (400, 422)
    assert refused.json()["errors"][0]["pointer"] == pointer
    assert calls.api.asked == []


async def test_a_crashed_worker_does_not_repeat_a_call_that_must_not_be(calls: CallRig) -> None:
    """1. A call is under way. 2. The worker dies. 3. Another takes over: the outcome is unknown."""
    asked = asyncio.Event()

    async def hangs(_: Any, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.sleep(600)

    calls.api.behave = hangs
    async with running(calls) as client:
        name = (await client.post("/actions", json=a_call())).json()["id"]
        await asyncio.wait_for(asked.wait(), 120)
        (first,) = calls.others
        calls.others = [CallDriver(DriverContext("n1", calls.directory / "api", {}, {}))]
        bury, first.close = first.close, _nothing  # type: ignore[method-assign] # no farewell
        await calls.stop_node()
        await calls.start_node()
        view = (await client.get(f"/actions/{name}", params={"wait": 60})).json()
    await bury()
    assert view["outcome"] == "unknown"
    assert len(calls.api.asked) == 1


async def _nothing() -> None:
    pass


async def test_a_refusal_slows_all_calls_and_fails_none(calls: CallRig) -> None:
    """The API refuses once and names a pause: nothing comes in it, and then everything does."""
    refused_at, came = [0.0], list[float]()

    async def refuse_once(_: Any, writer: asyncio.StreamWriter) -> None:
        now = asyncio.get_running_loop().time()
        came.append(now)
        if len(came) == 3:
            refused_at[0] = now
            writer.write(answer(429, b"", "Retry-After: 1\r\n"))
        else:
            writer.write(answer(200))

    calls.api.behave = refuse_once
    async with running(calls, at_once=1) as client:
        views = await asyncio.gather(
            *(finished(client, a_call(replay_safe=True)) for _ in range(8))
        )
    assert {view["result"]["status"] for view in views} == {200}
    assert sorted(view["attempt"] for view in views) == [1] * 7 + [2]
    later = [at - refused_at[0] for at in came if at > refused_at[0]]
    assert len(later) == 6
    assert min(later) >= 0.99


async def test_calls_wait_for_an_api_that_is_away_for_a_while(calls: CallRig) -> None:
    limits = Limits(breaker=Breaker(failures=2, cooldown_seconds=0.3))
    broken = [True] * 4

    async def mend(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(500 if broken and broken.pop() else 200))

    calls.api.behave = mend
    async with running(calls, limits=limits, at_once=2) as client:
        views = await asyncio.gather(
            *(finished(client, a_call(replay_safe=True)) for _ in range(6))
        )
    assert {view["result"]["status"] for view in views} == {200}
    assert len(calls.api.asked) == 10


async def test_identical_calls_are_one_request_and_its_answer_is_kept(calls: CallRig) -> None:
    async def slow(_: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        writer.write(answer(200, b'{"hits": 3}'))

    calls.api.behave = slow
    get = {"method": "GET"}
    async with running(calls, cache=Cache(600.0)) as client:
        same = [finished(client, a_call("/q?a=1", call=get)) for _ in range(10)]
        views = await asyncio.gather(*same, finished(client, a_call("/q?a=2", call=get)))
        kept = await finished(client, a_call("/q?a=1", call=get))
    assert {view["result"]["body"] for view in (*views, kept)} == {'{"hits": 3}'}
    assert sorted(asked.path for asked in calls.api.asked) == ["/q?a=1", "/q?a=2"]
    assert kept["detail"] == "an answer that was kept"
    assert kept["units"] == {}


async def test_a_holder_of_a_lease_reports_feedback(calls: CallRig) -> None:
    async with running(calls, at_once=1) as client:
        wanted = {"task": "t", "kind": "lease", "cost": {"api:search": 1}}
        wanted["lease"] = {"ttl_seconds": 600}
        lease = await finished(client, wanted)
        bad = await client.post(f"/leases/{lease['id']}/release", json={"status": 9})
        said = {"status": 429, "retry_after_seconds": 600}
        released = await client.post(f"/leases/{lease['id']}/release", json=said)
        waiting = (await client.post("/actions", json=a_call())).json()["id"]
        view = (await client.get(f"/actions/{waiting}")).json()
        status = (await client.get("/status")).json()["resources"]["api:search"]
    assert (bad.status_code, released.status_code) == (422, 200)
    assert "pause" in view["waiting"]["reason"]
    assert "pause" in status["hindrance"]
