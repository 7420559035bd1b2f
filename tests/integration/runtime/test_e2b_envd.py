"""Commands and files of E2B's sandboxes as its SDKs send them, over a fake driver: outcomes, errors and refusals."""

from __future__ import annotations

import asyncio
import base64
import gzip
import struct
from typing import Any

import httpx
import msgspec
import pytest

from domain.action import Outcome
from domain.ports import RunOrder
from facades.e2b.connect import frame
from facades.e2b.process import pid_of
from managers.cpu.fake import Play
from tests.integration.runtime.rig import Rig
from tests.integration.runtime.test_e2b_control import Client, clients

STREAM = {"content-type": "application/connect+json"}


def messages(content: bytes) -> list[dict[str, Any]]:
    """Return the frames of a stream; the last one has to be its end."""
    found = []
    while content:
        flag, length = struct.unpack_from(">BI", content)
        found.append(msgspec.json.decode(content[5 : 5 + length]))
        content = content[5 + length :]
        assert (flag == 2) == (not content)
    return found


def of(sandbox: dict[str, Any]) -> dict[str, str]:
    return {"e2b-sandbox-id": sandbox["sandboxID"], "x-access-token": sandbox["envdAccessToken"]}


async def started(client: Client, sandbox: dict[str, Any], *words: str, **headers: str) -> Any:
    """Return the messages of ``Start`` without input."""
    body = {"process": {"cmd": words[0], "args": words[1:]}, "stdin": False}
    answer = await client.post(
        "/process.Process/Start",
        content=frame(body),
        headers={**STREAM, **of(sandbox), **{k.replace("_", "-"): v for k, v in headers.items()}},
    )
    assert answer.status_code == 200, answer.text
    return messages(answer.content)


async def test_a_command_is_an_action_of_this_door_with_its_output_and_status(rig: Rig) -> None:
    orders: list[RunOrder] = []

    def play(order: RunOrder) -> Play:
        orders.append(order)
        return Play(exit_code=3, stdout="out\n")

    rig.driver.script = play
    async with clients(rig) as client:
        sandbox = await client.created(envVars={"A": "a"}, metadata={"tangram.cpu": "2"})
        found = await started(client, sandbox, "make", "-j2", connect_timeout_ms="60000")
    assert len(orders) == 1, found
    (order,) = orders
    action = order.action
    assert action.exec is not None
    assert (action.exec.command, action.exec.cwd) == (("make", "-j2"), "/workspace")
    assert action.exec.env["A"] == "a"
    assert (action.door, action.timeout_seconds, action.cost) == ("e2b", 60.0, {"cpu": (2000,)})
    assert action.queue_timeout_seconds == 60.0  # its client does not wait longer for it to begin
    first, data, end, last = found
    assert first == {"event": {"start": {"pid": pid_of(action.id)}}}
    assert base64.b64decode(data["event"]["data"]["stdout"]) == b"out\n"
    assert end["event"]["end"]["exitCode"] == 3
    assert last == {}


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome.TIMEOUT, "deadline_exceeded"),
        (Outcome.INFRA_FAILED, "internal"),
        (Outcome.OOM_KILLED, "internal"),
        (Outcome.UNKNOWN, "internal"),
        (Outcome.CANCELLED, "internal"),
    ],
)
async def test_an_outcome_without_an_exit_status_is_an_error(
    rig: Rig, outcome: Outcome, code: str
) -> None:
    rig.driver.script = lambda _: Play(outcome=outcome, detail="the reason")
    async with clients(rig) as client:
        *before, last = await started(client, await client.created(), "true")
    assert all("end" not in each["event"] for each in before)
    assert last["error"]["code"] == code
    assert "the reason" in last["error"]["message"]


async def test_a_signal_ends_the_process_and_is_no_exit_status(rig: Rig) -> None:
    begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def play(order: RunOrder) -> Play:
        begun.set_result(order.id)
        return Play(seconds=None)

    rig.driver.script = play
    async with clients(rig) as client:
        sandbox = await client.created()
        running = asyncio.create_task(started(client, sandbox, "sleep", "60"))
        action = await asyncio.wait_for(begun, 60)
        await rig.until_started(action)
        asked = {"process": {"pid": pid_of(action)}, "signal": "SIGNAL_SIGKILL"}
        answer = await client.post("/process.Process/SendSignal", json=asked, headers=of(sandbox))
        assert (answer.status_code, answer.json()) == (200, {})
        end = (await running)[-2]["event"]["end"]
        assert (end["exitCode"], end["exited"], end["status"]) == (-1, False, "signal: killed")
        again = await client.post("/process.Process/SendSignal", json=asked, headers=of(sandbox))
    assert (again.status_code, again.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("call", "body", "status", "code"),
    [
        ("process.Process/SendInput", {"process": {"pid": 5}, "input": {"stdin": "eA=="}}, 404, ""),
        ("process.Process/SendSignal", {"process": {"pid": 5}, "signal": 9}, 404, "not_found"),
        ("process.Process/SendSignal", {"process": {"pid": 5}}, 400, "invalid_argument"),
        ("process.Process/SendSignal", {"process": {"tag": "x"}, "signal": 9}, 404, "not_found"),
        ("process.Process/SendSignal", {"process": {}, "signal": 9}, 400, "invalid_argument"),
        ("process.Process/Update", [], 400, "invalid_argument"),
        ("filesystem.Filesystem/Stat", {"path": "none"}, 404, "not_found"),
        ("filesystem.Filesystem/ListDir", {"path": 5}, 400, "invalid_argument"),
        ("filesystem.Filesystem/MakeDir", {"path": "."}, 409, "already_exists"),
        ("filesystem.Filesystem/GetWatcherEvents", {"watcherId": "w"}, 404, "not_found"),
    ],
)
async def test_unary_errors_have_a_status_and_a_code(
    rig: Rig, call: str, body: Any, status: int, code: str
) -> None:
    async with clients(rig) as client:
        answer = await client.post(f"/{call}", json=body, headers=of(await client.created()))
    assert answer.status_code == status, answer.text
    assert answer.json()["message"]
    if code:
        assert answer.json()["code"] == code


async def test_a_sandbox_that_has_ended_does_not_answer(rig: Rig) -> None:
    async with clients(rig) as client:
        sandbox = await client.created()
        headers = of(sandbox)
        assert (await client.get("/health", headers=headers)).status_code == 204
        await client.delete(f"/sandboxes/{sandbox['sandboxID']}")
        for answer in (
            await client.get("/health", headers=headers),
            await client.post("/process.Process/List", json={}, headers=headers),
            await client.post(
                "/process.Process/Start", content=frame({}), headers={**STREAM, **headers}
            ),
            await client.get("/files?path=a", headers=headers),
        ):
            assert answer.status_code == 502
            assert "was not found" in answer.json()["message"]
        headers["x-access-token"] = "envd_x.y"
        assert (await client.get("/health", headers=headers)).status_code == 401


async def test_files_have_the_metadata_of_their_upload(rig: Rig) -> None:
    async with clients(rig) as client:
        headers = of(await client.created())

        async def entry(path: str) -> dict[str, Any]:
            asked = {"path": path}
            found = await client.post("/filesystem.Filesystem/Stat", json=asked, headers=headers)
            shown: dict[str, Any] = found.json()["entry"]
            return shown

        octets = {"content-type": "application/octet-stream", **headers}
        noted = {**octets, "X-Metadata-Author": "me", "X-Metadata-Purpose": "test"}
        written = await client.post("/files?path=d/noted", content=b"x", headers=noted)
        plain = await client.post("/files?path=d/plain", content=b"x", headers=octets)
        move = {"source": "d/noted", "destination": "d/moved"}
        await client.post("/filesystem.Filesystem/Move", json=move, headers=headers)
        listed = await client.post(
            "/filesystem.Filesystem/ListDir", json={"path": "d"}, headers=headers
        )
        moved = await entry("d/moved")
        await client.post("/files?path=d/moved", content=b"y", headers=octets)
        again = await entry("d/moved")
    metadata = {"author": "me", "purpose": "test"}
    assert [each["metadata"] for each in written.json()] == [metadata], written.text
    assert "metadata" not in plain.json()[0]
    assert moved["metadata"] == metadata
    assert "metadata" not in again
    assert [each.get("metadata") for each in listed.json()["entries"]] == [metadata, None]


async def test_the_events_of_a_watcher_have_entries_where_they_are_asked_for(rig: Rig) -> None:
    async with clients(rig) as client:
        headers = of(await client.created())
        octets = {"content-type": "application/octet-stream", **headers}
        await client.post("/files?path=d/a", content=b"1", headers=octets)
        ids = []
        for asked in ({"path": "d", "includeEntry": True}, {"path": "d"}):
            made = await client.post(
                "/filesystem.Filesystem/CreateWatcher", json=asked, headers=headers
            )
            ids.append(made.json()["watcherId"])
        await client.post("/files?path=d/b", content=b"22", headers=octets)
        found = []
        for each in ids:
            got = await client.post(
                "/filesystem.Filesystem/GetWatcherEvents", json={"watcherId": each}, headers=headers
            )
            found.append(got.json()["events"])
            gone = await client.post(
                "/filesystem.Filesystem/RemoveWatcher", json={"watcherId": each}, headers=headers
            )
            assert gone.status_code == 200, gone.text
    shown = [(each["type"], each["name"]) for each in found[0]]
    assert shown == [(f"EVENT_TYPE_{kind}", "b") for kind in ("CREATE", "CHMOD", "WRITE")]
    assert [each["entry"]["size"] for each in found[0]] == ["2"] * 3
    assert not any("entry" in each for each in found[1])


async def test_files_are_written_as_forms_and_as_bodies(rig: Rig) -> None:
    async with clients(rig) as client:
        headers = of(await client.created())
        form = await client.post(
            "/files",
            files=[("file", ("d/a b", b"one")), ("file", ("d/c", b""))],
            headers=headers,
        )
        assert form.status_code == 200, form.text
        assert [each["name"] for each in form.json()] == ["a b", "c"]
        packed = {**headers, "content-type": "application/octet-stream", "content-encoding": "gzip"}
        body = await client.post(
            "/files?path=d/packed", content=gzip.compress(b"x" * 10**6), headers=packed
        )
        assert body.status_code == 200, body.text
        got = [await client.get(f"/files?path=d/{n}", headers=headers) for n in ("a b", "packed")]
        assert [each.content for each in got] == [b"one", b"x" * 10**6]

        async def refused(answer: httpx.Response, status: int) -> None:
            assert (answer.status_code, answer.json()["code"]) == (status, status), answer.text

        await refused(await client.get("/files?path=none", headers=headers), 404)
        await refused(await client.get("/files?path=d", headers=headers), 400)
        await refused(await client.get("/files", headers=headers), 400)
        await refused(await client.post("/files?path=x", json={}, headers=headers), 400)
        cut = gzip.compress(b"y" * 1000)[:-9]
        await refused(await client.post("/files?path=cut", content=cut, headers=packed), 400)
        await refused(await client.get("/files?path=cut", headers=headers), 404)
