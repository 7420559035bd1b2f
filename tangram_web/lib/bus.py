"""Redis clients of the web processes, writes that replicas confirm, and the publication of the configuration.

A page or a verb that answers "done" after a write to Redis makes it by `write`: with ``TANGRAM_REDIS_WAIT_REPLICAS`` the answer is given
once replicas have it (decision 0341).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache, partial
from time import monotonic, sleep
from typing import Any, Final, TypeVar, cast

import msgspec
import redis
import redis.asyncio
import redis.retry
from django.conf import settings
from django.db import transaction
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from domain.codec import encode
from domain.confirmation import why_not_done
from domain.errors import Unavailable
from domain.events import ConfigApplied
from domain.inventory import Config
from domain.redis_keys import Keys

#: Sets the configuration and notifies the scheduler, unless a newer revision is published already:
#: two processes may commit in one order and publish in the other.
_PUBLISH: Final = """
local present = redis.call('GET', KEYS[1])
if present and (cmsgpack.unpack(present).revision or 0) > tonumber(ARGV[1]) then
    return 0
end
redis.call('SET', KEYS[1], ARGV[2])
redis.call('XADD', KEYS[2], '*', '0', ARGV[3])
return 1
"""

#: Longest wait for the leader to apply a configuration.
IN_FORCE_SECONDS: Final = 2.0
IN_FORCE_POLL_SECONDS: Final = 0.01


#: Longest wait of a websocket for Redis; after that the browser had better reconnect.
PATIENCE_SECONDS: Final = 4.0
#: Longest wait of a page for what it can do without.
IMPATIENT_SECONDS: Final = 0.5

T = TypeVar("T")
Word = bytes | str | int | float


class _Revision(msgspec.Struct):
    """The part of the leader's capacity view that names the applied configuration."""

    revision: int


_revision = msgspec.json.Decoder(_Revision)


def redis_client() -> redis.Redis:
    """Return this process's client; it connects on first use."""
    return _client(settings.TANGRAM_REDIS_URL)


@cache
def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=5.0, socket_connect_timeout=5.0)


def impatient_client() -> redis.Redis:
    """Return this process's client for what a page can do without: one try, half a second."""
    return _impatient(settings.TANGRAM_REDIS_URL)


@cache
def _impatient(url: str) -> redis.Redis:
    return redis.Redis.from_url(
        url,
        retry=redis.retry.Retry(NoBackoff(), 0),
        socket_timeout=IMPATIENT_SECONDS,
        socket_connect_timeout=IMPATIENT_SECONDS,
    )


def unavailable(error: Exception) -> Unavailable:
    """Return the answer to a request that Redis did not take: why, and what to do."""
    return Unavailable(why_not_done(error))


def write(*command: Word) -> Any:
    """Send a command and return its reply, once replicas have what it wrote, or found written, where they must.

    Raises Unavailable when Redis does not answer, or refuses it. A write that too few replicas have counts, unless the master is lost
    before they get it. So a transaction around it is committed, with its audit entry, and raises Unavailable then.
    """
    wanted, client = settings.TANGRAM_REDIS_WAIT, cast("Any", redis_client())
    try:
        if not wanted.replicas:
            return client.execute_command(*command)
        # One connection has both: after another one's write, the wait could be at another server.
        with client.pipeline(transaction=False) as pipeline:
            for each in (command, ("SET", keys().barrier, 1), wanted.command):
                pipeline.execute_command(*each)
            replies = pipeline.execute(raise_on_error=False)
    except redis.RedisError as error:
        raise unavailable(error) from error
    for reply in replies:
        if isinstance(reply, redis.RedisError):
            raise unavailable(reply) from reply
    if lacking := wanted.lacking(int(replies[-1])):
        transaction.on_commit(partial(_raise, Unavailable(lacking)))  # without one: now
    return replies[0]


def _raise(error: Unavailable) -> None:
    raise error


async def with_timeout(answer: Awaitable[T], seconds: float = PATIENCE_SECONDS) -> T:
    """Return the reply of Redis. Raises Unavailable without one in time."""
    try:
        async with asyncio.timeout(seconds):
            return await answer
    # TimeoutError is an OSError. uvloop raises a RuntimeError for a write on a connection that was closed a moment before.
    except (redis.RedisError, OSError, RuntimeError) as error:
        raise unavailable(error) from error


async def query_once(
    question: Callable[[redis.asyncio.Redis], Awaitable[T]], seconds: float = PATIENCE_SECONDS
) -> T:
    """Return the result of a rare query, over a connection that is closed after it.

    No connection is shared between event loops. Raises Unavailable as `with_timeout` does.
    """
    client = redis.asyncio.Redis.from_url(
        settings.TANGRAM_REDIS_URL, retry=Retry(NoBackoff(), 0), socket_connect_timeout=seconds
    )
    try:
        return await with_timeout(question(client), seconds)
    finally:
        await client.aclose()


def keys() -> Keys:
    """Return the names of our keys in Redis."""
    return Keys(settings.TANGRAM_KEY_PREFIX)


def wait_until_in_force(revision: int, seconds: float = IN_FORCE_SECONDS) -> None:
    """Wait until the leader has applied ``revision``, at most ``seconds``, and not without a leader.

    So a caller that gets its response can rely on the change.
    """
    names, client, until = keys(), redis_client(), monotonic() + seconds
    try:
        while client.exists(names.leader) and monotonic() < until:
            stored = client.get(names.capacity)
            if isinstance(stored, bytes) and _revision.decode(stored).revision >= revision:
                return
            sleep(IN_FORCE_POLL_SECONDS)
    except redis.RedisError:
        return  # it is published, so the leader applies it later


def publish_config(config: Config) -> bool:
    """Put ``config`` in force; False when a newer revision is in force already.

    Raises Unavailable when Redis does not answer, or no replica confirms: the configuration is saved, and the
    next start or the next change publishes it.
    """
    names = keys()
    event = encode(ConfigApplied(config=config))
    try:
        published = write(
            "EVAL", _PUBLISH, 2, names.config, names.inbox, config.revision, encode(config), event
        )
    except Unavailable as error:
        raise Unavailable(
            f"revision {config.revision} is saved, and may not be in force yet: {error}"
        ) from error
    return bool(published)
