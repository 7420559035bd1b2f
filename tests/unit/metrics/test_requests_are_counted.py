"""Every answer of a web process is counted once, under its route and status."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import pytest
import redis.asyncio

from contract.requests import ROUTE
from scheduler.runtime.gateway.http import Receive, Scope, Send
from scheduler.runtime.redis.clients import keep_running
from tangram_web.lib.requests import route_template
from tangram_web.metrics import requests
from tangram_web.metrics.requests import CLIENT_GONE, CountedRequests, RequestCounts


def serve(
    *, status: int | None = 200, route: str | None = "/api/v1/actions/{id}", **scope: Any
) -> Mapping[str, int]:
    """Serve one request and return what was counted."""

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        if route is not None:
            scope[ROUTE] = route
        if status is not None:
            await send({"type": "http.response.start", "status": status})
            await send({"type": "http.response.body"})

    async def play() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            pass

        whole = {"type": "http", "method": "GET", "query_string": b"", **scope}
        await CountedRequests(inner, counts)(whole, receive, send)

    counts = RequestCounts()
    asyncio.run(play())
    return {k.replace("\x1f", " "): v for k, v in counts.take()[0].items() if k[0] == "n"}


def test_an_answer_is_counted_by_its_route_never_by_its_path() -> None:
    assert serve(path="/api/v1/actions/a1") == {"n GET /api/v1/actions/{id} 200": 1}


def test_an_unknown_path_is_no_route() -> None:
    assert serve(route=None, status=404, path="/wp-login.php") == {"n GET other 404": 1}


def test_an_unknown_method_is_no_label() -> None:
    assert serve(method="BREW", status=405) == {"n OTHER /api/v1/actions/{id} 405": 1}


def test_requests_that_wait_for_an_action_are_counted_apart() -> None:
    assert serve(query_string=b"a=1&wait=30") == {"n GET /api/v1/actions/{id}?wait 200": 1}


def test_a_client_that_goes_before_its_answer_is_counted_as_gone() -> None:
    assert serve(status=None) == {f"n GET /api/v1/actions/{{id}} {CLIENT_GONE}": 1}


def test_an_application_that_fails_is_counted_too() -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError

    async def receive() -> dict[str, Any]:
        return {}

    async def send(message: Any) -> None:
        pass

    counts, scope = RequestCounts(), {"type": "http", "method": "GET"}
    with pytest.raises(RuntimeError):
        asyncio.run(CountedRequests(failing, counts)(scope, receive, send))
    assert sum(counts.take()[0].values()) == 2  # the answer, and its bucket


def test_websockets_are_no_requests() -> None:
    assert serve(type="websocket") == {}


def test_counts_given_back_are_taken_again() -> None:
    counts = RequestCounts()
    counts.add("GET", "/livez", 200, 0.5)
    taken = counts.take()
    assert counts.take() == ({}, {})
    counts.add("GET", "/livez", 200, 0.25)
    counts.give_back(*taken)
    requests, seconds = counts.take()
    assert requests["n\x1fGET\x1f/livez\x1f200"] == 2
    assert seconds["s\x1f/livez"] == 0.75


@pytest.mark.parametrize(
    ("route", "template"),
    [
        ("api/v1/pools/<str:name>/pause", "/api/v1/pools/{name}/pause"),
        ("actions/<pk>", "/actions/{pk}"),
        (r"api/v1/^nodes/(?P<name>[a-z/.]+)/drain$", "/api/v1/nodes/{name}/drain"),
        (r"api/v1/^config/revisions/(?P<number>\d{1,18})$", "/api/v1/config/revisions/{number}"),
        ("", "/"),
    ],
)
def test_a_route_of_django_is_labelled_as_people_write_it(route: str, template: str) -> None:
    assert route_template(route) == template


class LosingClient:
    """A client that loses a cancellation which meets a reply, as redis-py can."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.executed = 0

    def pipeline(self, *, transaction: bool) -> LosingClient:
        return self

    def hincrby(self, *_: object) -> None:
        """Receive one value."""

    hincrbyfloat = hincrby

    async def execute(self) -> None:
        self.executed += 1
        if not self.asked.is_set():
            self.asked.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()


async def test_storing_ends_though_the_client_lost_its_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "FLUSH_SECONDS", 0.0)
    counts, client = RequestCounts(), LosingClient()
    counts.add("GET", "/livez", 200, 0.1)
    storing = asyncio.ensure_future(
        requests.keep_storing(cast("redis.asyncio.Redis", client), "k", counts, keep_running)
    )
    await client.asked.wait()
    counts.add("GET", "/livez", 200, 0.1)
    storing.cancel()
    async with asyncio.timeout(120):
        await asyncio.wait({storing})
    assert client.executed == 2
