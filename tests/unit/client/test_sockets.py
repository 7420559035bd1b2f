"""Websockets of a client of several web processes: the first that answers has the connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import InvalidStatus
from websockets.http11 import Request, Response

from tangram_client._sockets import open_socket
from tangram_client.context import ClientContext
from tests.ports import free_port


@asynccontextmanager
async def web_process(status: HTTPStatus | None = None) -> AsyncIterator[str]:
    """Answer each connection with its path and its token, or refuse it with a status."""

    async def answer(socket: ServerConnection) -> None:
        assert socket.request is not None
        await socket.send(f"{socket.request.path} {socket.request.headers['Authorization']}")

    def refuse(socket: ServerConnection, _: Request) -> Response | None:
        return None if status is None else socket.respond(status, "away")

    async with serve(answer, "127.0.0.1", 0, process_request=refuse) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def heard(*urls: str) -> str | bytes:
    context = ClientContext(urls[0], "secret", "given", urls[1:])
    async with open_socket(context, "/api/v1/x?project=p", max_size=None) as socket:
        found: str | bytes = await socket.recv()
        return found


async def test_one_that_is_gone_or_away_is_passed_over() -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    async with web_process(HTTPStatus.SERVICE_UNAVAILABLE) as away, web_process() as well:
        assert await heard(gone, away, well) == "/api/v1/x?project=p Bearer secret"


async def test_a_refusal_is_the_answer_of_all() -> None:
    async with web_process(HTTPStatus.NOT_FOUND) as refusing, web_process() as well:
        with pytest.raises(InvalidStatus, match="404"):
            await heard(refusing, well)


async def test_when_none_answers_the_last_failure_counts() -> None:
    with pytest.raises(OSError, match="onnect"):
        await heard(f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}")
