"""Asking the web process whether all parts are alive, and what there is to work with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

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
                    answer = describe_missing(body)
                waiting(f"waiting for the parts to be ready: {answer[:120]}")
                await asyncio.sleep(_EVERY_SECONDS)
    except TimeoutError:
        raise StartFailed(f"not ready after {timeout_seconds:g} s: {answer}") from None


def describe_missing(body: str) -> str:
    """Return what ``/readyz`` still misses, in words."""
    try:
        checks = json.loads(body)["checks"]
        return "; ".join(problem for problem in checks.values() if problem != "ok")
    except (ValueError, KeyError, TypeError, AttributeError):
        return body


async def nodes_joined(
    host: str, port: int, *, token: str, count: int, timeout_seconds: float
) -> list[dict[str, Any]]:
    """Return the nodes as they introduced themselves, once ``count`` are there or time is up."""
    nodes: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(timeout_seconds):
            while len(nodes) < count:
                status, body = await ask(host, port, "/api/v1/status", token)
                nodes = json.loads(body)["nodes"] if status == 200 else nodes
                await asyncio.sleep(_EVERY_SECONDS if len(nodes) < count else 0)
    except TimeoutError:
        pass
    return nodes


async def ask(host: str, port: int, path: str, token: str = "") -> tuple[int, str]:
    """Return status and body of a GET; status 0 when nobody answers in time."""
    # 1.0: the body is everything up to the end of the connection.
    lines = [f"GET {path} HTTP/1.0", f"Host: {host}:{port}", f"Authorization: Bearer {token}"]
    request = "\r\n".join([*(lines if token else lines[:2]), "", ""])
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
    return status, body
