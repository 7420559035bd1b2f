"""What a facade keeps in Redis: records by project and name, claims on accepted work, and the secret of all web processes.

A record outlives every process; a timed one expires. What belongs to a trajectory is in its metadata instead, and ends with it.

A *claim* says for which accepted work a client waits. A client of a protocol without request ids repeats a request when its
connection breaks. Equal requests have one *topic*, and each has a *slot* of it, held by the web process whose client waits.
`FacadeClaims.claim` returns a slot that none waits for any more, else a new one: a repetition adopts the work of its
predecessor, while equal requests whose clients wait are apart.

Rules of claims
1. A slot is free when its holder let it go, or shows no life for `ALIVE_SECONDS`: a web process that was killed holds nothing.
   Where another process holds a slot of the topic, `claim` waits until that one shows life, or none in two looks that are
   `RENEWALS_MISSED` renewals apart: an outage of Redis ends all signs of life, and those that live renew theirs after it.
2. A holder answers by `FacadeClaims.while_held`: its slot may be another one's after an outage.
3. `FacadeClaims.settle` forgets a slot: its client has the answer.
4. Slots are forgotten with their topic, `KEEP_SECONDS` after its last claim.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from time import time
from typing import Any, Final, cast

import msgspec
import redis
import redis.asyncio

from domain.errors import CapacityError, Unavailable
from domain.redis_keys import Keys
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.confirmation import ConfirmedCalls, unavailable

log = logging.getLogger(__name__)

#: Sends a part of an answer.
Sending = Callable[[MutableMapping[str, Any]], Awaitable[None]]
#: Records of one project.
MOST: Final = 1000
MOST_BYTES: Final = 65_536

#: KEYS record · ARGV what it is, what it becomes, seconds.
_REPLACE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1
"""
#: KEYS record · ARGV what it is.
_REMOVE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""


ALIVE_SECONDS: Final = 3.0
RENEWALS_PER_LIFE: Final = 6
#: Renewals that a holder without life misses before it is dead.
RENEWALS_MISSED: Final = 2
KEEP_SECONDS: Final = 24 * 3600
#: Between two looks at another process's sign of life.
_LOOK_SECONDS: Final = 0.05

#: KEYS topic, life of the holder · ARGV holder, new slot, milliseconds of a life, seconds of the topic, prefix of lives, dead holders… → slot.
_CLAIM: Final = """
redis.call('SET', KEYS[2], '1', 'PX', ARGV[3])
local dead = {['']=true}
for i = 6, #ARGV do dead[ARGV[i]] = redis.call('EXISTS', ARGV[5] .. ARGV[i]) == 0 end
local chosen = ARGV[2]
local slots = redis.call('HGETALL', KEYS[1])
for i = 1, #slots, 2 do
  if dead[slots[i + 1]] then
    chosen = slots[i]
    break
  end
end
redis.call('HSET', KEYS[1], chosen, ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[4])
return chosen
"""
_IF_OURS: Final = "if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end\n"
#: KEYS topic · ARGV slot, holder.
_LET_GO: Final = _IF_OURS + "return redis.call('HSET', KEYS[1], ARGV[1], '')"
_SETTLE: Final = _IF_OURS + "return redis.call('HDEL', KEYS[1], ARGV[1])"


class FacadeRecords:
    """The records of one facade. All methods raise Unavailable when Redis does not answer."""

    def __init__(
        self, client: redis.asyncio.Redis, keys: Keys, door: str, confirmed: ConfirmedCalls | None = None
    ) -> None:  # fmt: skip
        """``confirmed``: what sends writes, where replicas must confirm what is answered."""
        self._client = client
        self._confirmed = confirmed or ConfirmedCalls(client, keys)
        self._key = keys.facade_records(door)
        self._secret_key = keys.facade_secret
        self._secret = b""

    async def secret(self) -> bytes:
        """Return the secret, which the first process makes."""
        if not self._secret:
            try:
                await self._confirmed.call("SET", self._secret_key, secrets.token_hex(32), "NX")
                self._secret = cast("bytes", await self._client.get(self._secret_key))
            except redis.RedisError as error:
                raise unavailable(error) from None
        return self._secret

    async def put(self, project: str, name: str, record: dict[str, Any]) -> None:
        """Store a record. Raises CapacityError when the project has `MOST` others, or it is too large."""
        text = msgspec.json.encode(record)
        if len(text) > MOST_BYTES:
            raise CapacityError(f"{name} has {len(text)} bytes, at most {MOST_BYTES} are stored")
        held = await self.all(project)
        if name not in held and len(held) >= MOST:
            raise CapacityError(f"project {project!r} has {MOST} records: remove some")
        try:
            await self._confirmed.call("HSET", self._key, _field(project, name), text)
        except redis.RedisError as error:
            raise unavailable(error) from None

    async def add(self, project: str, name: str, record: dict[str, Any]) -> bool:
        """Store a record unless there is one of its name; return whether it was stored. Raises as `put`."""
        if len(await self.all(project)) >= MOST:
            raise CapacityError(f"project {project!r} has {MOST} records: remove some")
        text, field = msgspec.json.encode(record).decode(), _field(project, name)
        try:
            return bool(await self._confirmed.call("HSETNX", self._key, field, text))
        except redis.RedisError as error:
            raise unavailable(error) from None

    async def get(self, project: str, name: str) -> dict[str, Any] | None:
        """Return a record; None when there is none."""
        try:
            stored = await cast("Any", self._client.hget(self._key, _field(project, name)))
        except redis.RedisError as error:
            raise unavailable(error) from None
        return None if stored is None else _read(stored)

    async def remove(self, project: str, name: str) -> bool:
        """Remove a record; return whether there was one."""
        try:
            return bool(await self._confirmed.call("HDEL", self._key, _field(project, name)))
        except redis.RedisError as error:
            raise unavailable(error) from None

    async def all(self, project: str) -> dict[str, dict[str, Any]]:
        """Return the records of a project by name."""
        try:
            stored = await cast("Any", self._client.hgetall(self._key))
        except redis.RedisError as error:
            raise unavailable(error) from None
        found: dict[str, dict[str, Any]] = {}
        for field, text in stored.items():
            owner, _, name = field.decode().partition("/")
            if owner == project and (record := _read(text)) is not None:
                found[name] = record
        return found


class TimedRecords:
    """The records of one facade that expire. All methods raise Unavailable when Redis does not answer.

    A change names the record that it replaces, so that two web processes cannot both make it.
    """

    def __init__(
        self, client: redis.asyncio.Redis, keys: Keys, door: str, confirmed: ConfirmedCalls | None = None
    ) -> None:  # fmt: skip
        """``confirmed``: as of `FacadeRecords`."""
        self._client = client
        self._confirmed = confirmed or ConfirmedCalls(client, keys)
        self._keys = keys
        self._door = door

    async def add(self, project: str, name: str, record: dict[str, Any], seconds: int) -> bool:
        """Store a record for so long; return False when there is one. Raises CapacityError for one that is too large."""
        text = _encoded(name, record)
        try:
            added = await self._confirmed.call("SET", self._key(project, name), text, "NX", "EX", seconds)  # fmt: skip
            return bool(added)
        except redis.RedisError as error:
            raise unavailable(error) from None

    async def get(self, project: str, name: str) -> dict[str, Any] | None:
        """Return a record; None when there is none any more."""
        try:
            stored = cast("bytes | None", await self._client.get(self._key(project, name)))
        except redis.RedisError as error:
            raise unavailable(error) from None
        return None if stored is None else msgspec.json.decode(stored, type=dict[str, Any])

    async def replace(
        self, project: str, name: str, before: dict[str, Any], after: dict[str, Any], seconds: int
    ) -> bool:
        """Store ``after`` for so long if the record is ``before``; return whether it was. Raises CapacityError."""
        texts = [_encoded(name, before), _encoded(name, after)]
        try:
            key = self._key(project, name)
            done = await self._confirmed.call("EVAL", _REPLACE, 1, key, *texts, seconds)
        except redis.RedisError as error:
            raise unavailable(error) from None
        return bool(done)

    async def remove(self, project: str, name: str, before: dict[str, Any]) -> bool:
        """Remove a record if it is ``before``; return whether it was."""
        try:
            key = self._key(project, name)
            done = await self._confirmed.call("EVAL", _REMOVE, 1, key, _encoded(name, before))
        except redis.RedisError as error:
            raise unavailable(error) from None
        return bool(done)

    async def note(self, work: Sequence[str], seconds: int) -> None:
        """Note work that another web process continues when this one ends, for so long at most; may be repeated."""
        try:
            until, noted = time() + seconds, msgspec.json.encode(work)
            await self._confirmed.call("ZADD", self._noted_key, until, noted)
        except redis.RedisError as error:
            raise unavailable(error) from None

    async def noted(self) -> list[list[str]]:
        """Return the work that is noted, of all projects."""
        try:
            await self._client.zremrangebyscore(self._noted_key, "-inf", time())
            found = cast("list[bytes]", await self._client.zrange(self._noted_key, 0, -1))
        except redis.RedisError as error:
            raise unavailable(error) from None
        return [msgspec.json.decode(each, type=list[str]) for each in found]

    async def done(self, work: Sequence[str]) -> None:
        """Forget work that is noted."""
        try:
            await self._client.zrem(self._noted_key, msgspec.json.encode(work))
        except redis.RedisError as error:
            raise unavailable(error) from None

    @property
    def _noted_key(self) -> str:
        return self._keys.facade_timed(self._door, "noted")  # no name of a project has a slash

    def _key(self, project: str, name: str) -> str:
        return self._keys.facade_timed(self._door, f"{project}/{name}")


class FacadeClaims:
    """The claims that one facade makes in this process."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys, door: str) -> None:
        self._client = client
        self._keys = keys
        self._door = door
        self._holder = secrets.token_hex(8)
        self._claim = client.register_script(_CLAIM)
        self._let_go = client.register_script(_LET_GO)
        self._settle = client.register_script(_SETTLE)
        #: Topic and slot of each claim that is held.
        self._held: set[tuple[str, str]] = set()
        self._renewing: asyncio.Task[None] | None = None

    async def claim(self, topic: str) -> str:
        """Return a slot of ``topic``: one that none waits for, else a new one. Raises Unavailable."""
        dead = await self._dead_holders(topic)
        life = self._keys.facade_claimant(self._holder)
        args: Sequence[str | int] = [
            self._holder,
            secrets.token_hex(8),
            int(ALIVE_SECONDS * 1000),
            KEEP_SECONDS,
            self._keys.facade_claimant(""),
            *dead,
        ]
        try:
            found = await self._claim(keys=[self._name(topic), life], args=args)
        except redis.RedisError as error:
            raise unavailable(error) from None
        slot = cast("bytes", found).decode()
        self._held.add((topic, slot))
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.ensure_future(self._renew())
        return slot

    async def holds(self, topic: str, slot: str) -> bool:
        """Whether a slot is still this process's. Raises Unavailable."""
        try:
            holder = await cast("Any", self._client.hget(self._name(topic), slot))
        except redis.RedisError as error:
            raise unavailable(error) from None
        return holder is not None and holder.decode() == self._holder

    def while_held(self, topic: str, slot: str, send: Sending) -> Sending:
        """Return ``send`` for the answer to a slot's client, which raises Unavailable when the slot is another process's by now."""
        begun = False

        async def sent(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            if not begun and not await self.holds(topic, slot):
                raise Unavailable(
                    "another request has this job since an outage of Redis: send it again"
                )
            begun = True
            await send(message)

        return sent

    async def _dead_holders(self, topic: str) -> list[str]:
        """Return the other processes that hold slots of ``topic`` and show no life, once all are judged. Raises Unavailable."""
        try:
            held = await cast("Any", self._client.hvals(self._name(topic)))
            others = sorted({each.decode() for each in held} - {"", self._holder})
            judged = await asyncio.gather(*map(self._is_dead, others))
        except redis.RedisError as error:
            raise unavailable(error) from None
        return [holder for holder, dead in zip(others, judged, strict=True) if dead]

    async def _is_dead(self, holder: str) -> bool:
        """Wait until a process renews its life, or has none in two looks."""
        life, before = self._keys.facade_claimant(holder), float("inf")
        while keep_running():
            left = await self._client.pttl(life)
            if left > before:  # renewed
                return False
            if left < 0:
                await asyncio.sleep(RENEWALS_MISSED * ALIVE_SECONDS / RENEWALS_PER_LIFE)
                return not await self._client.exists(life)
            before = left
            await asyncio.sleep(_LOOK_SECONDS)
        return False

    async def let_go(self, topic: str, slot: str) -> None:
        """State that the client of a slot waits no more; without Redis the slot is free later."""
        await self._end(self._let_go, topic, slot)

    async def settle(self, topic: str, slot: str) -> None:
        """Forget a slot, whose client has the answer."""
        await self._end(self._settle, topic, slot)

    async def _end(self, script: redis.commands.core.AsyncScript, topic: str, slot: str) -> None:
        self._held.discard((topic, slot))
        with suppress(redis.RedisError):
            await script(keys=[self._name(topic)], args=[slot, self._holder])

    async def _renew(self) -> None:
        """Show life while a slot is held."""
        life = self._keys.facade_claimant(self._holder)
        while self._held and keep_running():
            await asyncio.sleep(ALIVE_SECONDS / RENEWALS_PER_LIFE)
            if not self._held:  # the last slot was let go, and the client may be closed by now
                return
            try:
                await self._client.set(life, "1", px=int(ALIVE_SECONDS * 1000))
            except redis.RedisError as error:
                log.warning("claims of the door %s are not renewed: %s", self._door, error)

    def _name(self, topic: str) -> str:
        return self._keys.facade_claims(self._door, topic)


def _field(project: str, name: str) -> str:
    return f"{project}/{name}"


def _read(stored: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(stored, type=dict[str, Any])
    except msgspec.DecodeError as error:  # of another version
        log.error("a record of a facade cannot be read: %s", error)
        return None


def _encoded(name: str, record: dict[str, Any]) -> bytes:
    text = msgspec.json.encode(record)
    if len(text) > MOST_BYTES:
        raise CapacityError(f"{name} has {len(text)} bytes, at most {MOST_BYTES} are stored")
    return text
