"""Idempotency-Key on POSTs that are no submissions."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, MutableMapping
from time import time
from typing import Any, cast

import httpx
import msgspec
import pytest
import redis
import redis.asyncio
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from domain.confirmation import Confirmation
from domain.errors import Conflict, InvalidRequest
from domain.principals import Principal, Scope
from domain.redis_keys import Keys
from scheduler.runtime.gateway import authentication, idempotency
from scheduler.runtime.gateway.http import HttpError, HttpRequest, HttpResponse, Send
from scheduler.runtime.gateway.idempotency import (
    MAX_STORED_BYTES,
    IdempotencyStore,
    drop_stored_tokens,
)
from scheduler.runtime.redis.clients import connect_async
from scheduler.runtime.redis.confirmation import ConfirmedCalls, NotConfirmed
from tests.integration.runtime.rig import Rig
from tests.redis_server import RedisServer


class Maker:
    """An application that counts what it makes, and the answers it got back."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys) -> None:
        self.client = client
        self.replays = IdempotencyStore(client, keys)
        self.meanwhile: Callable[[], None] = lambda: None
        self.bodies: list[bytes] = []
        self.status = 201
        self.content = b"made"
        self.headers: dict[str, str] = {}
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def serve(self, request: HttpRequest, send: Send) -> None:
        self.bodies.append(await request.body())
        await self.go_on.wait()
        self.meanwhile()
        response = HttpResponse(self.status, raw=self.content, headers=self.headers)
        await response.send(send, request.id)

    async def post(
        self, body: bytes = b"{}", key: str = "k", token: str = "a"
    ) -> tuple[int, bytes, bool]:
        """Return status, body, and whether it was a replay."""
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        headers = [(b"authorization", token.encode()), (b"idempotency-key", key.encode())]
        scope = {"type": "http", "method": "POST", "path": "/api/v1/things", "headers": headers}
        await self.replays.once(HttpRequest(scope, receive), send, self.serve)
        replayed = (b"idempotent-replayed", b"true") in sent[0]["headers"]
        return sent[0]["status"], sent[1]["body"], replayed


@pytest.fixture
async def maker(runtime_redis: RedisServer, keys: Keys) -> Any:
    client = connect_async(runtime_redis.url)
    yield Maker(client, keys)
    await client.aclose()


async def test_a_repeated_request_is_answered_as_the_first_time(maker: Maker) -> None:
    assert await maker.post() == (201, b"made", False)
    maker.content = b"made twice"
    assert await maker.post() == (201, b"made", True)
    assert maker.bodies == [b"{}"]


async def test_a_request_with_a_key_counts_once_replicas_have_its_claim_and_its_response(
    maker: Maker, keys: Keys
) -> None:
    without = maker.replays._confirmed
    none = ConfirmedCalls(maker.client, keys, Confirmation(replicas=1, milliseconds=1))

    maker.replays._confirmed = none
    with pytest.raises(NotConfirmed, match="0 of 1 replicas of Redis have confirmed"):
        await maker.post()
    assert maker.bodies == []

    maker.replays._confirmed = without  # the claim does not stand in the way of a repetition
    maker.meanwhile = lambda: setattr(maker.replays, "_confirmed", none)
    for _ in range(2):  # a stored response that no replica has is no answer either
        with pytest.raises(NotConfirmed):
            await maker.post()
    maker.replays._confirmed = without
    assert await maker.post() == (201, b"made", True)
    assert maker.bodies == [b"{}"]


async def test_a_key_with_another_body_is_refused(maker: Maker) -> None:
    await maker.post()
    with pytest.raises(Conflict, match="another body"):
        await maker.post(b"[]")


async def test_keys_of_different_callers_do_not_meet(maker: Maker) -> None:
    await maker.post(token="a")
    assert await maker.post(token="b") == (201, b"made", False)


async def test_a_repetition_while_the_first_is_under_way_is_asked_to_retry(
    maker: Maker,
) -> None:
    maker.go_on.clear()
    first = asyncio.ensure_future(maker.post())
    async with asyncio.timeout(120):
        while not maker.bodies:
            await asyncio.sleep(0)
    with pytest.raises(HttpError) as refused:
        await maker.post()
    assert (refused.value.status, refused.value.headers) == (409, {"Retry-After": "1"})
    maker.go_on.set()
    assert (await first)[2] is False


async def begun(maker: Maker, requests: int = 1) -> None:
    async with asyncio.timeout(120):
        while len(maker.bodies) < requests:
            await asyncio.sleep(0.005)


async def test_a_request_keeps_its_claim_for_as_long_as_it_takes(
    maker: Maker, monkeypatch: pytest.MonkeyPatch, redis_client: redis.Redis, keys: Keys
) -> None:
    monkeypatch.setattr(idempotency, "RENEWALS_PER_CLAIM", 1000)
    maker.go_on.clear()
    first = asyncio.ensure_future(maker.post())
    await begun(maker)
    (name,) = redis_client.scan_iter(f"{keys.prefix}:idempotency:*")
    redis_client.expire(name, 30)
    async with asyncio.timeout(120):
        while redis_client.ttl(name) <= 30:
            await asyncio.sleep(0.01)
    with pytest.raises(HttpError):
        await maker.post()
    maker.go_on.set()
    assert await first == (201, b"made", False)
    assert maker.bodies == [b"{}"]


async def test_a_late_repetition_takes_no_claim_or_answer_of_another(
    maker: Maker, redis_client: redis.Redis, keys: Keys
) -> None:
    """1. The first stands still until its claim is over. 2. A repetition is under way. 3. It ends."""
    maker.go_on.clear()
    first = asyncio.ensure_future(maker.post())
    await begun(maker)
    (name,) = redis_client.scan_iter(f"{keys.prefix}:idempotency:*")
    redis_client.delete(name)
    maker.go_on = asyncio.Event()  # the first still waits for the one before
    second = asyncio.ensure_future(maker.post())
    await begun(maker, 2)
    first.cancel()
    await asyncio.wait({first})
    assert redis_client.exists(name)
    with pytest.raises(HttpError):
        await maker.post()
    maker.content = b"made again"
    maker.go_on.set()
    assert await second == (201, b"made again", False)
    assert await maker.post() == (201, b"made again", True)


async def test_a_process_that_ends_over_the_work_leaves_its_claim(maker: Maker) -> None:
    """The work may be done all the same: it is not done again at once."""
    maker.go_on.clear()
    first = asyncio.ensure_future(maker.post())
    await begun(maker)
    first.cancel()
    await asyncio.wait({first})
    with pytest.raises(HttpError) as refused:
        await maker.post()
    assert refused.value.code == "idempotency_key_in_use"


async def test_a_refused_request_may_be_corrected_under_its_key(maker: Maker) -> None:
    maker.status = 422
    assert (await maker.post())[0] == 422
    maker.status = 201
    assert await maker.post(b"[1]") == (201, b"made", False)


async def test_an_answer_too_large_to_keep_is_given_once(maker: Maker) -> None:
    maker.content = b"x" * (MAX_STORED_BYTES + 1)
    assert (await maker.post())[2] is False
    assert (await maker.post())[2] is False


async def test_an_unusable_key_is_named(maker: Maker) -> None:
    with pytest.raises(InvalidRequest, match="Idempotency-Key"):
        await maker.post(key="k" * 256)
    assert not maker.bodies


TOKEN = b"tgm_" + b"0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("content", "headers"),
    [(b"secret", {"Cache-Control": "no-store"}), (b'{"token":"' + TOKEN + b'"}', {})],
    ids=["marked as such", "with a token in it"],
)
async def test_an_answer_that_holds_a_secret_is_never_stored(
    maker: Maker, redis_client: redis.Redis, keys: Keys, content: bytes, headers: dict[str, str]
) -> None:
    maker.content, maker.headers = content, headers
    assert await maker.post() == (201, content, False)

    with pytest.raises(Conflict, match="create one with a new key") as refused:
        await maker.post()

    assert refused.value.code == "idempotency_answer_withheld"
    assert len(maker.bodies) == 1
    (name,) = redis_client.scan_iter(f"{keys.prefix}:idempotency:*")
    assert content not in redis_client.dump(name)  # type: ignore[operator]


def stored_by_an_earlier_version(client: redis.Redis, keys: Keys, content: bytes) -> str:
    """Store an answer to `Maker.post`, as version 0.1.0 did."""
    asked = b"\0".join((b"POST", b"/api/v1/things", b"", b"{}"))
    answer = msgspec.msgpack.encode([201, [], content])
    name = keys.idempotency("@" + hashlib.sha256(b"a").hexdigest()[:32], "k")
    client.set(name, hashlib.sha256(asked).digest()[:16] + answer, ex=3600)
    return name


async def test_answers_of_earlier_versions_are_replayed_unless_they_hold_a_token(
    maker: Maker, redis_client: redis.Redis, keys: Keys
) -> None:
    stored_by_an_earlier_version(redis_client, keys, b"made before")
    assert await maker.post() == (201, b"made before", True)

    stored_by_an_earlier_version(redis_client, keys, TOKEN)
    with pytest.raises(Conflict, match="held a token"):
        await maker.post()


async def test_stored_tokens_are_dropped_at_an_upgrade(
    maker: Maker, redis_client: redis.Redis, keys: Keys
) -> None:
    name = stored_by_an_earlier_version(redis_client, keys, TOKEN)

    assert drop_stored_tokens(redis_client, keys) == 1
    assert drop_stored_tokens(redis_client, keys) == 0
    assert TOKEN not in cast("bytes", redis_client.get(name))
    assert redis_client.ttl(name) > 3000
    with pytest.raises(Conflict, match="held a token"):
        await maker.post()


async def test_a_revoked_token_gets_401_for_what_it_repeats(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the answer is stored, and where Django serves the route, at once."""
    monkeypatch.setattr(authentication, "REVOCATION_SECONDS", 0.0)
    monkeypatch.setattr(authentication, "REFRESH_SECONDS", 0.0)
    body, key = {"id": "a", "task": "t"}, {"Idempotency-Key": "k"}
    async with rig.client() as client:
        first = await client.post("/trajectories", json=body, headers=key)

        async def revoked(token: str, address: str) -> None:
            return None

        monkeypatch.setattr(client._transport.app._context.tokens, "_authenticate", revoked)  # type: ignore[attr-defined]
        again = await client.post("/trajectories", json=body, headers=key)
        behind = await client.post("/tokens", json={}, headers=key)
        anonymous = await client.post("/tokens", json={}, headers={**key, "Authorization": ""})
    assert first.status_code < 300
    assert [a.status_code for a in (again, behind, anonymous)] == [401, 401, 401]


async def test_a_narrowed_token_is_refused_from_other_addresses(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrowed = Principal("t", "default", frozenset({Scope.READ}), networks=("10.0.0.0/8",))
    seen: list[str] = []

    async def authenticate(token: str, address: str) -> Principal:
        seen.append(address)
        return narrowed

    monkeypatch.setattr(rig.rows, "authenticate", authenticate)
    async with rig.gateway() as gateway:
        statuses = []
        for address in ("10.1.2.3", "::ffff:10.9.9.9", "11.1.2.3", "::1"):
            transport = httpx.ASGITransport(gateway, client=(address, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
                head = {"Authorization": "Bearer x", "X-Forwarded-For": "10.0.0.1"}
                statuses.append(await client.get("/api/v1/completions", headers=head))
    assert [a.status_code for a in statuses] == [200, 200, 403, 403]
    assert statuses[2].json()["code"] == "address_not_allowed"
    assert seen[0] == "10.1.2.3"


async def test_a_forwarded_address_counts_behind_a_trusted_proxy_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrowed = Principal("t", "default", frozenset({Scope.READ}), networks=("10.0.0.0/8",))

    async def authenticate(token: str, address: str) -> Principal:
        return narrowed

    monkeypatch.setattr(rig.rows, "authenticate", authenticate)
    async with rig.gateway() as gateway:
        served = ProxyHeadersMiddleware(cast("Any", gateway), trusted_hosts="192.0.2.1")
        statuses = []
        for peer, forwarded in (
            ("192.0.2.1", "10.1.2.3"), ("192.0.2.1", "10.1.2.3, 198.51.100.7"),
            ("192.0.2.9", "10.1.2.3"),
        ):  # fmt: skip
            transport = httpx.ASGITransport(cast("Any", served), client=(peer, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
                head = {"Authorization": "Bearer x", "X-Forwarded-For": forwarded}
                answer = await client.get("/api/v1/completions", headers=head)
                statuses.append(answer.status_code)
    assert statuses == [200, 403, 403]


async def test_answers_announce_the_end_of_a_token_that_is_near(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = {"soon": time() + 86_400, "later": time() + 90 * 86_400, "over": time() - 1}

    async def authenticate(token: str, address: str) -> Principal:
        return Principal("t", "default", frozenset({Scope.READ}), expires_at=ends[token])

    monkeypatch.setattr(rig.rows, "authenticate", authenticate)
    answers = {}
    for token in ends:
        async with rig.client(token) as client:
            answers[token] = await client.get("/completions")
    assert answers["soon"].headers["Tangram-Token-Expires"].endswith("Z")
    assert "Tangram-Token-Expires" not in answers["later"].headers
    assert answers["over"].status_code == 401


async def test_a_trajectory_is_opened_once_under_its_key(rig: Rig) -> None:
    async with rig.client() as client:
        body, key = {"id": "a", "task": "t"}, {"Idempotency-Key": "open-a"}
        first = await client.post("/trajectories", json=body, headers=key)
        again = await client.post("/trajectories", json=body, headers=key)
        other = await client.post("/trajectories", json={**body, "id": "b"}, headers=key)
    assert first.status_code < 300
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
