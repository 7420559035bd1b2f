"""Each way to move caches, by one suite: real workers of engine torch, stand-ins of LMCache's controller and of SGLang's workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from msgspec.structs import replace

from domain.fleets import FleetWorker, TransferAdapter
from managers.llm.cache_moves import (
    CacheMove,
    CacheMoveFailed,
    CacheMover,
    LmcacheMover,
    SharedStoreMover,
    TorchMover,
    choose_mover,
    movers,
)
from tests.conformance.cache_movers import TRAJECTORY, MoverConformance
from tests.lmcache_controller import LmcacheController
from tests.torch_workers import TorchWorker, cached_tokens, write_config

PROMPT = list(range(3, 43))
SOURCE, TARGET = "w1", "w2"


class TorchRig:
    """Two real workers."""

    notices = True

    def __init__(self, client: httpx.AsyncClient, one: TorchWorker, two: TorchWorker) -> None:
        self._one, self._two = one, two
        self.mover: CacheMover = TorchMover(client)
        self.source = FleetWorker(name=SOURCE, url=one.url)
        self.target = FleetWorker(name=TARGET, url=two.url)

    async def fill(self) -> CacheMove:
        answer = await asyncio.to_thread(self._one.complete, PROMPT, TRAJECTORY)
        self._next = [*PROMPT, *answer["token_ids"], 7, 8, 9]
        return CacheMove(TRAJECTORY, self.source, self.target, len(self._next) - 4)

    async def reusable(self, move: CacheMove) -> int:
        return cached_tokens(await asyncio.to_thread(self._two.complete, self._next, TRAJECTORY))

    async def break_target(self) -> None:
        self._two.kill()


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TorchWorker, TorchWorker]]:
    source = write_config(tmp_path_factory.mktemp("model"))
    with TorchWorker(source) as one, TorchWorker(source) as two:
        yield one, two


@pytest.mark.slow
class TestTorch(MoverConformance):
    """The real thing."""

    @pytest.fixture
    async def rig(self, workers: tuple[TorchWorker, TorchWorker]) -> AsyncIterator[TorchRig]:
        one, two = workers
        for worker in workers:
            worker.drop(TRAJECTORY)
        async with httpx.AsyncClient(trust_env=False) as client:
            yield TorchRig(client, one, two)


class LmcacheRig:
    """Two instances of the stand-in."""

    notices = True

    def __init__(self, client: httpx.AsyncClient, controller: LmcacheController) -> None:
        self._controller = controller
        self.mover: CacheMover = LmcacheMover(client, "http://lmcache:9000")
        self.source = FleetWorker(name=SOURCE, url="http://w1")
        self.target = FleetWorker(name=TARGET, url="http://w2")

    async def fill(self) -> CacheMove:
        self._controller.held[SOURCE] = [PROMPT]
        return CacheMove(TRAJECTORY, self.source, self.target, len(PROMPT), PROMPT)

    async def reusable(self, move: CacheMove) -> int:
        assert self._controller.held[SOURCE] == []
        return len(self._controller.held[TARGET][0])

    async def break_target(self) -> None:
        del self._controller.held[TARGET]


class TestLmcache(MoverConformance):
    """The wire of its controller, against a stand-in."""

    @pytest.fixture(params=[True, False], ids=["codes", "code"])
    async def rig(self, request: pytest.FixtureRequest) -> AsyncIterator[LmcacheRig]:
        controller = LmcacheController(SOURCE, TARGET, per_process_codes=request.param)
        async with httpx.AsyncClient(transport=controller) as client:
            yield LmcacheRig(client, controller)


class StoreWorkers(httpx.AsyncBaseTransport):
    """A stand-in of SGLang's workers that write their caches to one store."""

    def __init__(self, *hosts: str) -> None:
        self.infos: dict[str, dict[str, object]] = {
            host: {"enable_hierarchical_cache": True, "hicache_storage_backend": "mooncake"}
            for host in hosts
        }
        self.store: set[str] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer with a worker's configuration."""
        info = self.infos.get(request.url.host)
        if info is None:
            raise httpx.ConnectError("connection refused", request=request)
        if request.url.path != "/get_server_info":
            return httpx.Response(404, json={})
        return httpx.Response(200, json=info)


class SharedRig:
    """Two workers with a store."""

    notices = False

    def __init__(self, client: httpx.AsyncClient, workers: StoreWorkers) -> None:
        self._workers = workers
        self.mover: CacheMover = SharedStoreMover(client)
        self.source = FleetWorker(name=SOURCE, url=f"http://{SOURCE}")
        self.target = FleetWorker(name=TARGET, url=f"http://{TARGET}")

    async def fill(self) -> CacheMove:
        self._workers.store.add(TRAJECTORY)
        return CacheMove(TRAJECTORY, self.source, self.target, len(PROMPT))

    async def reusable(self, move: CacheMove) -> int:
        return move.context_tokens if move.trajectory in self._workers.store else 0

    async def break_target(self) -> None:
        del self._workers.infos[TARGET]


class TestSharedStore(MoverConformance):
    """The route alone changes, against a stand-in."""

    @pytest.fixture
    async def rig(self) -> AsyncIterator[SharedRig]:
        workers = StoreWorkers(SOURCE, TARGET)
        async with httpx.AsyncClient(transport=workers) as client:
            yield SharedRig(client, workers)


WORKERS = [FleetWorker(name=each, url=f"http://{each}") for each in (SOURCE, TARGET)]
MOVE = CacheMove(TRAJECTORY, WORKERS[0], WORKERS[1], len(PROMPT), PROMPT)


@contextlib.asynccontextmanager
async def choice_of(
    transport: httpx.AsyncBaseTransport,
    declared: TransferAdapter = TransferAdapter.PROBED,
    url: str = "",
) -> AsyncIterator[tuple[TransferAdapter, dict[str, str]]]:
    async with httpx.AsyncClient(transport=transport) as client:
        mover, states = await choose_mover(movers(client, url), WORKERS, declared)
        yield mover.adapter, {state.adapter.value: state.detail for state in states}


async def test_a_probe_prefers_what_the_workers_have_and_says_what_each_lacks() -> None:
    async with choice_of(StoreWorkers(SOURCE, TARGET)) as (chosen, states):
        assert chosen is TransferAdapter.SHARED
        assert list(states) == ["torch", "lmcache", "shared"]
        assert "404" in states["torch"]
        assert "no LMCache controller" in states["lmcache"]


async def test_workers_of_several_stores_share_none() -> None:
    transport = StoreWorkers(SOURCE, TARGET)
    transport.infos[TARGET]["hicache_storage_backend"] = "file"
    async with choice_of(transport) as (chosen, states):
        assert chosen is TransferAdapter.NONE
        assert "file, mooncake" in states["shared"]


async def test_a_worker_without_a_store_is_named() -> None:
    transport = StoreWorkers(SOURCE, TARGET)
    transport.infos[TARGET]["enable_hierarchical_cache"] = False
    async with choice_of(transport) as (chosen, states):
        assert chosen is TransferAdapter.NONE
        assert states["shared"].startswith(TARGET)


async def test_a_declared_adapter_that_cannot_work_is_replaced_by_none_and_says_why() -> None:
    declared = TransferAdapter.LMCACHE
    controller = LmcacheController(SOURCE, TARGET)
    controller.unhealthy.add(TARGET)
    async with choice_of(controller, declared, "http://c") as (chosen, states):
        assert chosen is TransferAdapter.NONE
        assert f"instance {TARGET} is not healthy" in states["lmcache"]


async def test_lmcache_needs_the_ids_of_the_tokens() -> None:
    controller = LmcacheController(SOURCE, TARGET)
    async with httpx.AsyncClient(transport=controller) as client:
        with pytest.raises(CacheMoveFailed, match="token ids"):
            await LmcacheMover(client, "http://c").move(replace(MOVE, token_ids=()))
    assert controller.asked == []


async def test_no_transfer_moves_nothing_and_is_no_failure() -> None:
    async with httpx.AsyncClient(transport=StoreWorkers()) as client:
        none = movers(client)[TransferAdapter.NONE]
        assert (await none.probe(WORKERS)).usable
        assert await none.move(MOVE) == 0


@pytest.mark.parametrize(
    "answer", [b"[]", b"{}", b'{"num_tokens": true}', b"not JSON", b'{"num_tokens": -1}']
)
async def test_an_answer_of_another_form_is_a_failure(answer: bytes) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=answer))
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(CacheMoveFailed, match=r"num_tokens|HTTP 200|JSONDecodeError"):
            await LmcacheMover(client, "http://c").move(MOVE)
