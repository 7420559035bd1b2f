"""Large inputs and results pass beside Redis and the journal, with the promises of small ones."""

from __future__ import annotations

import shutil
from typing import Any

from managers.cpu.fake import Play
from scheduler.runtime.body_store import BodyStore
from tests.integration.runtime.rig import Rig

LARGE = "0123456789abcdef" * 20_000


def with_bodies(rig: Rig) -> BodyStore:
    rig.bodies_folder = rig.directory / "bodies"
    return BodyStore(rig.bodies_folder)


async def test_neither_input_nor_result_is_in_the_journal(rig: Rig) -> None:
    with_bodies(rig)
    await rig.stop_node()
    seen: list[str | None] = []

    def script(order):
        seen.append(order.action.exec.stdin)
        return Play(stdout=LARGE)

    rig.driver.script = script
    await rig.start_node()
    spec = {"output": {"limit_bytes": 1_000_000}, "command": ["cat"], "stdin": LARGE}
    async with rig.client() as client:
        action = {"task": "t", "kind": "exec", "cost": {"cpu": 1}, "exec": spec}
        answered = (await client.post("/actions?wait=60", json=action)).json()
        shown = (await client.get(f"/actions/{answered['id']}")).json()
    assert seen == [LARGE]
    assert answered["result"]["stdout"] == shown["result"]["stdout"] == LARGE
    assert answered["result"]["truncated"] is False
    for stream in (rig.keys.journal, rig.keys.inbox):
        entries: Any = rig.redis.xrange(stream)
        stored = b"".join(value for _, fields in entries for value in fields.values())
        assert LARGE[:16_000].encode() not in stored


async def test_a_lost_body_is_a_clear_error_and_no_crash(rig: Rig) -> None:
    store = with_bodies(rig)
    await rig.stop_node()
    rig.driver.script = lambda _: Play(stdout=LARGE)
    await rig.start_node()
    spec = {"output": {"limit_bytes": 1_000_000}, "command": ["x"]}
    async with rig.client() as client:
        action = {"task": "t", "kind": "exec", "cost": {"cpu": 1}, "exec": spec}
        answered = (await client.post("/actions?wait=60", json=action)).json()
        assert store.folder is not None
        shutil.rmtree(store.folder)
        lost = await client.get(f"/actions/{answered['id']}")
        assert (lost.status_code, lost.json()["code"]) == (410, "body_lost")
        # An input that is lost before its action runs.
        rig.driver.script = lambda _: Play(seconds=None)
        blocking = await client.post("/actions", json={**action, "cost": {"cpu": 4}})
        await rig.until_started(blocking.json()["id"])
        (store.folder).mkdir()
        waiting = await client.post(
            "/actions", json={**action, "exec": {"command": ["cat"], "stdin": LARGE}}
        )
        shutil.rmtree(store.folder)
        await rig.end_action(blocking.json()["id"])
        view = (await client.get(f"/actions/{waiting.json()['id']}?wait=60")).json()
    assert (view["outcome"], view["reward"]) == ("infra_failed", None)
    assert view["detail"].startswith("body_lost: ")


async def test_a_part_with_another_folder_writes_no_references(rig: Rig) -> None:
    first = BodyStore(rig.directory / "one")
    second = BodyStore(rig.directory / "two")
    async with rig.context() as context:
        for store in (first, second, BodyStore(rig.directory / "one")):
            await store.join(context.client, rig.keys)
    assert (first.writes, second.writes) == (True, False)
    assert await second.put(b"x" * 100_000) is None


async def test_a_request_cannot_name_a_stored_input(rig: Rig) -> None:
    with_bodies(rig)
    async with rig.client() as client:
        spec = {"command": ["cat"], "stored_stdin": {"sha256": "0" * 64, "bytes": 1}}
        action = {"task": "t", "kind": "exec", "cost": {"cpu": 1}, "exec": spec}
        refused = await client.post("/actions", json=action)
        call = {"target": "api:search", "stored_body": spec["stored_stdin"]}
        body = await client.post("/actions", json={"task": "t", "kind": "call", "call": call})
    assert (refused.status_code, body.status_code) == (422, 422)
    assert refused.json()["errors"][0]["pointer"] == "/exec/stored_stdin"
    assert body.json()["errors"][0]["pointer"] == "/call/stored_body"


async def test_the_stream_of_a_large_result_has_all_of_it(rig: Rig) -> None:
    with_bodies(rig)
    await rig.stop_node()
    rig.driver.script = lambda _: Play(stdout=LARGE)
    await rig.start_node()
    async with rig.served() as client:
        spec = {"command": ["x"], "output": {"limit_bytes": 1_000_000}}
        view = await client.run({"task": "t", "kind": "exec", "cost": {"cpu": 1}, "exec": spec})
        events = [event async for event in client.output(view.id)]
    assert b"".join(e.data for e in events if e.kind == "stdout").decode() == LARGE
