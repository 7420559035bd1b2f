"""Watchers of directories over the node door: kept by the node, read by any web process."""

from __future__ import annotations

import contextlib

import httpx
import pytest

from domain.errors import CapacityError, NotFound
from domain.ports.watching import MAX_WATCHERS
from domain.principals import Principal
from scheduler.runtime.gateway.facade import FacadePort
from scheduler.runtime.gateway.http import HttpError, HttpRequest
from scheduler.runtime.gateway.native_calls import NativeCalls
from tests.integration.runtime.rig import TOKENS, Rig


async def gone() -> dict[str, str]:
    return {"type": "http.disconnect"}


def calls(gateway: object, principal: Principal) -> NativeCalls:
    """Return the native calls of a gateway for a request without a body."""
    port = FacadePort(gateway._context, gateway._streams, gateway._native, "test")  # type: ignore[attr-defined]
    scope = {"path": "/x", "method": "POST", "headers": [], "query_string": b""}
    return port.native(HttpRequest(scope, gone), principal)


async def placed(client: httpx.AsyncClient) -> None:
    assert (await client.post("/trajectories", json={"id": "t1", "task": "t"})).status_code == 201
    assert (await client.put("/trajectories/t1/files/d/a", content=b"1")).status_code == 201


async def test_changes_are_read_once_and_a_waiting_request_gets_them(rig: Rig) -> None:
    async with rig.client() as client, rig.gateway() as gateway:
        await placed(client)
        native = calls(gateway, TOKENS["trainer"])
        watcher = await native.watch("t1", "d", recursive=True)
        assert await native.watched("t1", watcher) == ()
        await client.put("/trajectories/t1/files/d/b", content=b"2")
        found = await native.watched("t1", watcher, 20.0)
        assert ("b", "write") in [(each.name, each.kind) for each in found]
        await native.unwatch("t1", watcher)
        with pytest.raises(NotFound, match="not found"):
            await native.watched("t1", watcher)


async def test_a_watcher_ends_with_its_environment(rig: Rig) -> None:
    async with rig.client() as client, rig.gateway() as gateway:
        await placed(client)
        native = calls(gateway, TOKENS["trainer"])
        watcher = await native.watch("t1", "d")
        await client.delete("/trajectories/t1/files/d?recursive=true")
        with contextlib.suppress(NotFound):  # it may have ended before this request
            assert await native.watched("t1", watcher, 20.0) == ()
        with pytest.raises(NotFound, match="not found"):
            await native.watched("t1", watcher)


async def test_watchers_of_an_environment_are_limited_and_need_the_scope(rig: Rig) -> None:
    async with rig.client() as client, rig.gateway() as gateway:
        await placed(client)
        native = calls(gateway, TOKENS["trainer"])
        watchers = [await native.watch("t1", "d") for _ in range(MAX_WATCHERS)]
        with pytest.raises(CapacityError):
            await native.watch("t1", "d")
        for each in watchers:
            await native.unwatch("t1", each)
        with pytest.raises(HttpError) as caught:
            await calls(gateway, Principal("x", "default", frozenset())).watch("t1", "d")
        assert caught.value.status == 403
