"""Redis clients, and the check that the server keeps the promise of a 202: on disk and not evicted.

Clients are created in one place, so that their options and reply shapes are the same everywhere. The
embedded server is started with the required settings; another server may have others, and the
difference would show only after a power cut.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from domain.redis_servers import Product, ServerVersion
from scheduler.runtime.redis.connection import PATIENCE_SECONDS

_OPTIONS: dict[str, Any] = {
    # RESP2: the reply shapes of XREAD and friends are the same on servers 6.2 to 8.
    "protocol": 2,
    "socket_timeout": PATIENCE_SECONDS,
    "socket_connect_timeout": 5.0,
    "health_check_interval": 0,
}


#: Setting → its required value, and the loss otherwise.
_WANTED: Final = {
    "appendonly": ("yes", "no accepted request survives a restart of Redis"),
    "appendfsync": ("always", "a power cut loses the accepted requests of the last second or two, and actions"
                    " that were granted then may run twice"),
    "maxmemory-policy": ("noeviction", "a full Redis silently drops accepted requests"),
}  # fmt: skip


def connect(url: str) -> redis.Redis:
    """Return a blocking client, which does not retry failed commands."""
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **_OPTIONS)


def connect_async(url: str, max_connections: int = 256) -> redis.asyncio.Redis:
    """Return an asyncio client, which does not retry failed commands."""
    client = redis.asyncio.Redis.from_url(
        url, max_connections=max_connections, retry=AsyncRetry(NoBackoff(), 0), **_OPTIONS
    )
    pool = client.connection_pool
    pool.connection_class = _CONNECTIONS[pool.connection_class]
    return client


class _SaysItIsClosed(redis.asyncio.connection.AbstractConnection):
    """Raises ConnectionError where uvloop refuses to write, with a RuntimeError, since the connection was closed a moment before.

    redis-py lets that error pass: a part whose Redis is replaced by another one while it connects would end.
    """

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        try:
            await super().send_packed_command(*args, **options)
        except RuntimeError as error:
            raise redis.ConnectionError(f"redis closed the connection: {error}") from error


class _Tcp(_SaysItIsClosed, redis.asyncio.Connection):
    """To a host and port."""


class _UnixSocket(_SaysItIsClosed, redis.asyncio.UnixDomainSocketConnection):
    """To a socket of this machine."""


class _FreshTls(_SaysItIsClosed, redis.asyncio.SSLConnection):
    """Reads its certificates at each connect, as blocking connections do: they are renewed while a part runs."""

    def _connection_arguments(self) -> Any:
        self.ssl_context.context = None
        return super()._connection_arguments()


#: Class that the scheme of the address chose → ours.
_CONNECTIONS: Final[dict[type, type]] = {
    redis.asyncio.Connection: _Tcp,
    redis.asyncio.UnixDomainSocketConnection: _UnixSocket,
    redis.asyncio.SSLConnection: _FreshTls,
}


def keep_running() -> bool:
    """Whether the current task is not cancelled.

    The client can lose a cancellation that coincides with a reply; loops check before every round.
    """
    task = asyncio.current_task()
    return task is None or not task.cancelling()


def durability_risks(client: redis.Redis) -> str:
    """Return the risks of the settings of Redis; empty for none, or when it hides its settings.

    Raises redis.RedisError when it does not answer.
    """
    try:
        with client.pipeline(transaction=False) as pipeline:
            for name in ("maxmemory", *_WANTED):
                pipeline.config_get(name)
            answers = cast("list[dict[Any, Any]]", pipeline.execute())
    except redis.ResponseError:  # a hosted Redis may hide its settings
        return ""
    have = {_text(n): _text(value) for answer in answers for n, value in answer.items()}
    if have.get("maxmemory") == "0":
        have.pop("maxmemory-policy", None)  # it is never full
    return "; ".join(
        f"{name} is {have[name]}: {cost}"
        for name, (wanted, cost) in _WANTED.items()
        if have.get(name, wanted) != wanted
    )


def server_of(client: redis.Redis, package: str = "") -> ServerVersion:
    """Return the version of the server. ``package``: revision of its package, where that is known.

    Raises redis.RedisError when it does not answer.
    """
    try:
        info = client.info("server")
    except redis.ResponseError:  # a hosted Redis may hide it
        info = {}
    valkey = str(info.get("valkey_version", ""))
    product = Product.VALKEY if valkey else Product.REDIS
    return ServerVersion(product, valkey or str(info.get("redis_version", "")), package)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
