"""One Redis for all, a key prefix and a system for each test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis
from msgspec.structs import replace

from domain.ports import DriverContext
from domain.redis_keys import Keys
from managers.common.api_calls.secrets import ApiSecrets
from managers.quota.call_driver import CallDriver
from scheduler.runtime.gateway import scheduler_queries
from scheduler.runtime.gateway.endpoints import leases
from scheduler.runtime.node import life_signs
from scheduler.runtime.redis.clients import connect
from tests.api_server import local_api
from tests.integration.runtime.call_rig import SECRET, CallRig
from tests.integration.runtime.gpu_rig import GpuRig
from tests.integration.runtime.keeper_rig import KeeperRig, keeper_rig
from tests.integration.runtime.own_rig import OwnRig, own_rig
from tests.integration.runtime.rig import CONFIG, LoopThread, Rig
from tests.integration.runtime.rollout_rig import RolloutRig, rollout_rig
from tests.redis_server import RedisServer

_prefixes = itertools.count()


#: Counts a node that shows no life as dead at once. Tests take its sign of life away themselves:
#: it would not go by itself (`nodes_live_on`), however busy the machine is.
IMPATIENT = replace(CONFIG, node_grace_seconds=0.1, node_dead_seconds=0.3)


@pytest.fixture(scope="session")
def runtime_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("r")).start()
    yield server
    server.stop()


@pytest.fixture
def keys() -> Keys:
    return Keys(f"t{next(_prefixes)}")


@pytest.fixture
def redis_client(runtime_redis: RedisServer) -> Iterator[redis.Redis]:
    with connect(runtime_redis.url) as client:
        yield client


@pytest.fixture(autouse=True)
def patient_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a gateway wait longer for the loop on a busy machine; a client would retry."""
    monkeypatch.setattr(scheduler_queries, "ANSWER_SECONDS", 120.0)
    monkeypatch.setattr(scheduler_queries, "TRANSFER_SECONDS", 120.0)
    monkeypatch.setattr(leases, "ANSWER_SECONDS", 120.0)


@pytest.fixture
def nodes_live_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_signs, "ALIVE_SECONDS", 600.0)


@pytest.fixture
def leader_socket(tmp_path: Path) -> Path | None:
    """At which the node of a `rig` reaches its leader."""
    return tmp_path / "leader.sock"


@pytest.fixture
async def rig(
    runtime_redis: RedisServer, keys: Keys, tmp_path: Path, leader_socket: Path | None
) -> AsyncIterator[Rig]:
    """A leader and a node that has joined."""
    rig = Rig(runtime_redis.url, keys, tmp_path)
    rig.socket = leader_socket
    rig.loop = LoopThread(rig.url, keys, socket=rig.socket)
    await rig.start_node()
    yield rig
    await rig.end()


@pytest.fixture
async def rollouts(
    runtime_redis: RedisServer, keys: Keys, tmp_path: Path
) -> AsyncIterator[RolloutRig]:
    """A leader, for gateways and rollout workers that a test starts."""
    async with rollout_rig(runtime_redis.url, keys, tmp_path) as rig:
        yield rig


@pytest.fixture
async def fleet(runtime_redis: RedisServer, keys: Keys, tmp_path: Path) -> AsyncIterator[KeeperRig]:
    """Modelled engines, the fleet of them, and its keepers, as a test starts them."""
    async with keeper_rig(runtime_redis.url, keys, tmp_path) as rig:
        yield rig


@pytest.fixture
async def own(runtime_redis: RedisServer, keys: Keys, tmp_path: Path) -> AsyncIterator[OwnRig]:
    """A fleet with workers of its own, and the nodes that a test starts."""
    async with own_rig(runtime_redis.url, keys, tmp_path) as rig:
        yield rig


@pytest.fixture
async def calls(runtime_redis: RedisServer, keys: Keys, tmp_path: Path) -> AsyncIterator[CallRig]:
    rig = CallRig(runtime_redis.url, keys, tmp_path)
    secrets = ApiSecrets(environment={"TANGRAM_API_SECRET_SEARCH_KEY": SECRET})
    context = DriverContext("n1", tmp_path / "api", {}, {}, rig.response_streams)
    rig.others = [CallDriver(context, secrets)]
    async with local_api() as rig.api:
        yield rig
        await rig.end()


@pytest.fixture
async def gpus(runtime_redis: RedisServer, keys: Keys, tmp_path: Path) -> AsyncIterator[GpuRig]:
    rig = GpuRig(runtime_redis.url, keys, tmp_path)
    async with local_api() as rig.api:
        yield rig
        await rig.end()


@pytest.fixture
async def impatient(
    runtime_redis: RedisServer, keys: Keys, tmp_path: Path, nodes_live_on: None
) -> AsyncIterator[Rig]:
    """A leader that soon counts a silent node as dead, and a node."""
    rig = Rig(runtime_redis.url, keys, tmp_path)
    rig.loop = LoopThread(rig.url, keys, IMPATIENT)
    await rig.start_node()
    yield rig
    await rig.end()
