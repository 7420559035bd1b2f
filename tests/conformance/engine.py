"""The rules of `managers.gpu.engines.Server` as tests: derive and fill in the top.

A server under these tests must answer ``POST /v1/score`` with ``{"score": …}``, always the same for
the same text.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from domain.services import ServiceEvent
from managers.gpu.engines import EngineFailed, Server

Start = Callable[..., Server]


class EngineConformance(ABC):
    """What every engine must do."""

    #: It keeps a copy in host memory.
    prepares = True

    @abstractmethod
    def make(self, trouble: str = "") -> Server:
        """Return a server that is nowhere yet; ``trouble``: it ``hangs`` or ``dies`` at a start."""

    @abstractmethod
    def holds_memory(self, server: Server) -> bool:
        """Say, by looking at the machine, whether anything of it holds GPU memory."""

    @abstractmethod
    async def kill(self, server: Server) -> None:
        """Kill it from outside, as a crash does, and wait for its end."""

    async def ask(self, server: Server) -> Any:
        """Return what it answers to one fixed question."""
        async with httpx.AsyncClient(base_url=server.base_url, trust_env=False) as client:
            answer = await client.post("/v1/score", json={"text": "a kind word"}, timeout=180)
            return answer.json()["score"]

    @pytest.fixture
    async def start(self) -> AsyncIterator[Start]:
        """Make servers; all are closed afterwards, and what is left then is a failure."""
        made: list[Server] = []
        async with AsyncExitStack() as stack:

            def start(trouble: str = "") -> Server:
                server = self.make(trouble)
                made.append(server)
                stack.push_async_callback(server.close)
                return server

            yield start
        assert not any(self.holds_memory(server) for server in made)

    async def test_it_answers_when_it_is_restored_and_alike_after_an_eviction(
        self, start: Start
    ) -> None:
        """I12: a restored service answers as before its eviction."""
        server = start()
        assert (server.alive, server.base_url) == (False, "")
        await server.restore()
        assert server.alive
        before = await self.ask(server)
        assert await server.evict() in {ServiceEvent.EVICTED, ServiceEvent.STOPPED}
        assert (server.alive, server.base_url) == (False, "")
        assert not self.holds_memory(server)
        await server.restore()
        assert await self.ask(server) == before

    async def test_a_prepared_service_holds_no_memory_and_answers_once_restored(
        self, start: Start
    ) -> None:
        server = start()
        if not self.prepares:
            with pytest.raises(EngineFailed, match="keeps nothing in host memory"):
                await server.prepare()
            return
        await server.prepare()
        await server.prepare()
        assert (server.alive, server.base_url) == (False, "")
        assert not self.holds_memory(server)
        await server.restore()
        await self.ask(server)

    async def test_a_preparation_that_fails_leaves_nothing(self, start: Start) -> None:
        server = start("dies")
        with pytest.raises(EngineFailed):
            await server.prepare()
        assert not self.holds_memory(server)

    async def test_a_resident_service_is_not_restored_again(self, start: Start) -> None:
        server = start()
        await server.restore()
        url = server.base_url
        await server.restore()
        assert server.base_url == url
        await self.ask(server)

    async def test_evicting_what_is_not_there_is_no_error(self, start: Start) -> None:
        server = start()
        await server.evict()
        await server.close()
        assert not server.alive

    async def test_a_crash_is_noticed_and_the_next_restore_starts_afresh(
        self, start: Start
    ) -> None:
        server = start()
        await server.restore()
        await self.kill(server)
        assert not server.alive
        await server.restore()
        await self.ask(server)

    async def test_a_service_that_never_answers_fails_in_time_and_leaves_nothing(
        self, start: Start
    ) -> None:
        server = start("hangs")
        with pytest.raises(EngineFailed, match="did not answer within"):
            await server.restore()
        assert not server.alive
        assert not self.holds_memory(server)

    async def test_a_service_that_dies_at_its_start_says_its_last_words(self, start: Start) -> None:
        server = start("dies")
        with pytest.raises(EngineFailed, match="out of memory"):
            await server.restore()
        assert not self.holds_memory(server)

    async def test_a_cancelled_restore_leaves_nothing(self, start: Start) -> None:
        server = start("waits")
        restoring = asyncio.ensure_future(server.restore())
        while not self.holds_memory(server):
            await asyncio.sleep(0.01)
        restoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await restoring
        assert not server.alive
        assert not self.holds_memory(server)
