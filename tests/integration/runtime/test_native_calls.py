"""Native calls of a door: the checks of ``/api/v1``, its project, streams, and actions that end with their client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from contract.routes import Route
from domain.action import Outcome
from domain.errors import Conflict, InvalidRequest, NotFound, TangramError
from domain.ids import ActionId
from domain.principals import Principal, Scope
from managers.cpu.fake import Play
from scheduler.runtime.gateway.app import Gateway
from scheduler.runtime.gateway.facade import Facade, FacadeEntry, FacadePort
from scheduler.runtime.gateway.http import HttpError, HttpRequest, HttpResponse, problem_of
from scheduler.runtime.gateway.native_calls import NativeCalls
from scheduler.runtime.gateway.route_table import Handler
from tests.integration.runtime.rig import Rig

Use = Callable[[NativeCalls], Awaitable[Any]]
FOREVER = Play(seconds=None)


def a_command(**fields: Any) -> dict[str, Any]:
    work = {"command": ["echo", "hello"]}
    return {"task": "t", "kind": "exec", "cost": {"cpu": 1}, "exec": work, **fields}


def a_route(method: str, path: str, operation: str, scope: Scope | None) -> Route:
    return Route(
        method=method, path=path, operation=operation, summary=operation, scope=scope, responses={}
    )


class Probe:
    """A door with one request, which makes the calls that a test gives."""

    def __init__(self) -> None:
        self.use: Use | None = None
        self.loads = 0

    def handlers(self, port: FacadePort) -> Mapping[str, Handler]:
        async def probe(
            request: HttpRequest, principal: Principal, trajectory: str | None
        ) -> HttpResponse:
            await request.body()
            assert self.use is not None
            return HttpResponse(200, await self.use(port.native(request, principal)))

        async def signed(request: HttpRequest, _: str | None, key: str) -> HttpResponse:
            await request.body()
            principal = await port.principal(request, key, Scope.SUBMIT)
            return HttpResponse(200, {"name": principal.name})

        return {"probe": probe, "signed": signed}

    def load(self) -> Facade:
        self.loads += 1
        routes = (
            a_route("POST", "/probe", "probe", Scope.READ),
            a_route("GET", "/probe-signed/{key}", "signed", None),
        )

        def refusal(error: TangramError, request: HttpRequest) -> HttpResponse:
            problem = problem_of(error, request)
            code = getattr(error, "code", type(error).__name__)
            return HttpResponse(problem.status, {"refused": code})

        return Facade("/probe", routes, self.handlers, refusal, {"type": "object"}, self.token)

    @staticmethod
    def token(request: HttpRequest) -> str:
        return request.header(b"x-probe-key")

    @asynccontextmanager
    async def served(self, rig: Rig, token: str = "trainer") -> AsyncIterator[httpx.AsyncClient]:
        """Return a client of a gateway with this door."""
        async with rig.gateway() as gateway:
            entry = FacadeEntry(("/probe", "/probe-signed"), self.load)
            own = Gateway(gateway._context, gateway._behind, facades=(entry,))
            headers = {"X-Probe-Key": token, "Authorization": f"Bearer {token}"}
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(own),
                base_url="http://tangram",
                headers=headers,
                timeout=300,
            ) as client:
                yield client

    async def made(self, client: httpx.AsyncClient, use: Use, **query: str) -> httpx.Response:
        """Return the answer of a request whose handler makes the calls of ``use``."""
        self.use = use
        return await client.post("/probe", params=query)


@pytest.fixture
def probe() -> Probe:
    return Probe()


async def until_idle(rig: Rig) -> None:
    """Wait until no action is live."""
    assert rig.loop is not None
    async with asyncio.timeout(120):
        while rig.loop.loop.term.machine.state.actions:
            await asyncio.sleep(0.005)


async def test_an_action_has_its_door_while_it_runs_and_when_it_is_finished(
    rig: Rig, probe: Probe
) -> None:
    rig.driver.script = lambda _: FOREVER

    async def use(native: NativeCalls) -> dict[str, str]:
        return {"id": (await native.start(a_command())).id}

    async with probe.served(rig) as client:
        name = (await probe.made(client, use)).json()["id"]
        await rig.until_started(name)
        async with asyncio.timeout(60):  # the start is reported a moment after it
            while (running := (await client.get(f"/api/v1/actions/{name}")).json())["state"] != "running":  # fmt: skip
                await asyncio.sleep(0.01)
        await rig.end_action(name)
        finished = (await client.get(f"/api/v1/actions/{name}", params={"wait": 60})).json()
        native = (await client.post("/api/v1/actions", json=a_command())).json()["id"]
        await rig.end_action(native)
        other = (await client.get(f"/api/v1/actions/{native}", params={"wait": 60})).json()

    assert (running["state"], running["door"]) == ("running", "probe")
    assert (finished["state"], finished["door"]) == ("finished", "probe")
    assert other["door"] == ""


async def test_a_run_returns_the_finished_action(rig: Rig, probe: Probe) -> None:
    async def use(native: NativeCalls) -> dict[str, Any]:
        view = await native.run(a_command())
        return {"out": view.result["stdout"], "outcome": view.outcome, "project": view.project}

    async with probe.served(rig) as client:
        ours = await probe.made(client, use)
    async with probe.served(rig, "stranger") as client:
        theirs = await probe.made(client, use)

    assert ours.json() == {"out": "hello\n", "outcome": "completed", "project": "default"}
    assert theirs.json()["project"] == "other"


async def test_a_run_is_cancelled_after_its_seconds_and_refused_as_a_timeout(
    rig: Rig, probe: Probe
) -> None:
    rig.driver.script = lambda _: FOREVER

    async def use(native: NativeCalls) -> None:
        await native.run(a_command(), seconds=0.2)

    async with probe.served(rig) as client:
        answer = await probe.made(client, use)
        await until_idle(rig)

    assert (answer.status_code, answer.json()) == (504, {"refused": "timeout"})


async def left(client: httpx.AsyncClient, gone: asyncio.Event) -> None:
    """Send a request whose client disconnects once ``gone`` is set."""
    transport = client._transport
    assert isinstance(transport, httpx.ASGITransport)
    unread = [b"{}"]

    async def receive() -> dict[str, Any]:
        if unread:
            return {"type": "http.request", "body": unread.pop()}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        raise AssertionError("the client has left")

    headers = [(b"x-probe-key", b"trainer")]
    scope = {"type": "http", "method": "POST", "path": "/probe", "headers": headers}
    await asyncio.wait_for(transport.app(scope, receive, send), 120)


async def test_a_run_ends_with_its_client(rig: Rig, probe: Probe) -> None:
    rig.driver.script = lambda _: FOREVER
    gone = asyncio.Event()
    kept: list[str] = []

    async def use(native: NativeCalls) -> None:
        kept.append((await native.start(a_command())).id)
        await rig.until_started(kept[0])
        gone.set()
        await native.run(a_command())

    probe.use = use
    async with probe.served(rig) as client:
        await left(client, gone)
        await rig.end_action(kept[0])  # what was started goes on until it ends by itself
        finished = (await client.get(f"/api/v1/actions/{kept[0]}", params={"wait": 60})).json()
        await until_idle(rig)

    assert finished["outcome"] == "completed"


async def test_a_call_needs_the_scope_of_its_native_route(rig: Rig, probe: Probe) -> None:
    """The request itself needs the scope ``read`` alone."""
    calls: list[Use] = [
        lambda native: native.run(a_command()),
        lambda native: native.start(a_command()),
        lambda native: native.open("t1", "t"),
        lambda native: native.put("t1", "a", b"x"),
        lambda native: native.finish("t1"),
    ]
    async with probe.served(rig, "reader") as client:
        answers = [await probe.made(client, use) for use in calls]

        async def attach(native: NativeCalls) -> None:
            async with native.attach("t1", "main"):
                raise AssertionError("attached")

        answers.append(await probe.made(client, attach))

    assert [answer.status_code for answer in answers] == [403] * 6
    assert {answer.json()["refused"] for answer in answers} == {"missing_scope"}


async def test_calls_are_of_the_project_that_the_request_names(rig: Rig, probe: Probe) -> None:
    async def use(native: NativeCalls) -> dict[str, str]:
        await native.open("t1", "t")
        view = await native.run(a_command(trajectory="t1"))
        await native.trajectory("t1")
        return {"project": view.project, "of": await native.project()}

    async with probe.served(rig) as client:
        other = await probe.made(client, use, project="other")
        own = await probe.made(client, use, project="default")

    assert other.status_code == 404
    assert own.json() == {"project": "default", "of": "default"}


async def test_files_pass_piece_by_piece_and_errors_are_the_native_ones(
    rig: Rig, probe: Probe
) -> None:
    content = bytes(range(256)) * 4096  # 1 MiB

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 65536):
            yield content[start : start + 65536]

    async def use(native: NativeCalls) -> dict[str, Any]:
        await native.open("t1", "t")
        await native.upload("t1", "deep/large", pieces())
        facts = await native.stat("t1", "deep/large")
        read = 0
        async with native.download("t1", "deep/large") as file:
            assert file.status == 200
            async for piece in file.chunks:
                assert piece == content[read : read + len(piece)]
                read += len(piece)
        names = [entry.name for entry in await native.entries("t1", "deep")]
        await native.move("t1", "deep/large", "deep/moved", replace=False)
        await native.remove("t1", "deep/moved")
        with pytest.raises(NotFound) as missing:
            await native.get("t1", "deep/moved", 10)
        with pytest.raises(Conflict):
            await native.make_directory("t1", "deep", parents=False)
        with pytest.raises(InvalidRequest):
            await native.get("t1", "deep", 10)
        error = missing.value.code
        return {"bytes": facts.size_bytes, "read": read, "names": names, "error": error}

    async with probe.served(rig) as client:
        answer = await probe.made(client, use)

    assert answer.json() == {
        "bytes": len(content), "read": len(content), "names": ["large"], "error": "not_found",
    }  # fmt: skip


async def test_a_download_above_the_limit_is_refused_and_left(rig: Rig, probe: Probe) -> None:
    async def use(native: NativeCalls) -> dict[str, str]:
        await native.open("t1", "t")
        await native.put("t1", "large", bytes(200_000))
        with pytest.raises(HttpError) as refused:
            await native.get("t1", "large", 100_000)
        again = await native.get("t1", "large", 200_000)
        return {"code": refused.value.code, "bytes": str(len(again))}

    async with probe.served(rig) as client:
        answer = await probe.made(client, use)

    assert answer.json() == {"code": "too_large", "bytes": "200000"}


async def test_live_output_is_followed_from_a_position(rig: Rig, probe: Probe) -> None:
    rig.driver.script = lambda _: Play(seconds=None, stdout="early\n")

    async def use(native: NativeCalls) -> dict[str, Any]:
        name = ActionId((await native.start(a_command())).id)
        events = native.follow(name)
        first = await anext(events)
        await events.aclose()  # type: ignore[attr-defined]
        rig.driver.write(name, b"\xff", stderr=True)
        again = native.follow(name, first.position)
        second = await anext(again)
        await rig.end_action(name)
        rest = [event.kind async for event in again]
        return {"first": first.content.decode(), "second": list(second.content), "rest": rest}

    async with probe.served(rig) as client:
        answer = await probe.made(client, use)

    assert answer.json() == {"first": "early\n", "second": [255], "rest": ["end"]}


async def test_waiting_returns_when_the_action_ends_and_cancels_reach_it(
    rig: Rig, probe: Probe
) -> None:
    rig.driver.script = lambda _: FOREVER

    async def use(native: NativeCalls) -> list[Outcome | None]:
        name = (await native.start(a_command())).id
        early = await native.wait(name, 0.05)
        await native.cancel(name, "enough")
        return [early.outcome, (await native.wait(name)).outcome]

    async with probe.served(rig) as client:
        answer = await probe.made(client, use)

    assert answer.json() == [None, "cancelled"]


@pytest.mark.parametrize("session", ["../processes", "a/b", "", "x" * 200])
async def test_no_name_of_a_session_leads_elsewhere_on_the_node(
    rig: Rig, probe: Probe, session: str
) -> None:
    async def use(native: NativeCalls) -> None:
        await native.open("t1", "t")
        await native.put("t1", "a", b"x")
        async with native.attach("t1", session):
            raise AssertionError("attached")

    async with probe.served(rig) as client:
        answer = await probe.made(client, use)

    assert answer.status_code == 404


async def test_a_request_without_a_token_may_show_one_of_its_own(rig: Rig, probe: Probe) -> None:
    async with probe.served(rig) as client:
        client.headers.clear()
        known, reader, unknown = [
            await client.get(f"/probe-signed/{key}") for key in ("trainer", "reader", "nonsense")
        ]

    assert known.json() == {"name": "trainer"}
    assert [answer.status_code for answer in (reader, unknown)] == [403, 401]
    assert unknown.json() == {"refused": "unauthorized"}


async def test_a_door_is_loaded_once_with_its_first_request(rig: Rig, probe: Probe) -> None:
    async def nothing(native: NativeCalls) -> None: ...

    async with probe.served(rig) as client:
        await client.get("/api/v1/actions/act_1")
        before = probe.loads
        answers = [await probe.made(client, nothing) for _ in range(3)]

    assert before == 0
    assert [answer.status_code for answer in answers] == [200] * 3
    assert probe.loads == 1


async def test_a_door_that_cannot_be_loaded_is_unavailable_until_it_can(
    rig: Rig, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    whole = probe.load

    def broken() -> Facade:
        probe.load = whole  # type: ignore[method-assign]
        raise ImportError("no module named nothing")

    probe.load = broken  # type: ignore[method-assign]
    async with rig.gateway() as gateway:
        entry = FacadeEntry(("/probe", "/probe-signed"), lambda: probe.load())
        own = Gateway(gateway._context, gateway._behind, facades=(entry,))
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(own), base_url="http://tangram"
        ) as client:
            first = await client.get("/probe-signed/trainer")
            second = await client.get("/probe-signed/trainer")

    assert (first.status_code, first.json()["code"]) == (503, "unavailable")
    assert "no module named nothing" in caplog.text
    assert second.status_code == 200
