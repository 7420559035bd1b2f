"""A client of several web processes: a call goes to the next one when one does not answer, and runs once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tangram_client import AsyncClient, Client, RetryPolicy, TangramClientError, exec_action
from tangram_client.context import find_context
from tangram_client.testing import FakeServer

A, B = "http://a.test", "http://b.test:8001/prefix"
ACTION = exec_action("swe", ["pytest", "-q"])


@dataclass
class PlayedGateways(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Web processes in front of one server. A host of `faults` shows a fault: a status, or an error of the network."""

    server: FakeServer
    faults: dict[str, int | type[httpx.TransportError]] = field(default_factory=dict)
    #: A request reaches the server before its fault.
    late: bool = False
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._note(request)
        fault = self.faults.get(request.url.host)
        if fault is not None and not self.late:
            return self._show(fault, request)
        answer = self.server.transport.handle_request(self._inner(request))
        return answer if fault is None else self._show(fault, request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)

    def _note(self, request: httpx.Request) -> None:
        assert request.headers["host"] == request.url.netloc.decode()
        key = request.headers.get("idempotency-key", "")
        self.asked.append((request.url.host, request.method, key))

    def _inner(self, request: httpx.Request) -> httpx.Request:
        path = request.url.raw_path.removeprefix(b"/prefix")
        url = httpx.URL(self.server.url).copy_with(raw_path=path)
        return httpx.Request(request.method, url, headers=request.headers, content=request.read())

    def _show(
        self, fault: int | type[httpx.TransportError], request: httpx.Request
    ) -> httpx.Response:
        if isinstance(fault, int):
            return httpx.Response(fault, json={"detail": "away"}, headers={"retry-after": "1"})
        raise fault("it does not answer", request=request)

    @property
    def hosts(self) -> list[str]:
        return [host for host, _, _ in self.asked]


@pytest.fixture
def gateways(server: FakeServer) -> PlayedGateways:
    return PlayedGateways(server)


@pytest.fixture
def client(server: FakeServer, gateways: PlayedGateways) -> Iterator[Client]:
    with Client([A, B], server.token, transport=gateways, clock=server.clock) as client:
        yield client


@pytest.fixture
async def aclient(server: FakeServer, gateways: PlayedGateways) -> AsyncIterator[AsyncClient]:
    url = f"{A},{B}"
    async with AsyncClient(url, server.token, transport=gateways, clock=server.clock) as client:
        yield client


FAULTS = [httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError, 502, 503, 504]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_call_goes_to_the_next_gateway_at_once_and_stays_there(
    client: Client, gateways: PlayedGateways, server: FakeServer, fault
) -> None:
    gateways.faults["a.test"] = fault
    began = server.clock.now()

    first, second = client.submit(ACTION), client.submit(ACTION)

    assert first.id != second.id
    assert gateways.hosts == ["a.test", "b.test", "b.test"]
    assert server.clock.now() - began < RetryPolicy().first_delay_seconds / 2


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_asyncio_client_does_the_same(
    aclient: AsyncClient, gateways: PlayedGateways, fault
) -> None:
    gateways.faults["a.test"] = fault

    await aclient.submit(ACTION)
    await aclient.submit(ACTION)

    assert gateways.hosts == ["a.test", "b.test", "b.test"]


def test_a_submission_that_arrived_before_its_gateway_died_runs_once(
    client: Client, gateways: PlayedGateways, server: FakeServer
) -> None:
    gateways.faults["a.test"], gateways.late = httpx.ReadError, True

    view = client.run(ACTION)

    keys = {key for _, method, key in gateways.asked if method == "POST"}
    assert len(keys) == 1
    assert list(server.world.actions) == [view.id]
    assert view.completed


def test_a_wait_is_resumed_at_the_other_gateway(client: Client, gateways: PlayedGateways) -> None:
    view = client.submit(ACTION)
    gateways.faults["a.test"] = httpx.ReadTimeout

    done = client.wait(view.id)

    assert done.finished
    assert gateways.hosts == ["a.test", "a.test", "b.test"]


def test_when_no_gateway_answers_the_policy_decides(
    client: Client, gateways: PlayedGateways, server: FakeServer
) -> None:
    gateways.faults = {"a.test": httpx.ConnectError, "b.test": 503}
    patient = Client(
        [A, B], server.token, transport=gateways, clock=server.clock, retry=RetryPolicy(attempts=2)
    )

    with pytest.raises(TangramClientError, match=r"away|it does not answer"):
        patient.submit(ACTION)

    assert sorted(gateways.hosts) == ["a.test", "a.test", "b.test", "b.test"]
    gateways.faults = {}
    assert client.run(ACTION).completed


def test_a_refusal_is_the_answer_of_all(client: Client, gateways: PlayedGateways) -> None:
    gateways.faults["a.test"] = 422

    with pytest.raises(Exception, match="away"):
        client.submit(ACTION)

    assert gateways.hosts == ["a.test"]


def test_a_body_that_is_read_once_goes_to_the_next_gateway_with_the_next_attempt(
    client: Client, gateways: PlayedGateways
) -> None:
    bodies = iter([iter([b"part"])])
    request = httpx.Request("PUT", f"{A}/x", content=next(bodies))
    gateways.faults["a.test"] = 503

    assert client._http.send(request).status_code == 503
    client.submit(ACTION)

    assert gateways.hosts == ["a.test", "b.test"]


def test_addresses_are_a_list_with_commas_in_the_environment_and_the_file(tmp_path: Path) -> None:
    stored = {"url": f"{A}, {B}", "token": "tgm_stored"}
    (tmp_path / "client.json").write_text(json.dumps(stored))
    env = {"TANGRAM_HOME": str(tmp_path)}

    assert find_context(environ=env).urls == (A, B)
    assert find_context(f" {B},{A}/,{B},", environ=env).urls == (B, A)
    assert find_context([B], environ=env).token == "tgm_stored"
    assert find_context([A, "http://c.test"], environ=env).token is None
    with pytest.raises(ValueError, match="'c' is not a URL"):
        find_context(environ=env | {"TANGRAM_URL": f"{A},c"})
