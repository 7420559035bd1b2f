"""Asking the web process whether all parts are alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tangram_web.supervisor.errors import StartFailed

_EVERY_SECONDS = 0.1


async def wait_until_ready(
    host: str, port: int, *, timeout_seconds: float, waiting: Callable[[str], None]
) -> None:
    """Return once ``/readyz`` says yes. Raises StartFailed with its last answer when it never does."""
    answer = "the web process does not answer yet"
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                status, body = await ask(host, port, "/readyz")
                if status == 200:
                    return
                if status:
                    answer = body
                waiting(f"waiting for the parts to be ready: {answer[:120]}")
                await asyncio.sleep(_EVERY_SECONDS)
    except TimeoutError:
        raise StartFailed(f"not ready after {timeout_seconds:g} s: {answer}") from None


async def ask(host: str, port: int, path: str) -> tuple[int, str]:
    """Return status and body of a GET; status 0 when nobody answers in time."""
    request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(request.encode())
                answer = await reader.read()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return 0, ""
    head, _, body = answer.decode(errors="replace").partition("\r\n\r\n")
    words = head.split(maxsplit=2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    return status, " ".join(body.split())
