"""Bad input at every built-in door: its own errors, none of them ours, and nothing is left behind.

Each test sends its requests to every route of a door, so a door that is added is tested without a change here.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from contract.requests import MAX_BODY_BYTES
from contract.routes import Route
from facades.registry import BUILT_IN
from scheduler.runtime.gateway.facade import Facade, FacadeEntry
from tests.integration.runtime.rig import Rig

DOORS = pytest.mark.parametrize("entry", BUILT_IN, ids=lambda entry: entry.door)
MALFORMED = {
    "half an object": b"{",
    "a list": b"[]",
    "null": b"null",
    "a number": b"1e999",
    "no text": b"\xff\xfe\x00",
    "a deep value": b"[" * 20_000,
    "a deep object": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "wrong types": b'{"command": 1, "path": [], "code": {}, "templateID": 7, "process": "x", "model": 1,'
    b' "image": [], "session": 3, "content": 4, "language": [], "trajectory_ids": 5}',
}
#: Values of the right type with which nothing can be done.
UNUSABLE = {
    "a lone surrogate": b'{"command": "\\ud800", "path": "\\ud800", "code": "\\ud800"}',
    "a NUL": b'{"command": "a\\u0000b", "path": "a\\u0000b", "code": "\\u0000", "model": "\\u0000",'
    b' "image": "\\u0000", "session": "\\u0000", "templateID": "\\u0000", "sandbox_id": "\\u0000"}',
}
#: Methods that change something, which a reader may not.
CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def shown(token: str) -> dict[str, str]:
    """Return the headers in which clients of the doors show a token."""
    return {"Authorization": f"Bearer {token}", "X-API-Key": token, "X-Access-Token": token}


def requests(facade: Facade, name: str = "nope") -> Iterator[tuple[Route, str]]:
    """Yield each route with a path in which all parameters are ``name``."""
    for route in facade.routes:
        yield route, re.sub(r"\{\w+\}", name, route.path)


@asynccontextmanager
async def stock(rig: Rig, token: str = "trainer") -> AsyncIterator[httpx.AsyncClient]:
    """Return a client without a credential of the native API."""
    async with rig.client() as client:
        client.headers = httpx.Headers(shown(token) if token else {})
        client.base_url = httpx.URL("http://tangram")
        yield client


def refused(answer: httpx.Response, entry: FacadeEntry, what: str) -> None:
    """Check that a door refuses a request in the shape of its protocol."""
    where = f"{what}: {answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:300]}"
    assert answer.status_code != 500, where
    kind = answer.headers.get("content-type", "")
    assert not kind.startswith(("application/problem+json", "text/html")), where


async def nothing_runs(rig: Rig) -> None:
    """Check that no action is live."""
    assert rig.loop is not None
    async with asyncio.timeout(120):
        while rig.loop.loop.term.machine.state.actions:
            await asyncio.sleep(0.005)


async def nothing_is_left(rig: Rig) -> None:
    """Check that no action is live and no trajectory is open."""
    await nothing_runs(rig)
    assert rig.loop is not None
    assert not rig.loop.loop.term.machine.state.trajectories


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail when a request is logged as an error of ours."""
    caplog.set_level(logging.WARNING)
    yield
    errors = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert errors == []


def lines(caplog: pytest.LogCaptureFixture, entry: FacadeEntry) -> list[str]:
    """Return what is logged of the requests of a door."""
    found = [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]
    return [each for each in found if each.startswith(f"door {entry.door}: ")]


@DOORS
async def test_a_request_that_is_refused_is_logged_once(
    rig: Rig, entry: FacadeEntry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with stock(rig) as client:
        for route, path in requests(entry.facade):
            for body in MALFORMED.values():
                caplog.clear()
                answer = await client.request(route.method, path, content=body)
                failed = b'"Failed"' in answer.content or b'"error"' in answer.content
                expected = 1 if answer.status_code >= 400 or failed else 0
                assert len(lines(caplog, entry)) == expected, (route.path, answer.text)


@DOORS
async def test_a_path_that_is_not_served_is_refused_in_the_shape_of_the_door(
    rig: Rig, entry: FacadeEntry
) -> None:
    async with stock(rig) as client:
        for prefix in entry.prefixes:
            for method in ("GET", "POST", "DELETE"):
                answer = await client.request(method, f"{prefix}/no/such/path/of/it")
                refused(answer, entry, "no route")


@DOORS
@pytest.mark.parametrize("token", ["", "unknown", "tgm_" + "0" * 64, "e2b_" + "f" * 64, "x" * 5000])
async def test_a_request_without_a_valid_token_does_nothing(
    rig: Rig, entry: FacadeEntry, token: str
) -> None:
    async with stock(rig, token) as client:
        for route, path in requests(entry.facade):
            answer = await client.request(route.method, path, content=b"{}")
            refused(answer, entry, "no token")
            if route.scope is not None and answer.status_code != 200:  # ROCK answers 200 always
                assert answer.status_code in {401, 403}, (route.path, answer.text)
    await nothing_is_left(rig)


@DOORS
async def test_a_token_that_may_only_read_changes_nothing(rig: Rig, entry: FacadeEntry) -> None:
    async with stock(rig, "reader") as client:
        for route, path in requests(entry.facade):
            if route.method in CHANGES:
                answer = await client.request(route.method, path, content=b"{}")
                refused(answer, entry, "reader")
    await nothing_is_left(rig)


@DOORS
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_malformed_body_is_refused(rig: Rig, entry: FacadeEntry, body: bytes) -> None:
    async with stock(rig) as client:
        for route, path in requests(entry.facade):
            answer = await client.request(route.method, path, content=body)
            refused(answer, entry, "malformed")
    await nothing_is_left(rig)


@DOORS
@pytest.mark.parametrize("body", UNUSABLE.values(), ids=UNUSABLE.keys())
async def test_a_value_with_which_nothing_can_be_done_starts_nothing(
    rig: Rig, entry: FacadeEntry, body: bytes
) -> None:
    """A door whose names open trajectories may have opened one."""
    async with stock(rig) as client:
        for route, path in requests(entry.facade):
            answer = await client.request(route.method, path, content=body)
            refused(answer, entry, "unusable")
    await nothing_runs(rig)


@DOORS
@pytest.mark.parametrize(
    "kind",
    [
        "text/html", "application/x-www-form-urlencoded", "multipart/form-data",
        "multipart/form-data; boundary=b", "application/connect+json", "application/proto",
        "application/json; charset=utf-16",
    ],
)  # fmt: skip
async def test_a_body_of_another_type_is_refused(rig: Rig, entry: FacadeEntry, kind: str) -> None:
    """What follows the type is not of the type."""
    body = b"\x00\x00\x00\xff\xff--b\r\n{"
    async with stock(rig) as client:
        for route, path in requests(entry.facade):
            if route.method in CHANGES:
                answer = await client.request(
                    route.method, path, content=body, headers={"Content-Type": kind}
                )
                refused(answer, entry, kind)
    await nothing_is_left(rig)


@DOORS
async def test_a_body_above_the_limit_is_refused_and_not_read(rig: Rig, entry: FacadeEntry) -> None:
    """The body of a file may be larger: it is refused for what it is written to."""
    announced = {"Content-Length": str(2**40)}
    async with stock(rig) as client:
        for route, path in requests(entry.facade):
            if route.method in CHANGES:
                answer = await client.request(
                    route.method, path, content=b"{" + b" " * MAX_BODY_BYTES, headers=announced
                )
                refused(answer, entry, "too large")
    await nothing_is_left(rig)


@DOORS
@pytest.mark.parametrize(
    "name", ["nope", "..", "%2e%2e", "a%2Fb", "a" * 3000, "%00", "%ff", "trj_1;x"]
)
async def test_an_unknown_or_impossible_id_is_refused(
    rig: Rig, entry: FacadeEntry, name: str
) -> None:
    async with stock(rig) as client:
        for route, path in requests(entry.facade, name):
            if "{" in route.path:
                answer = await client.request(route.method, path, content=b"{}")
                kind = answer.headers.get("content-type", "")
                assert answer.status_code != 500, (path[:80], answer.text)
                assert not kind.startswith("text/html"), (path[:80], answer.text)


@DOORS
async def test_a_client_that_hangs_up_before_its_body_is_whole_leaves_nothing(
    rig: Rig, entry: FacadeEntry
) -> None:
    async with stock(rig) as client:
        transport = client._transport
        assert isinstance(transport, httpx.ASGITransport)
        for route, path in requests(entry.facade):
            if route.method not in CHANGES:
                continue
            unread = [{"type": "http.request", "body": b'{"command": "x', "more_body": True}]

            async def receive() -> dict[str, Any]:
                return unread.pop() if unread else {"type": "http.disconnect"}  # noqa: B023

            sent: list[Any] = []

            async def send(message: Any) -> None:
                sent.append(message)  # noqa: B023

            headers = [
                (name.lower().encode(), value.encode()) for name, value in shown("trainer").items()
            ]
            scope = {
                "type": "http", "method": route.method, "path": path, "query_string": b"",
                "headers": [*headers, (b"content-length", b"100")],
            }  # fmt: skip
            await asyncio.wait_for(transport.app(scope, receive, send), 120)
            statuses = [each["status"] for each in sent if each["type"] == "http.response.start"]
            assert 500 not in statuses, route.path
    await nothing_is_left(rig)


async def a_sandbox(client: httpx.AsyncClient, entry: FacadeEntry) -> str:
    """Open a trajectory with a file, as the door's clients do where they choose no name, and return its name."""
    name = "ours"
    if entry.door == "e2b":
        made = await client.post("/e2b/v2/sandboxes", json={"templateID": "base"})
        assert made.status_code == 201, made.text
        name = made.json()["sandboxID"]
    else:
        native = {"id": name, "task": entry.door}
        assert (await client.post("/api/v1/trajectories", json=native)).status_code == 201
    query = {"path": "secret"}
    put = await client.put(
        f"/api/v1/trajectories/{name}/files", params=query, content=b"our secret"
    )
    assert put.status_code == 201, put.text
    return name


def calls_on(entry: FacadeEntry, name: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield a request to each route that names a trajectory wherever the door may look for it."""
    members = {
        "sandbox_id": name, "sandboxID": name, "trajectory": name, "trajectory_ids": [name], "path": "secret",
        "actions": ["<bash>cat secret</bash>"], "command": "cat secret", "session": "default", "content": "x",
        "source": "secret", "destination": "b", "process": {"cmd": "cat", "args": ["secret"]}, "timeout": 60,
        "templateID": name, "model": name, "language": "bash", "code": "cat secret",
    }  # fmt: skip
    query = {"sandbox_id": name, "path": "secret", "username": "user"}
    headers = {"E2b-Sandbox-Id": name, "E2b-Sandbox-Port": "49983", "X-Tangram-Trajectory": name}
    for route, path in requests(entry.facade, name):
        for before in ("", f"/trajectories/{name}"):
            given: dict[str, Any] = {"params": query, "headers": headers}
            if route.method in CHANGES:
                given |= {"json": members}
            yield route.method, before + path, given


@DOORS
async def test_a_token_of_another_project_reaches_nothing_of_this_one(
    rig: Rig, entry: FacadeEntry
) -> None:
    async with stock(rig) as ours, stock(rig, "stranger") as theirs:
        name = await a_sandbox(ours, entry)
        for method, path, given in calls_on(entry, name):
            answer = await theirs.request(method, path, **given)
            assert "our secret" not in answer.text, path
            refused(answer, entry, "stranger")
        kept = await ours.get(f"/api/v1/trajectories/{name}/files", params={"path": "secret"})
        live = f"default/{name}"
        assert rig.loop is not None
        known = rig.loop.loop.term.machine.state.trajectories
        assert live in known
        actions = [each.action for each in rig.loop.loop.term.machine.state.actions.values()]

    assert kept.content == b"our secret"
    assert {action.project for action in actions} <= {"other"}


@DOORS
async def test_the_files_of_what_has_ended_are_not_found_again(
    rig: Rig, entry: FacadeEntry
) -> None:
    """A name of the client's own may begin another trajectory; a sandbox of E2B stays ended."""
    async with stock(rig) as client:
        name = await a_sandbox(client, entry)
        ended = await client.post(f"/api/v1/trajectories/{name}/finish")
        assert ended.status_code == 202, ended.text
        assert rig.loop is not None
        known = rig.loop.loop.term.machine.state.trajectories
        async with asyncio.timeout(120):
            while f"default/{name}" in known:
                await asyncio.sleep(0.005)
        for method, path, given in calls_on(entry, name):
            answer = await client.request(method, path, **given)
            assert "our secret" not in answer.text, path
            refused(answer, entry, "ended")
    await nothing_runs(rig)
    assert entry.door != "e2b" or f"default/{name}" not in known
