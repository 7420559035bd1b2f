"""The keeper of fleets makes the transfers that the scheduler decides; whatever becomes of one, the routes are whole afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import httpx
import pytest

from domain.decisions import Grant, MoveCache
from domain.fleet_events import CacheMoved, FleetWorkersChanged, TrajectoryPredicted
from domain.fleets import FleetEngine, TransferAdapter, WorkerFact
from domain.ids import TrajectoryKey
from tests.integration.runtime.fleet_doors import a_chat, web
from tests.integration.runtime.fleet_trajectories import Trajectories
from tests.integration.runtime.keeper_rig import KeeperRig
from tests.torch_workers import TorchWorker, write_config

pytestmark = pytest.mark.slow

KEY = TrajectoryKey("default/t")
CONTEXT = 5000


class CacheWorker:
    """A stand-in of a worker of engine torch: its state, and pulls that wait until a test lets them end."""

    def __init__(self) -> None:
        self.weights_version = 0
        #: Status and body of a pull that ends.
        self.answer: tuple[int, dict[str, Any]] = (200, {"moved_tokens": CONTEXT})
        self.pulled: list[tuple[str, dict[str, Any]]] = []
        self.left = asyncio.Event()
        self.ends = asyncio.Event()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        status, body = 200, dict[str, Any]()
        if scope["path"].endswith("/pull"):
            status, body = await self._pull(scope, receive)
        elif scope["path"] == "/tangram/state":
            body = {
                "model": "tiny",
                "cache_limit_bytes": 2**20,
                "weights_version": self.weights_version,
            }
        data = json.dumps(body).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(data)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    async def _pull(
        self, scope: MutableMapping[str, Any], receive: Any
    ) -> tuple[int, dict[str, Any]]:
        message = await receive()
        self.pulled.append((scope["raw_path"].decode(), json.loads(message["body"])))
        gone = asyncio.ensure_future(self._gone(receive))
        ends = asyncio.ensure_future(self.ends.wait())
        await asyncio.wait({gone, ends}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        ends.cancel()
        return self.answer

    async def _gone(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


class MovingFleet:
    """A fleet of a slow worker and one of four GPUs, and a trajectory whose cache is on the slow one."""

    def __init__(self, rig: KeeperRig, workers: list[CacheWorker]) -> None:
        self.rig, self.target = rig, workers[1]
        self.trainers = Trajectories(rig)

    async def decide(self) -> MoveCache:
        """Have the trajectory be long, and wait until the scheduler decides to move its cache."""
        rig = self.rig
        await rig.until(
            lambda found: (
                len(found) == 2
                and all(each.moves is TransferAdapter.TORCH for each in found.values())
            )
        )
        rig.tell(_drained(True))
        await rig.until(lambda found: found["w2"].drained)
        (first,) = (await self.trainers.generate({"t": CONTEXT - 100})).values()
        assert worker_of(first) == 1
        rig.tell(_drained(False))
        await rig.until(lambda found: not found["w2"].drained)
        rig.tell(TrajectoryPredicted(fleet="m", trajectory=KEY, tokens=50_000.0, source="a test"))
        move: MoveCache = await rig.until_journalled(lambda facts: _latest(facts, MoveCache))
        assert (move.source, move.target, move.trajectory) == (1, 2, KEY)
        return move

    async def until_pulled(self, count: int = 1) -> None:
        async with asyncio.timeout(60):
            while len(self.target.pulled) < count:
                await asyncio.sleep(0.01)

    async def until_ended(self) -> CacheMoved:
        """Wait for the end of the move."""
        ended: CacheMoved = await self.rig.until_journalled(
            lambda facts: next(
                (each for each in facts if isinstance(each, CacheMoved) and each.ended), None
            )
        )
        return ended

    async def next_worker(self) -> int:
        """Return the worker of the trajectory's next generation."""
        return worker_of((await self.trainers.generate({"t": 10}))["t"])


def _drained(drained: bool) -> FleetWorkersChanged:
    return FleetWorkersChanged(fleet="m", facts=(WorkerFact("w2", drained=drained),))


def _latest(facts: list[Any], kind: type) -> Any:
    return next((each for each in reversed(facts) if isinstance(each, kind)), None)


def worker_of(grant: Grant) -> int:
    """Return the number of the worker of a generation."""
    return grant.allocations[0].units[0]


@pytest.fixture
async def moving(fleet: KeeperRig) -> MovingFleet:
    workers = [CacheWorker(), CacheWorker()]
    served = await fleet.serve(*workers)
    fleet.lead([each.url for each in served], FleetEngine.TORCH, degrees=(1, 4))
    fleet.keep()
    return MovingFleet(fleet, workers)


async def test_a_cache_is_moved_and_the_next_request_goes_where_it_is(moving: MovingFleet) -> None:
    await moving.decide()
    await moving.until_pulled()
    ((path, asked),) = moving.target.pulled
    assert path == "/tangram/caches/default%2Ft/pull"
    assert asked == {"source": moving.rig.applications[0].url}

    moving.target.ends.set()
    ended = await moving.until_ended()
    assert (ended.tokens, ended.why) == (CONTEXT, "")
    assert await moving.next_worker() == 2
    report = await moving.rig.until_reported(
        lambda found: found.made_moves and found.made_moves.moved
    )
    assert report.made_moves is not None
    assert (report.made_moves.moved_tokens, report.made_moves.running) == (CONTEXT, 0)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((413, {"error": {"message": "the caches are full"}}), "the caches are full"),
        ((200, {"moved_tokens": 0}), "moved_tokens is 0"),
        ((200, {"said": "nothing"}), "no moved_tokens"),
    ],
)
async def test_a_move_that_fails_says_why_and_the_cache_stays(
    moving: MovingFleet, answer: tuple[int, dict[str, Any]], why: str
) -> None:
    moving.target.answer = answer
    moving.target.ends.set()
    await moving.decide()
    ended = await moving.until_ended()
    assert ended.tokens == 0
    assert why in ended.why
    assert await moving.next_worker() == 1


async def test_a_target_that_dies_in_a_move_costs_the_move_alone(moving: MovingFleet) -> None:
    await moving.decide()
    await moving.until_pulled()
    await moving.rig.applications[1].stop()
    ended = await moving.until_ended()
    assert ended.tokens == 0
    assert "w2 is unhealthy" in ended.why or "RemoteProtocolError" in ended.why
    assert await moving.next_worker() == 1


async def test_a_move_never_crosses_weights_that_change_meanwhile(moving: MovingFleet) -> None:
    await moving.decide()
    await moving.until_pulled()
    moving.target.weights_version = 7
    await moving.rig.until(lambda found: found["w2"].weights_version == 7)
    moving.target.ends.set()
    ended = await moving.until_ended()
    assert (ended.tokens, ended.why) == (0, "w2 got other weights meanwhile")
    assert await moving.next_worker() == 1


async def test_a_trajectory_that_finishes_ends_its_transfer(moving: MovingFleet) -> None:
    await moving.decide()
    await moving.until_pulled()
    moving.trainers.finish(["t"])
    ended = await moving.until_ended()
    assert (ended.tokens, ended.why) == (0, "its trajectory is finished")
    async with asyncio.timeout(60):
        await moving.target.left.wait()


async def test_moves_of_a_keeper_that_ended_are_ended_by_the_next_one(fleet: KeeperRig) -> None:
    workers = [CacheWorker(), CacheWorker()]
    served = await fleet.serve(*workers)
    fleet.lead([each.url for each in served], FleetEngine.TORCH, degrees=(1, 4))
    _, running = fleet.keep()
    moving = MovingFleet(fleet, workers)
    await moving.decide()
    await moving.until_pulled()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with asyncio.timeout(60):
        await moving.target.left.wait()

    fleet.keep()
    ended = await moving.until_ended()
    assert (ended.tokens, ended.why) == (0, "the process that moved it ended")
    assert await moving.next_worker() == 1


async def test_a_move_goes_on_while_the_leader_changes(moving: MovingFleet) -> None:
    await moving.decide()
    await moving.until_pulled()
    rig = moving.rig
    assert rig.loop is not None
    rig.loop.stop()
    moving.target.ends.set()
    rig.lead([each.url for each in rig.applications], FleetEngine.TORCH, degrees=(1, 4))
    ended = await moving.until_ended()
    assert ended.tokens == CONTEXT
    assert await moving.next_worker() == 2


async def test_a_trajectory_that_is_back_before_its_move_begins_stays(fleet: KeeperRig) -> None:
    workers = [CacheWorker(), CacheWorker()]
    served = await fleet.serve(*workers)
    fleet.lead([each.url for each in served], FleetEngine.TORCH, degrees=(1, 4))
    _, running = fleet.keep()
    moving = MovingFleet(fleet, workers)
    await fleet.until(
        lambda found: all(each.moves is TransferAdapter.TORCH for each in found.values())
    )
    running.cancel()  # nothing begins the move
    await asyncio.gather(running, return_exceptions=True)
    await moving.decide()
    assert await moving.next_worker() == 1
    fleet.tell(CacheMoved(fleet="m", trajectory=KEY))  # a begin that comes too late
    fleet.keep()
    await fleet.until_reported(lambda found: len(found.workers) == 2)
    assert await moving.next_worker() == 1
    assert moving.target.pulled == []


async def test_a_real_cache_is_moved_between_two_workers(
    fleet: KeeperRig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = write_config(tmp_path_factory.mktemp("model"))
    with TorchWorker(source) as one, TorchWorker(source) as two:
        fleet.lead([one.url, two.url], FleetEngine.TORCH, degrees=(1, 4), source="tiny")
        fleet.keep()
        await fleet.until(
            lambda found: all(each.moves is TransferAdapter.TORCH for each in found.values())
        )
        fleet.tell(_drained(True))
        await fleet.until(lambda found: found["w2"].drained)
        inside = "/trajectories/t/v1/chat/completions"
        async with web(fleet) as client:
            said = a_chat("what is a cache? " * 4, max_tokens=8)
            first = await client.post(inside, json=said)
            assert first.status_code == 200, first.text
            assert one.cached().keys() == {KEY}
            fleet.tell(_drained(False))
            await fleet.until(lambda found: not found["w2"].drained)
            fleet.tell(TrajectoryPredicted(fleet="m", trajectory=KEY, tokens=50_000.0))
            ended = await MovingFleet(fleet, [CacheWorker()] * 2).until_ended()
            assert ended.tokens > 0, ended.why
            assert (list(one.cached()), list(two.cached())) == ([], [KEY])
            second = await client.post(inside, json=_continued(said, first))
        await fleet.end_keepers()
    assert second.headers["x-tangram-worker"] == "w2"
    assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= ended.tokens - 8


def _continued(said: dict[str, Any], answer: httpx.Response) -> dict[str, Any]:
    """Return the next request of a chat."""
    messages = [*said["messages"], answer.json()["choices"][0]["message"]]
    return {**said, "messages": [*messages, {"role": "user", "content": "and then?"}]}
