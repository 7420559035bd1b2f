"""Fixtures: an in-memory server, and clients that talk to it in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tangram_client import AsyncClient, Client, RetryPolicy, seeded_jitter
from tangram_client.testing import FakeServer


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    retry = RetryPolicy(jitter=seeded_jitter(1))
    with Client(
        server.url, server.token, transport=server.transport, clock=server.clock, retry=retry
    ) as client:
        yield client


@pytest.fixture
async def aclient(server: FakeServer) -> AsyncIterator[AsyncClient]:
    retry = RetryPolicy(jitter=seeded_jitter(1))
    async with AsyncClient(
        server.url, server.token, transport=server.transport, clock=server.clock, retry=retry
    ) as client:
        yield client
