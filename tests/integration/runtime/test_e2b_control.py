"""The control API of E2B: what its SDKs send, over the calls of trajectories."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from domain.principals import Principal, Scope
from facades.e2b import envd
from facades.e2b.sandbox import OpenSandbox, sandbox_of, signed_sandbox
from scheduler.runtime.gateway.app import Gateway
from scheduler.runtime.gateway.facade import FacadePort
from scheduler.runtime.gateway.http import HttpError, HttpRequest
from tests.integration.runtime.rig import TOKENS, Rig


class Client(httpx.AsyncClient):
    """A client of the control API, and the gateway that it calls."""

    gateway: Gateway

    async def created(self, **body: Any) -> dict[str, Any]:
        answer = await self.post("/v2/sandboxes", json={"templateID": "base", **body})
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def listed(self, **query: str) -> list[str]:
        answer = await self.get("/v2/sandboxes", params=query)
        return [row["sandboxID"] for row in answer.json()]

    async def ends(self, name: str) -> float:
        """Return in how many seconds a sandbox ends."""
        found = (await self.get(f"/sandboxes/{name}")).json()["endAt"]
        return (datetime.fromisoformat(found) - datetime.now(UTC)).total_seconds()

    @property
    def port(self) -> FacadePort:
        """The gateway as the facade sees it."""
        gateway = self.gateway
        return FacadePort(gateway._context, gateway._streams, gateway._native, "e2b")


@asynccontextmanager
async def clients(rig: Rig, key: str = "trainer") -> AsyncIterator[Client]:
    async with (
        rig.gateway() as gateway,
        Client(
            transport=httpx.ASGITransport(gateway),
            base_url="http://tangram:8000/e2b",
            headers={"X-API-Key": key},
            timeout=300,
        ) as client,
    ):
        client.gateway = gateway
        yield client


async def run_in(client: Client, sandbox: str) -> None:
    """Run a command in a sandbox, so that it has an environment."""
    body = {
        "task": "e2b",
        "trajectory": sandbox,
        "kind": "exec",
        "cost": {"cpu": 1},
        "exec": {"command": ["true"]},
    }
    answer = await client.post(
        "http://tangram/api/v1/actions?wait=60",
        json=body,
        headers={"Authorization": "Bearer trainer"},
    )
    assert answer.json()["outcome"] == "completed", answer.text


async def test_a_sandbox_is_created_listed_and_ended(rig: Rig) -> None:
    async with clients(rig) as client:
        made = await client.created(timeout=60, metadata={"run": "7"}, envVars={"A": "b"})
        name = made["sandboxID"]
        shown = (await client.get(f"/sandboxes/{name}")).json()

        assert shown["templateID"] == "base"
        assert shown["metadata"] == {"run": "7"}
        assert shown["state"] == "running"
        assert shown["envdAccessToken"] == made["envdAccessToken"]
        assert 50 < await client.ends(name) <= 60
        assert made["domain"] == "tangram:8000"
        assert await client.listed(metadata="run=7") == [name]

        assert (await client.delete(f"/sandboxes/{name}")).status_code == 204
        assert (await client.delete(f"/sandboxes/{name}")).status_code == 404
        assert await client.listed() == []
        assert (await client.get(f"/sandboxes/{name}")).json() == {
            "code": 404,
            "message": f"sandbox '{name}' was not found",
        }


async def test_connect_never_shortens_a_life_and_timeout_does(rig: Rig) -> None:
    async with clients(rig) as client:
        name = (await client.created(timeout=600))["sandboxID"]

        answer = await client.post(f"/sandboxes/{name}/connect", json={"timeout": 10})
        assert answer.status_code == 200
        assert await client.ends(name) > 500
        await client.post(f"/v2/sandboxes/{name}/connect", json={"timeout": 3000})
        assert await client.ends(name) > 2900
        answer = await client.post(f"/sandboxes/{name}/timeout", json={"timeout": 100})
        assert answer.status_code == 204
        assert await client.ends(name) <= 100


async def test_a_sandbox_ends_by_itself_in_another_web_process_too(rig: Rig) -> None:
    async with clients(rig) as first:
        name = (await first.created(timeout=600))["sandboxID"]
        await first.post(f"/sandboxes/{name}/timeout", json={"timeout": 1})
    async with clients(rig) as second, asyncio.timeout(120):
        while await second.listed():
            await asyncio.sleep(0.01)


async def test_a_paused_sandbox_does_not_answer_until_it_is_connected(rig: Rig) -> None:
    async with clients(rig) as client:
        made = await client.created()
        name = made["sandboxID"]
        await run_in(client, name)
        assert (await client.post(f"/sandboxes/{name}/pause", json={})).status_code == 204
        assert (await client.post(f"/sandboxes/{name}/pause")).status_code == 409
        assert await client.listed(state="paused") == [name]
        assert await client.listed(state="running") == []
        assert await client.ends(name) > 86_400
        with pytest.raises(HttpError, match="was not found") as dead:
            await sandbox_of(client.port, asked(made))
        assert dead.value.status == 502

        answer = await client.post(f"/sandboxes/{name}/connect", json={"timeout": 60})
        assert answer.status_code == 201
        assert (await client.post(f"/sandboxes/{name}/resume")).status_code == 409
        assert await client.ends(name) <= 60
        assert (await sandbox_of(client.port, asked(made))).name == name


async def test_a_sandbox_may_pause_at_its_end_and_a_request_may_resume_it(rig: Rig) -> None:
    async with clients(rig) as client, asyncio.timeout(120):
        waits = await client.created(timeout=1, autoPause=True)
        wakes = await client.created(timeout=1, autoPause=True, autoResume={"enabled": True})
        both = sorted([waits["sandboxID"], wakes["sandboxID"]])
        while sorted(await client.listed(state="paused")) != both:
            await asyncio.sleep(0.01)

        with pytest.raises(HttpError, match="was not found"):
            await sandbox_of(client.port, asked(waits))
        assert (await sandbox_of(client.port, asked(wakes))).name == wakes["sandboxID"]
        shown = (await client.get(f"/sandboxes/{waits['sandboxID']}")).json()
        assert shown["lifecycle"] == {"onTimeout": "pause", "autoResume": False}
        answer = await client.post(f"/sandboxes/{waits['sandboxID']}/connect", json={})
        assert answer.status_code == 201


async def test_pages_follow_each_other(rig: Rig) -> None:
    async with clients(rig) as client:
        made = [(await client.created())["sandboxID"] for _ in range(3)]
        first = await client.get("/v2/sandboxes", params={"limit": 2})
        token = first.headers["x-next-token"]
        second = await client.get("/v2/sandboxes", params={"limit": 2, "nextToken": token})

        assert "x-next-token" not in second.headers
        found = [row["sandboxID"] for row in first.json() + second.json()]
        assert found == made[::-1]


async def test_forks_and_snapshots_are_sandboxes_of_their_own(rig: Rig) -> None:
    async with clients(rig) as client:
        name = (await client.created(metadata={"run": "1"}))["sandboxID"]
        forks = await client.post(f"/sandboxes/{name}/fork", json={"count": 2, "timeout": 50})
        assert forks.status_code == 201
        children = [each["sandbox"]["sandboxID"] for each in forks.json()]
        assert sorted(await client.listed(metadata="run=1")) == sorted([name, *children])
        assert await client.ends(children[0]) <= 50

        taken = await client.post(f"/sandboxes/{name}/snapshots", json={"name": "kept"})
        assert taken.json() == {"snapshotID": "kept", "names": ["kept"]}
        assert (await client.get("/snapshots")).json() == [taken.json()]
        again = await client.created(templateID="kept")
        assert again["templateID"] == "kept"
        assert (await client.delete("/templates/kept")).status_code == 204
        assert (await client.get("/snapshots")).json() == []
        assert (await client.delete("/templates/kept")).status_code == 404


async def test_a_repeated_creation_with_a_key_is_one_sandbox(rig: Rig) -> None:
    async with clients(rig) as client:
        key = {"Idempotency-Key": "k-1"}
        answers = [
            await client.post("/v2/sandboxes", json={"templateID": "base"}, headers=key)
            for _ in range(2)
        ]

        assert len({answer.json()["sandboxID"] for answer in answers}) == 1
        assert len(await client.listed()) == 1


async def test_other_projects_see_no_sandbox(rig: Rig) -> None:
    async with clients(rig) as client:
        made = await client.created()
        name = made["sandboxID"]
        stranger = {"X-API-Key": "stranger"}
        answers = [
            await client.request(method, f"/sandboxes/{name}{path}", headers=stranger)
            for method, path in (
                ("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/connect"),
                ("POST", "/fork"), ("POST", "/snapshots"), ("GET", "/metrics"),
            )
        ]  # fmt: skip

        assert {answer.status_code for answer in answers} == {404}
        assert (await client.get("/v2/sandboxes", headers=stranger)).json() == []
        assert (await client.get("/v2/sandboxes", headers={"X-API-Key": "no"})).status_code == 401


async def test_errors_have_the_shape_that_the_sdk_reads(rig: Rig) -> None:
    async with clients(rig) as client:
        missing = await client.post("/v2/sandboxes", json={"templateID": "no such template"})
        wrong = await client.post("/v2/sandboxes", json={"templateID": "base", "timeout": "x"})
        nowhere = await client.get("/v2/nothing")

        for answer in (missing, wrong, nowhere):
            body = answer.json()
            assert body["code"] == answer.status_code
            assert body["message"]
        assert wrong.status_code == 400
        assert nowhere.status_code == 404


async def test_metrics_are_of_now(rig: Rig) -> None:
    async with clients(rig) as client:
        name = (await client.created())["sandboxID"]
        (measured,) = (await client.get(f"/sandboxes/{name}/metrics")).json()
        of_all = (await client.get("/sandboxes/metrics", params={"sandbox_ids": name})).json()

        assert measured["cpuCount"] == 1
        assert measured["memUsed"] == 0
        assert list(of_all["sandboxes"]) == [name]
        past = await client.get(f"/sandboxes/{name}/metrics", params={"start": 1, "end": 2})
        assert past.json() == []


def asked(
    sandbox: dict[str, Any], query: str = "", address: str = "127.0.0.1", **headers: str
) -> HttpRequest:
    """Return a request to envd with the token of a sandbox, or to a signed URL."""
    if not query and "envdAccessToken" in sandbox:
        headers["x-access-token"] = sandbox["envdAccessToken"]
    if not query:
        headers["e2b-sandbox-id"] = sandbox["sandboxID"]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/files" if query else "/e2b/files",
        "query_string": query.encode(),
        "client": (address, 1),
        "headers": [
            (name.replace("_", "-").encode(), each.encode()) for name, each in headers.items()
        ],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    return HttpRequest(scope, receive)


def signed(token: str, path: str, operation: str, expires: int | None = None) -> str:
    text = f"{path}:{operation}::{token}" + (f":{expires}" if expires else "")
    made = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    query = httpx.QueryParams({"path": path, "signature": f"v1_{made}"})
    return str(query.add("signature_expiration", str(expires)) if expires else query)


async def test_a_signed_url_finds_its_sandbox_without_its_id(rig: Rig) -> None:
    async with clients(rig) as client:
        others = [await client.created() for _ in range(3)]
        made = await client.created()
        query = signed(made["envdAccessToken"], "/tmp/a b", "read")

        found = await signed_sandbox(client.port, asked({}, query), "read")
        assert (found.name, found.principal.project) == (made["sandboxID"], "default")
        assert others[0]["sandboxID"] != found.name
        late = datetime.now(UTC).timestamp() + 3600
        query = signed(made["envdAccessToken"], "/tmp/a", "read", int(late))
        assert (await signed_sandbox(client.port, asked({}, query), "read")).name == found.name


@pytest.mark.parametrize(
    ("operation", "expires", "change"),
    [("write", None, ""), ("read", 1_000_000_000, ""), ("read", None, "&username=root")],
)
async def test_a_signature_holds_for_one_operation_path_and_time(
    rig: Rig, operation: str, expires: int | None, change: str
) -> None:
    async with clients(rig) as client:
        made = await client.created()
        query = signed(made["envdAccessToken"], "/tmp/a", "read", expires) + change

        with pytest.raises(HttpError) as refused:
            await signed_sandbox(client.port, asked({}, query), operation)
        assert refused.value.status == 401


async def test_the_token_of_a_sandbox_is_refused_in_another_one(rig: Rig) -> None:
    async with clients(rig) as client:
        first, second = await client.created(), await client.created()
        mixed = {**first, "envdAccessToken": second["envdAccessToken"]}

        with pytest.raises(HttpError) as refused:
            await sandbox_of(client.port, asked(mixed))
        assert refused.value.status == 401
        assert isinstance(await sandbox_of(client.port, asked(first)), OpenSandbox)


async def test_a_sandbox_is_reached_from_the_networks_of_its_creator_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    scopes = frozenset({Scope.READ, Scope.SUBMIT})
    narrow = Principal("narrow", "default", scopes, networks=("127.0.0.0/8",))
    monkeypatch.setitem(TOKENS, "narrow", narrow)
    async with clients(rig, "narrow") as client:
        made = await client.created()

        assert (await sandbox_of(client.port, asked(made))).name == made["sandboxID"]
        with pytest.raises(HttpError) as refused:
            await sandbox_of(client.port, asked(made, address="192.0.2.1"))
        assert refused.value.status == 403


async def test_a_killed_sandbox_does_not_answer(rig: Rig) -> None:
    async with clients(rig) as client:
        made = await client.created()
        found = await sandbox_of(client.port, asked(made), fresh=True)
        assert found.name == made["sandboxID"]
        await client.delete(f"/sandboxes/{made['sandboxID']}")

        with pytest.raises(HttpError, match="was not found") as dead:
            await sandbox_of(client.port, asked(made), fresh=True)
        assert dead.value.status == 502
        assert dead.value.headers == {"Should-Retry": "false"}


def test_files_are_served_at_the_root_too() -> None:
    from facades.e2b import ROUTES

    own = {route.method for route in envd.ROUTES if route.path == "/e2b/files"}
    assert {route.method for route in ROUTES if route.path == "/files"} == own
