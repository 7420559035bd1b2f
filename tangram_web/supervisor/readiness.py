"""Readiness of the stack: polls the web process until all parts are alive and the nodes have joined."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from tangram_web.supervisor.errors import StartFailed

_EVERY_SECONDS = 0.1


async def wait_until_ready(
    host: str,
    port: int,
    *,
    token: str,
    timeout_seconds: float,
    waiting: Callable[[str], None],
    has_nodes: bool = True,
) -> None:
    """Return once ``/readyz`` answers 200. Raises StartFailed with its last answer at the time-out.

    With ``token`` the answer has the reasons. Without ``has_nodes``, the check of nodes may fail: those of a cluster come later.
    """
    answer = "the web process does not answer yet"
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                status, body = await get(host, port, "/readyz", token)
                failed = failed_checks(body) if status and status != 200 else {}
                if status == 200 or (not has_nodes and failed.keys() == {"node"}):
                    break
                if status:
                    answer = "; ".join(failed.values()) or body
                waiting(f"waiting for the parts to be ready: {answer[:120]}")
                await asyncio.sleep(_EVERY_SECONDS)
    except TimeoutError:
        raise StartFailed(f"not ready after {timeout_seconds:g} s: {answer}") from None


async def check_is_ours(host: str, port: int, *, token: str) -> None:
    """Raise StartFailed for another Tangram on the port, which does not know the token."""
    if (await get(host, port, "/api/v1/status", token))[0] == 401:
        raise StartFailed(f"another Tangram answers on port {port}: give another one with --port")


def failed_checks(body: str) -> dict[str, str]:
    """Return the failed checks of an answer of ``/readyz`` by name; none where it is another answer."""
    try:
        checks: dict[str, str] = json.loads(body)["checks"]
        return {name: problem for name, problem in checks.items() if problem != "ok"}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


async def nodes_joined(
    host: str, port: int, *, token: str, count: int, timeout_seconds: float
) -> list[dict[str, Any]]:
    """Return the nodes as ``/status`` lists them, once ``count`` have joined or at the time-out."""
    nodes: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(timeout_seconds):
            while len(nodes) < count:
                status, body = await get(host, port, "/api/v1/status", token)
                nodes = json.loads(body)["nodes"] if status == 200 else nodes
                await asyncio.sleep(_EVERY_SECONDS if len(nodes) < count else 0)
    except TimeoutError:
        pass
    return nodes


async def get(host: str, port: int, path: str, token: str = "") -> tuple[int, str]:
    """Return status and body of a GET; status 0 without an answer in time."""
    # HTTP/1.0: the body ends with the connection.
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
