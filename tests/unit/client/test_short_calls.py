"""Short calls of both clients: connections are kept, closed ones are not used, errors are those of httpx."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from tangram_client import AsyncClient, Client
from tangram_client._core import ApiCall, ApiResponse
from tangram_client._short_calls import AsyncShortCalls, ShortCalls
from tests.ports import free_port

Ask = Callable[..., ApiResponse]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        said = self.rfile.read(length).decode()
        if "silent" in self.path:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        shown = {
            "method": self.command,
            "path": self.path,
            "body": said,
            "token": self.headers.get("Authorization"),
            "port": self.client_address[1],
        }
        body = json.dumps(shown).encode()
        self.send_response(404 if "missing" in self.path else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Request-Id", "r1")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = "close" in self.path


for verb in ("GET", "POST"):
    setattr(_Handler, f"do_{verb}", _Handler.answer)


class _Server(ThreadingHTTPServer):
    #: That of the test which runs; handlers of an earlier one may still end.
    newest: _Server

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        #: Set once it has closed a connection.
        self.closed = threading.Event()
        _Server.newest = self

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.closed.set()


@pytest.fixture
def server() -> Iterator[str]:
    httpd = _Server()
    serving = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
    serving.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}/base"
    httpd.shutdown()
    httpd.server_close()


def test_a_gateway_that_is_gone_or_says_nothing_is_left_for_the_next_one(server: str) -> None:
    base = server.removesuffix("/base")
    urls = [f"http://127.0.0.1:{free_port()}/gone", f"{base}/silent", f"{base}/base"]

    with Client(urls, "tgm_t") as client:
        assert client.status()["path"] == "/base/api/v1/status"
        port = client.status()["port"]
        assert client.status()["port"] == port

    async def ask() -> str:
        async with AsyncClient(urls, "tgm_t") as client:
            return str((await client.status())["path"])

    assert asyncio.run(ask()) == "/base/api/v1/status"


@pytest.fixture(params=["blocking", "asyncio"])
def connect(request: Any) -> Iterator[Callable[[str], Ask]]:
    """Return a function that sends calls to a URL, one after the other."""
    headers = {"Authorization": "Bearer t"}
    runner, ends = asyncio.Runner(), []

    def blocking(url: str) -> Ask:
        calls = ShortCalls(url, headers, None)
        ends.append(calls.close)
        return calls.answer

    def with_asyncio(url: str) -> Ask:
        calls = AsyncShortCalls(url, headers, None)
        ends.append(lambda: runner.run(calls.aclose()))
        return lambda call: runner.run(calls.answer(call))

    yield blocking if request.param == "blocking" else with_asyncio
    for end in ends:
        end()
    runner.close()


def a_call(method: str = "GET", path: str = "/x", **fields: Any) -> ApiCall[Any]:
    return ApiCall(method, path, lambda response: response.json(), **fields)


def test_a_call_arrives_whole_and_its_answer_returns(connect: Any, server: str) -> None:
    ask = connect(server)
    call = a_call("POST", "/actions", params={"wait": "30"}, content=b'{"a": 1}')
    answer = ask(call)
    shown = answer.json()
    assert (shown["method"], shown["path"]) == ("POST", "/base/actions?wait=30")
    assert (shown["body"], shown["token"]) == ('{"a": 1}', "Bearer t")
    assert (answer.status, answer.headers["x-request-id"]) == (200, "r1")


def test_a_refusal_is_an_answer(connect: Any, server: str) -> None:
    assert connect(server)(a_call(path="/missing")).status == 404


def test_calls_in_a_row_use_one_connection(connect: Any, server: str) -> None:
    ask = connect(server)
    assert len({ask(a_call()).json()["port"] for _ in range(5)}) == 1


def test_a_connection_that_the_server_closed_is_not_used_again(connect: Any, server: str) -> None:
    ask = connect(server)
    first = ask(a_call(path="/close")).json()["port"]
    assert _Server.newest.closed.wait(60)
    assert ask(a_call()).json()["port"] != first


@pytest.mark.parametrize("path", ["/silent"])
def test_a_server_that_hangs_up_is_a_transport_error(connect: Any, server: str, path: str) -> None:
    with pytest.raises(httpx.TransportError):
        connect(server)(a_call(path=path))


def test_a_server_that_is_away_refuses_the_connection(connect: Any) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(httpx.ConnectError):
            connect(url)(a_call())


async def test_a_cancelled_call_closes_its_connection(server: str) -> None:
    calls = AsyncShortCalls(server, {}, None)
    first = (await calls.answer(a_call())).json()["port"]
    asking = asyncio.ensure_future(calls.answer(a_call()))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (await calls.answer(a_call())).json()["port"] != first
    await calls.aclose()


def test_threads_share_connections(server: str) -> None:
    calls = ShortCalls(server, {}, None)
    ports: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: ports.extend(calls.answer(a_call()).json()["port"] for _ in range(20))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ports) == 80
    assert len(set(ports)) <= 4
    calls.close()


def _answering(*pieces: bytes) -> socket.socket:
    """Answer the first connection with ``pieces``, then close it."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            for each in pieces:
                connection.sendall(each)

    threading.Thread(target=serve, daemon=True).start()
    return listening


@pytest.mark.parametrize(
    "pieces",
    [
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[1",
            b"\r\n1\r\n]\r\n0\r\n\r\n",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n[1]"),
        (b"HTTP/1.0 200 OK\r\n\r\n[1]",),
    ],
    ids=["in chunks", "after a provisional one", "until the connection ends"],
)
def test_an_answer_of_any_form_is_read_whole(connect: Any, pieces: tuple[bytes, ...]) -> None:
    with _answering(*pieces) as server:
        answer = connect(f"http://127.0.0.1:{server.getsockname()[1]}")(a_call())
    assert (answer.status, answer.json()) == (200, [1])


@pytest.mark.parametrize(
    "pieces",
    [(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[1",), (b"SSH-2.0-x\r\n",)],
    ids=["cut off", "no HTTP"],
)
def test_a_broken_answer_is_a_transport_error(connect: Any, pieces: tuple[bytes, ...]) -> None:
    with _answering(*pieces) as server, pytest.raises(httpx.TransportError):
        connect(f"http://127.0.0.1:{server.getsockname()[1]}")(a_call())


def test_a_silent_server_is_a_read_timeout(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tangram_client._core.ANSWER_SECONDS", 0.005)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(httpx.ReadTimeout):
        connect(f"http://127.0.0.1:{server.getsockname()[1]}")(a_call())


@pytest.mark.parametrize(
    "call", [a_call(path="/a b"), a_call(headers={"Idempotency-Key": "k\r\nHost: x"})]
)
def test_nothing_is_added_to_a_request(connect: Any, server: str, call: ApiCall[Any]) -> None:
    with pytest.raises(ValueError, match=r"path of the API|line break"):
        connect(server)(call)
