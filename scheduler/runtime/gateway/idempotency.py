"""Idempotency keys on POST requests: the first response is stored, and repetitions receive it.

Submissions have a stronger rule of their own, in the script that appends them (`submitter`). For
every other POST of the API the key is claimed before the work, and the response is stored before it
is sent, so a repeated request does its work once:

    same key, same request      the stored response, marked Idempotent-Replayed
    same key, another request   409 idempotency_key_reused
    the first still runs        409 idempotency_key_in_use, with Retry-After
    its answer is not stored    409 idempotency_answer_withheld

The caller is authenticated before a stored response is looked for (`app.Gateway`): a revoked token gets
401. Keys belong to one token, and so to its project; a request without a bearer token cannot have one.

Only successes are stored: a refused request may be corrected and sent again with its key. A response
with ``Cache-Control: no-store`` holds a secret (a new token): of it the digest alone is stored, so that
a repetition does the work no second time, and says what to do instead.

The request that holds a claim renews it while it works; no other request can store a response or
remove the claim. A claim outlives its holder by `CLAIM_SECONDS`: when a web process ends during the
work, which may have been done all the same, only a repetition after that does it again.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import msgspec
import redis
import redis.asyncio

from domain.errors import Conflict, InvalidRequest
from domain.principals import TOKEN
from domain.redis_keys import Keys
from scheduler.runtime.gateway.http import HttpError, HttpRequest, Send
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.confirmation import ConfirmedCalls, NotConfirmed

KEEP_SECONDS = 24 * 3600
CLAIM_SECONDS = 60
#: All but one of these may fail without losing the claim.
RENEWALS_PER_CLAIM = 4
MAX_KEY_LENGTH = 255
#: A larger response is sent but not stored.
MAX_STORED_BYTES = 1_000_000
DIGEST_BYTES = 16
#: Behind the digest of the request, a claim has this byte and the name of its holder, a response has
#: msgpack, which never uses this byte.
_CLAIMED: Final = b"\xc1"
#: In place of a response that holds a secret: nil of msgpack, which no response is.
_WITHHELD: Final = b"\xc0"
_NO_STORE: Final = (b"cache-control", b"no-store")
HOLDER_BYTES = 8

#: Guard of changes to a key: only the holder of the claim makes them. KEYS key · ARGV claim, …
_IF_OURS: Final = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end\n"
_RENEW: Final = _IF_OURS + "return redis.call('EXPIRE', KEYS[1], ARGV[2])"
_RELEASE: Final = _IF_OURS + "return redis.call('DEL', KEYS[1])"
_STORE: Final = _IF_OURS + "redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])\nreturn 1"

Serve = Callable[[HttpRequest, Send], Awaitable[None]]


class _Answer(msgspec.Struct, array_like=True):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


_decode = msgspec.msgpack.Decoder(_Answer).decode


def idempotency_key(request: HttpRequest) -> str:
    """Return the request's key, or the empty string. Raises InvalidRequest for an unusable one."""
    key = request.header(b"idempotency-key")
    if len(key) > MAX_KEY_LENGTH or not key.isprintable():
        raise InvalidRequest(
            f"Idempotency-Key is longer than {MAX_KEY_LENGTH} characters or not printable"
        )
    return key


def reused() -> Conflict:
    """Return the error for a key that was used with another request."""
    return Conflict(
        "this Idempotency-Key was used with another body; use a new key",
        code="idempotency_key_reused",
    )


class IdempotencyStore:
    """Responses stored in Redis by idempotency key, for all web processes."""

    def __init__(
        self, client: redis.asyncio.Redis, keys: Keys, confirmed: ConfirmedCalls | None = None
    ) -> None:
        """``confirmed``: what sends claims and responses, where replicas must confirm what is answered."""
        self._client = client
        self._confirmed = confirmed or ConfirmedCalls(client, keys)
        self._keys = keys
        self._renew = client.register_script(_RENEW)
        self._release = client.register_script(_RELEASE)

    async def once(self, request: HttpRequest, send: Send, serve: Serve) -> None:
        """Let ``serve`` answer an authenticated request with a key, unless its response is stored.

        Raises InvalidRequest, HttpError, Conflict and redis.RedisError before anything was sent.
        """
        key = idempotency_key(request)
        body = await request.body()
        name = self._keys.idempotency(_caller(request), key)
        digest = _digest(request, body)
        claim = digest + _CLAIMED + secrets.token_bytes(HOLDER_BYTES)
        if not await self._claim(name, claim):
            await _send(send, await self._before(name, digest), replayed=True)
            return
        async with self._held(name, claim):
            answer = await _record(serve, request.again(body))
        if answer.status < 400 and len(answer.body) <= MAX_STORED_BYTES:
            kept = _WITHHELD if _holds_secret(answer) else msgspec.msgpack.encode(answer)
            stored = digest + kept
            await self._confirmed.call("EVAL", _STORE, 1, name, claim, stored, KEEP_SECONDS)
        else:
            await self._release(keys=[name], args=[claim])
        await _send(send, answer)

    async def _claim(self, name: str, claim: bytes) -> bool:
        """Claim a key; False: another request has, and replicas have what it stored. Raises redis.RedisError."""
        try:
            return bool(await self._confirmed.call("SET", name, claim, "NX", "EX", CLAIM_SECONDS))
        except NotConfirmed:
            with suppress(redis.RedisError):  # a repetition need not wait until it expires
                await self._release(keys=[name], args=[claim])
            raise

    @asynccontextmanager
    async def _held(self, name: str, claim: bytes) -> AsyncIterator[None]:
        renewing = asyncio.ensure_future(self._keep_claim(name, claim))
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})

    async def _keep_claim(self, name: str, claim: bytes) -> None:
        while keep_running():
            await asyncio.sleep(CLAIM_SECONDS / RENEWALS_PER_CLAIM)
            with suppress(redis.RedisError):  # the next renewal is before the claim expires
                await self._renew(keys=[name], args=[claim, CLAIM_SECONDS])

    async def _before(self, name: str, digest: bytes) -> _Answer:
        stored = await self._client.get(name)
        if isinstance(stored, bytes) and stored[:DIGEST_BYTES] != digest:
            raise reused()
        if not isinstance(stored, bytes) or stored[DIGEST_BYTES:][:1] in (_CLAIMED, b""):
            raise HttpError(
                409,
                "idempotency_key_in_use",
                "the first request with this Idempotency-Key is still being answered",
                **{"Retry-After": "1"},
            )
        kept = stored[DIGEST_BYTES:]
        if kept == _WITHHELD or TOKEN.search(kept):
            raise withheld()
        return _decode(kept)


def withheld() -> Conflict:
    """Return the error for a repetition whose first answer held a secret."""
    return Conflict(
        "the first request with this Idempotency-Key succeeded, and its answer held a token, which is"
        " not stored: revoke that token (GET /api/v1/tokens lists it) and create one with a new key",
        code="idempotency_answer_withheld",
    )


def drop_stored_tokens(client: redis.Redis, keys: Keys) -> int:
    """Delete the responses with a token that earlier versions stored; return how many.

    The append-only file is rewritten after that, so that it does not keep them either.
    """
    dropped = 0
    for name in client.scan_iter(match=keys.idempotency("@*", "*"), count=1000):
        stored = client.get(name)
        if isinstance(stored, bytes) and TOKEN.search(stored):
            client.set(name, stored[:DIGEST_BYTES] + _WITHHELD, keepttl=True)
            dropped += 1
    if dropped:
        with suppress(
            redis.ResponseError
        ):  # a rewrite runs already, or the server has no such file
            client.bgrewriteaof()
    return dropped


def _holds_secret(answer: _Answer) -> bool:
    if TOKEN.search(answer.body):
        return True
    return any((name.lower(), value) == _NO_STORE for name, value in answer.headers)


def _caller(request: HttpRequest) -> str:
    """Return a name for the caller's token that does not reveal it."""
    credentials = request.header(b"authorization")
    return "@" + hashlib.sha256(credentials.encode("latin-1")).hexdigest()[:32]


def _digest(request: HttpRequest, body: bytes) -> bytes:
    query = request.scope.get("query_string", b"")
    asked = b"\0".join((request.method.encode(), request.path.encode(), query, body))
    return hashlib.sha256(asked).digest()[:DIGEST_BYTES]


async def _record(serve: Serve, request: HttpRequest) -> _Answer:
    answer = _Answer(500, [], b"")
    chunks: list[bytes] = []

    async def keep(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = [(bytes(n), bytes(v)) for n, v in message.get("headers", ())]
        elif message["type"] == "http.response.body":
            chunks.append(message.get("body", b""))

    await serve(request, keep)
    answer.body = b"".join(chunks)
    return answer


async def _send(send: Send, answer: _Answer, *, replayed: bool = False) -> None:
    headers = [*answer.headers, (b"idempotent-replayed", b"true")] if replayed else answer.headers
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
