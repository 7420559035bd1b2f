"""Workers of our own are started on GPUs of the pool, serve, and give their GPUs back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from domain.action import Kind
from domain.decisions import Finish
from domain.engine_profiles import DegreeProfile, EngineProfile
from domain.events import ActionCancelRequested
from domain.fleet_events import FleetWorkersChanged
from domain.fleets import FleetEngine, worker_resource
from tests.integration.runtime.fleet_doors import CHAT, a_chat, web
from tests.integration.runtime.fleet_processes import until_running
from tests.integration.runtime.own_rig import ENGINE, SOON, OwnRig
from tests.torch_workers import PYTHON, VARIABLES, write_config

pytestmark = pytest.mark.slow


async def test_declared_gpus_become_workers_that_serve_and_are_given_back_when_they_are_not(
    own: OwnRig,
) -> None:
    own.declare(gpus=2)
    await own.start_gpus(gpus=2)
    own.keep(SOON)

    found = await own.until_serving(2)
    assert sorted(unit for each in found.values() for unit in each.gpus) == [0, 1]
    assert own.gpus_held() == [0, 1]
    workers = await own.until(lambda workers: len(workers) == 2)
    assert all(each.own and each.slots == 4 for each in workers.values())
    async with own.client("cluster") as client:
        seen = (await client.get("/fleets/m/status")).json()["own"]
    assert [(each["state"], each["node"]) for each in seen] == [("serves", "n1")] * 2
    async with web(own) as client:
        answer = await client.post(CHAT, json=a_chat("hello", max_tokens=3))
        assert answer.status_code == 200, answer.text

    own.declare(gpus=1)
    await own.until(lambda workers: len(workers) == 1)
    (left,) = await own.until_serving(1)
    await own.until_held(list(found[left].gpus))
    assert own.own()[left] == found[left]  # the one that stays was not started again

    own.declare(gpus=0)
    await own.until_held([])
    changes = [
        (change.removed, [fact.name for fact in change.facts if fact.drained])
        for change in own.journalled()
        if isinstance(change, FleetWorkersChanged)
    ]
    gone = next(name for name in found if name != left)
    assert changes.index(((), [gone])) < changes.index(((gone,), []))


@pytest.mark.parametrize("gpus", [1, 0])
async def test_a_generation_ends_before_the_engine_of_its_worker_that_leaves(
    own: OwnRig, gpus: int
) -> None:
    slow = tuple("0.2" if word == "100" else word for word in ENGINE)
    own.declare(gpus=2, command=slow)
    await own.start_gpus(gpus=2)
    own.keep(SOON)
    await own.until_serving(2)
    await own.until(lambda workers: len(workers) == 2)

    async with web(own) as client:
        asked = [
            asyncio.create_task(client.post(CHAT, json=a_chat("hello", max_tokens=200)))
            for _ in range(2)
        ]
        workers = own.workers()
        for worker in workers.values():
            await until_running(urlsplit(worker.url).port or 0, 1)
        own.declare(gpus=gpus, command=slow)
        answers = await asyncio.gather(*asked)
    assert [each.json()["choices"][0]["finish_reason"] for each in answers] == ["stop", "stop"]
    await own.until_held([0][:gpus])
    found = own.journalled()
    ends = {
        each.allocations[0].resource: place
        for place, each in enumerate(found)
        if isinstance(each, Finish) and each.kind is Kind.CALL
    }
    cancels = [place for place, each in enumerate(found) if isinstance(each, ActionCancelRequested)]
    leaving = sorted(workers)[gpus:]
    assert len(cancels) == len(leaving) == 2 - gpus
    places = [ends[worker_resource("m", workers[name].number)] for name in leaving]
    assert max(places) < min(cancels)


async def test_our_own_worker_serves_a_model_under_an_interpreter_that_has_torch(
    own: OwnRig, tmp_path: Path
) -> None:
    own.declare(
        gpus=1, engine=FleetEngine.TORCH, source=str(write_config(tmp_path / "model")),
        python=PYTHON, env=VARIABLES, command=(),
    )  # fmt: skip
    await own.start_gpus(gpus=1)
    own.keep(SOON)
    await own.until_serving(1)
    await own.until(lambda workers: len(workers) == 1)
    async with web(own) as client:
        answer = await client.post(CHAT, json=a_chat("hello", max_tokens=3))
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] <= 3


async def test_an_engine_that_dies_is_started_again_as_another_worker_and_says_why(
    own: OwnRig,
) -> None:
    own.declare(gpus=1)
    await own.start_gpus(gpus=1)
    own.keep(SOON)
    (first,) = (await own.until_serving(1)).values()
    before = (await own.until(lambda workers: len(workers) == 1))["own-1x-1"]

    own.engine_of(before).kill()
    found = await own.until(
        lambda workers: bool(workers) and workers["own-1x-1"].number > before.number
    )
    assert found["own-1x-1"].url != before.url
    await own.until_reported(
        lambda report: [
            each for each in report.own if each.state == "serves" and each.action != first.action
        ]
    )
    assert own.why_ended(first.action) == "the engine ended with exit status -9"
    changes = [each for each in own.journalled() if isinstance(each, FleetWorkersChanged)]
    assert [fact.unhealthy for each in changes for fact in each.facts if fact.unhealthy]
    await own.until_held([0])


@pytest.mark.long
async def test_a_node_that_dies_loses_its_worker_to_another_node(own: OwnRig) -> None:
    own.declare(gpus=1)
    dead = await own.start_gpus("n1", gpus=1)
    own.keep(SOON)
    await own.until_serving(1)
    (before,) = (await own.until(lambda workers: len(workers) == 1)).values()

    await own.start_gpus("n2", gpus=1)
    dead.kill()
    await own.until_reported(
        lambda found: [(each.state, each.node) for each in found.own] == [("serves", "n2")]
    )
    (after,) = (await own.until(lambda workers: len(workers) == 1)).values()
    assert after.number > before.number
    # What the dead node left is ended by its next start.
    left = own.engine_of(before)
    await own.start_gpus("n1", gpus=1)
    await own.until_gone(left)


async def test_a_keeper_that_is_killed_leaves_engines_that_the_next_one_adopts_with_another_leader(
    own: OwnRig,
) -> None:
    own.declare(gpus=2)
    await own.start_gpus(gpus=2)
    killed = await own.start_keeper()
    first = await own.until_serving(2)
    killed.kill()
    await killed.wait()
    for worker in (await own.until(lambda workers: len(workers) == 2)).values():
        if worker.name == "own-1x-2":
            own.engine_of(worker).kill()
    await own.restart_leader()

    keeper, _ = own.keep(SOON)
    await own.until_reported(lambda found: found.keeper == keeper.lease.name)
    await own.until_reported(
        lambda found: (
            [each.state for each in found.own] == ["serves"] * 2
            and found.own[1].action != first["own-1x-2"].action
        )
    )
    assert own.own()["own-1x-1"] == first["own-1x-1"]
    started = [each.action.id for each in own.submitted()]
    assert len(started) == 3
    await own.until_held([0, 1])


async def test_gpus_that_lack_are_waited_for_and_named(own: OwnRig) -> None:
    own.declare(gpus=4, degrees=(2,))
    await own.start_gpus(gpus=2)
    own.keep(SOON)
    report = await own.until_reported(
        lambda found: sorted(each.state for each in found.own) == ["serves", "waits"]
    )
    (waiting,) = (each for each in report.own if each.state == "waits")
    assert "gpu" in waiting.detail

    own.declare(gpus=4, degrees=(4,))
    report = await own.until_reported(
        lambda found: [(each.name, each.state) for each in found.own] == [("own-4x-1", "waits")]
    )
    assert "none of pool 'default' has more than 2" in report.own[0].detail
    await own.until_held([])


async def test_a_fleet_that_is_deleted_without_a_keeper_gives_its_gpus_back_once_there_is_one(
    own: OwnRig,
) -> None:
    own.declare(gpus=1)
    await own.start_gpus(gpus=1)
    _, running = own.keep(SOON)
    await own.until_serving(1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    own.declare(gpus=0)
    await own.until_undeclared()
    assert own.gpus_held() == [0]
    own.keep(SOON)
    await own.until_held([])


async def test_gpus_are_divided_otherwise_between_two_batches_and_the_next_keeper_leaves_it_so(
    own: OwnRig,
) -> None:
    slow, fast = (
        DegreeProfile(degree, (1, 8), (0, 1000), ((seconds,) * 2,) * 2, ((1, 0.001),), 1e6)
        for degree, seconds in ((1, 60.0), (2, 0.01))
    )
    own.declare(gpus=2, degrees=(1, 2), profile=EngineProfile((slow, fast)))
    await own.start_gpus(gpus=2)
    _, running = own.keep(SOON)
    await own.until_serving(2)
    await own.until(lambda workers: len(workers) == 2)

    async with web(own) as client:
        said = a_chat("hello", max_tokens=9, tangram={"trajectory": "t-1"})
        assert (await client.post(CHAT, json=said)).status_code == 200
        assert own.own().keys() == {"own-1x-1", "own-1x-2"}
        finished = await client.post("/api/v1/trajectories/t-1/finish")
        assert finished.status_code < 300, finished.text
    report = await own.until_reported(
        lambda found: [(each.name, each.state) for each in found.own] == [("own-2x-1", "serves")]
    )
    assert report.division is not None
    assert report.division.degrees == (2,)
    assert report.division.restart_seconds is not None
    await own.until_held([0, 1])

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    following, _ = own.keep(SOON)
    await own.until_reported(
        lambda found: found.keeper == following.lease.name and found.own == report.own
    )
    assert len(own.submitted()) == 3
