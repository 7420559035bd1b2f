"""Idempotency-Key on any POST: the first answer is kept and given again.

Submissions have a stronger rule of their own, in the script that appends them (`submitter.py`).
For every other POST, whoever answers it, the key is claimed before the work and the answer stored
before it is sent, so a repeated request does its work once:

    same key, same request    the stored answer, marked Idempotent-Replayed
    same key, another request 409 idempotency_key_reused
    the first is under way    409 idempotency_key_in_use, with Retry-After

Only successes are kept: a refused request may be corrected and sent again with its key. A web
process that dies in between leaves its claim for `CLAIM_SECONDS`. Keys belong to a caller's
credentials, so nobody meets another's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
import redis.asyncio

from domain.errors import Conflict, InvalidRequest
from domain.keys import Keys
from scheduler.runtime.gateway.http import HttpError, Request, Send

KEEP_SECONDS = 24 * 3600
CLAIM_SECONDS = 60
MAX_KEY_LENGTH = 255
#: An answer larger than this is sent but not kept.
MAX_KEPT_BYTES = 1_000_000
DIGEST_BYTES = 16

Serve = Callable[[Request, Send], Awaitable[None]]


class _Answer(msgspec.Struct, array_like=True):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


_decode = msgspec.msgpack.Decoder(_Answer).decode


def idempotency_key(request: Request) -> str:
    """Return the request's key, or the empty string. Raises InvalidRequest for an unusable one."""
    key = request.header(b"idempotency-key")
    if len(key) > MAX_KEY_LENGTH or not key.isprintable():
        raise InvalidRequest(
            f"Idempotency-Key is longer than {MAX_KEY_LENGTH} characters or not printable"
        )
    return key


def reused() -> Conflict:
    """Return the error for a key that came with another request before."""
    return Conflict(
        "this Idempotency-Key was used with another body; use a new key",
        code="idempotency_key_reused",
    )


class Replays:
    """Answers kept in Redis, for all web processes."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def once(self, request: Request, send: Send, serve: Serve) -> None:
        """Let ``serve`` answer a request with a key, unless it was answered before.

        Raises InvalidRequest, HttpError, Conflict and redis.RedisError before anything was sent.
        """
        key = idempotency_key(request)
        body = await request.body()
        name = self._keys.idempotency(_caller(request), key)
        digest = _digest(request, body)
        if not await self._client.set(name, digest, nx=True, ex=CLAIM_SECONDS):
            await _send(send, await self._before(name, digest), replayed=True)
            return
        answer = _Answer(500, [], b"")
        try:
            answer = await _record(serve, request.again(body))
        finally:
            kept = answer.status < 400 and len(answer.body) <= MAX_KEPT_BYTES
            if kept:
                stored = digest + msgspec.msgpack.encode(answer)
                await self._client.set(name, stored, ex=KEEP_SECONDS)
            else:
                await self._client.delete(name)
        await _send(send, answer)

    async def _before(self, name: str, digest: bytes) -> _Answer:
        stored = await self._client.get(name)
        if not isinstance(stored, bytes) or stored == digest:
            raise HttpError(
                409,
                "idempotency_key_in_use",
                "the first request with this Idempotency-Key is still being answered",
                **{"Retry-After": "1"},
            )
        if stored[:DIGEST_BYTES] != digest:
            raise reused()
        return _decode(stored[DIGEST_BYTES:])


def _caller(request: Request) -> str:
    """Return a name for the caller's credentials that does not give them away."""
    credentials = request.header(b"authorization") or request.header(b"cookie")
    return "@" + hashlib.sha256(credentials.encode("latin-1")).hexdigest()[:32]


def _digest(request: Request, body: bytes) -> bytes:
    query = request.scope.get("query_string", b"")
    asked = b"\0".join((request.method.encode(), request.path.encode(), query, body))
    return hashlib.sha256(asked).digest()[:DIGEST_BYTES]


async def _record(serve: Serve, request: Request) -> _Answer:
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
