"""The keeper of fleets predicts what is left of trajectories while they are in their tools, and the scheduler ranks by it."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from domain.fleet_events import TrajectoryPredicted
from scheduler.runtime.fleets.fleet_predictor import PredictorTimes
from scheduler.runtime.fleets.trajectory_predictions import STEPS, StepsMemory
from scheduler.runtime.redis.journal import Journal
from tests.integration.runtime.fleet_trajectories import Trajectories
from tests.integration.runtime.keeper_rig import SOON, KeeperRig, an_engine

pytestmark = pytest.mark.slow

QUICK = replace(
    SOON, predictors=PredictorTimes(fit_every=24, fit_pause_seconds=0.1, remember_seconds=0.1)
)
LONG, SHORT = 400, 20


async def train(trainers: Trajectories, count: int) -> None:
    """Finish trajectories whose first answer shows how long they become."""
    slow = [f"slow-{n}" for n in range(count)]
    quick = [f"quick-{n}" for n in range(count)]
    for _ in range(2):
        await trainers.generate(dict.fromkeys(slow, LONG) | dict.fromkeys(quick, SHORT))
    for _ in range(2):
        await trainers.generate(dict.fromkeys(slow, LONG))
    trainers.finish((*slow, *quick))


def predictions(facts: list[Any], *names: str) -> dict[str, TrajectoryPredicted] | None:
    """Return the latest prediction of each trajectory, once all have one."""
    found = {
        each.trajectory.removeprefix("default/"): each
        for each in facts
        if isinstance(each, TrajectoryPredicted)
    }
    return found if set(names) <= found.keys() else None


async def test_a_trained_predictor_changes_the_rank_of_the_next_generation(
    fleet: KeeperRig,
) -> None:
    pytest.importorskip("lightgbm")
    (engine,) = await fleet.serve(an_engine())
    fleet.lead([engine.url], slots=100)
    trainers = Trajectories(fleet)
    await train(trainers, 30)
    fleet.keep(QUICK)  # it learns from the journal what was before it
    report = await fleet.until_reported(lambda found: found.predictor and found.predictor.fits)
    assert report.predictor is not None
    assert (report.predictor.learnt, report.predictor.note) == (60, "")

    first = await trainers.generate({"looks-long": LONG, "looks-short": SHORT})
    said = await fleet.until_journalled(lambda facts: predictions(facts, *first))
    assert {each.source for each in said.values()} == {"boosted"}
    assert said["looks-long"].tokens > 1.5 * said["looks-short"].tokens

    second = await trainers.generate({"looks-long": LONG, "looks-short": SHORT})
    assert first["looks-long"].rank == first["looks-short"].rank
    assert second["looks-long"].rank > second["looks-short"].rank


async def test_a_keeper_that_takes_over_goes_on_where_the_one_before_was(fleet: KeeperRig) -> None:
    (engine,) = await fleet.serve(an_engine())
    fleet.lead([engine.url], slots=100, predictor="history")
    trainers = Trajectories(fleet)
    _, running = fleet.keep(QUICK)
    await train(trainers, 3)
    await trainers.generate({"t": LONG})
    await fleet.until_reported(lambda found: found.predictor and found.predictor.learnt == 6)
    before = await fleet.until_journalled(lambda facts: predictions(facts, "t"))

    last = Journal(fleet.redis, fleet.keys).last_id()
    async with asyncio.timeout(60):
        while not _stored(fleet, last):
            await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    fleet.redis.xtrim(fleet.keys.journal, minid=last)  # the steps before are nowhere else
    fleet.keep(QUICK)
    await trainers.generate({"t": LONG})
    after = await fleet.until_journalled(
        lambda facts: (
            found
            if (found := predictions(facts, "t")) and found["t"].tokens != before["t"].tokens
            else None
        )
    )

    assert after["t"].tokens == pytest.approx(
        2 * LONG
    )  # what is left after two steps, not after one
    report = await fleet.until_reported(lambda found: found.predictor and found.predictor.sent)
    assert report.predictor is not None
    assert report.predictor.learnt == 6


def _stored(rig: KeeperRig, position: str) -> bool:
    """Say whether the keeper has stored what it knows at a position of the journal."""
    value = cast("bytes | None", rig.redis.hget(rig.keys.fleet_predictions, STEPS))
    if value is None:
        return False
    return msgspec.msgpack.decode(zlib.decompress(value), type=StepsMemory).position == position
