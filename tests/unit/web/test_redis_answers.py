"""A page that waits for Redis says what is wrong, however the connection fails."""

from __future__ import annotations

import asyncio

import pytest
import redis

from domain.errors import Unavailable
from tangram_web.lib import bus

#: What uvloop raises for a write on a closed connection.
CLOSED = RuntimeError(
    "unable to perform operation on <TCPTransport closed=True>; the handler is closed"
)


@pytest.mark.parametrize("error", [redis.ConnectionError("reset"), OSError("no route"), CLOSED])
def test_a_connection_that_fails_is_a_service_that_is_unavailable(error: Exception) -> None:
    async def answer() -> None:
        raise error

    with pytest.raises(Unavailable, match="redis does not answer: ") as found:
        asyncio.run(bus.with_timeout(answer()))
    assert str(error) in str(found.value)


def test_a_reply_that_is_late_is_a_service_that_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="redis does not answer"):
        asyncio.run(bus.with_timeout(asyncio.Event().wait(), 0.001))
