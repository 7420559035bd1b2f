"""Tries the doors of nodes from this web process: connects, and asks for an answer that only the node's worker gives.

All are tried at once, within bounds: so many at a time, each for `TRY_SECONDS`, and all together for `ALL_SECONDS`. A process makes one
round of trials at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Mapping
from typing import Final

from contract.door_address import DOOR_HEADER, DoorAddress, unreachable

TRY_SECONDS: Final = 2.0
ALL_SECONDS: Final = 10.0
_AT_ONCE: Final = 64
_UNAUTHORIZED: Final = b" 401 "

_round = threading.Lock()


def try_doors(addresses: Mapping[str, DoorAddress]) -> dict[str, str]:
    """Return why each door was not reached, by node; empty: it was. Doors that were not tried in time are missing."""
    with _round:
        return asyncio.run(_try_all(addresses))


async def _try_all(addresses: Mapping[str, DoorAddress]) -> dict[str, str]:
    found: dict[str, str] = {}
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def one(node: str, address: DoorAddress) -> None:
        async with at_once:
            why = await _problem_of(address)
        found[node] = unreachable(node, address, why) if why else ""

    trials = [asyncio.create_task(one(*each)) for each in addresses.items()]
    if trials:
        await asyncio.wait(trials, timeout=ALL_SECONDS)
    for trial in trials:
        trial.cancel()
    await asyncio.gather(*trials, return_exceptions=True)
    return found


async def _problem_of(address: DoorAddress) -> str:
    """Return why a door does not answer as that of its node; empty: it does."""
    try:
        async with asyncio.timeout(TRY_SECONDS):
            head = (await _head(address)).lower()
    except TimeoutError:
        return f"no answer within {TRY_SECONDS:g} s"
    except OSError as error:
        known = error.errno is not None and error.errno > 0
        return os.strerror(error.errno) if known and error.errno else str(error)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        return "what answers there is no node worker"
    if f"\n{DOOR_HEADER}:".encode() not in head:
        return "what answers there is no node worker"
    if _UNAUTHORIZED in head.partition(b"\n")[0]:
        return "the worker that answers there is another node's, or another start of this one"
    return ""


async def _head(address: DoorAddress) -> bytes:
    """Send a request to a door and return the head of its answer. Raises OSError, IncompleteReadError, LimitOverrunError, ValueError."""
    if (path := address.socket_path) is not None:
        reader, writer = await asyncio.open_unix_connection(path)
    else:
        host, _, port = address.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        authority = "node" if path is not None else address.address
        writer.write(
            f"GET / HTTP/1.1\r\nhost: {authority}\r\nauthorization: Bearer {address.secret}\r\n"
            "connection: close\r\n\r\n".encode()
        )
        return await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
