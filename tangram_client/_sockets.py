"""Websockets to a Tangram of several web processes: the first that takes the connection has it.

They need the package ``websockets``. A socket that breaks off is not opened again here: what went through it is not
repeated, and its user opens the next one, at the web process that answers then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

from tangram_client._gateways import AWAY
from tangram_client.context import ClientContext
from tangram_client.errors import TangramClientError


def check_websockets() -> None:
    """Raise TangramClientError without the package."""
    if find_spec("websockets") is None:
        raise TangramClientError("install websockets: pip install 'tangram-client[shell]'")


@asynccontextmanager
async def open_socket(context: ClientContext, path: str, **options: Any) -> AsyncIterator[Any]:
    """Connect to ``path`` at the first web process that answers, and close it at the end.

    ``options`` are those of ``websockets.connect``. Raises what that raises for the last web process, and TangramClientError without
    the package.
    """
    check_websockets()
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidMessage, InvalidStatus

    headers = {} if context.token is None else {"Authorization": f"Bearer {context.token}"}
    *others, last = context.urls
    socket = None
    for url in others:
        try:
            socket = await connect(
                _address(url, path), additional_headers=headers, proxy=None, **options
            )
        except InvalidStatus as error:
            if error.response.status_code not in AWAY:
                raise
        except (OSError, InvalidMessage):
            continue
        else:
            break
    if socket is None:
        socket = await connect(
            _address(last, path), additional_headers=headers, proxy=None, **options
        )
    async with socket:
        yield socket


def _address(url: str, path: str) -> str:
    return f"{url.replace('http', 'ws', 1).rstrip('/')}{path}"
