"""GPUs of a fleet are divided otherwise between two batches, where that gains more than a restart takes."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from contract.fleet_reports import KeeperReport
from contract.fleet_status import FleetsStatus, FleetStatus, FleetWorkerStatus, WorkerEngineStatus
from domain.action import ActionState
from domain.engine_profiles import DegreeProfile, EngineProfile
from domain.fleet_engines import WorkerProcess
from domain.fleets import FleetEngine, FleetSpec, FleetWorker, PlacementName
from placement.features import FinishedTrajectory, TrajectoryStep
from scheduler.runtime.capacity import FleetCapacity
from scheduler.runtime.fleets.divisions import GIVE_UP_SECONDS, Divisions
from scheduler.runtime.fleets.keeper_reports import KeeperReports


def times(degree: int, seconds: float, restart: float | None = None) -> DegreeProfile:
    return DegreeProfile(degree, (1, 8), (0, 1000), ((seconds, seconds),) * 2, ((1, 0.001),), 1e6, restart)  # fmt: skip


#: A token takes 1 s on one GPU, and 0.1 s on two.
PROFILE = EngineProfile((times(1, 1.0), times(2, 0.1)))
SPEC = FleetSpec(FleetEngine.VLLM, gpus=2, degrees=(1, 2), profile=PROFILE)


def idle(*degrees: int, **facts: Any) -> FleetStatus:
    workers = [
        FleetWorkerStatus(FleetWorker(number=n, name=f"w{n}", url="http://a", degree=d, own=True))
        for n, d in enumerate(degrees, 1)
    ]
    status = FleetStatus("m", FleetEngine.VLLM, PlacementName.HEDGED, workers=workers)
    return replace(status, **facts)


class Fleet:
    """A fleet of two GPUs whose divisions are considered without a pause."""

    def __init__(self, spec: FleetSpec = SPEC) -> None:
        self.spec = spec
        self.reports = KeeperReports(cast("Any", Lease()), "reports")
        self.divisions = Divisions(self.reports, 0.0)

    def finish(self, *lengths: float) -> None:
        for each in lengths:
            self.divisions.finished("m", FinishedTrajectory("t", (TrajectoryStep(each, 0.0, 9.0),)))

    async def degrees(
        self, *statuses: FleetStatus, engines: tuple[WorkerEngineStatus, ...] = (), gpus: int = 2
    ) -> tuple[int, ...]:
        """Consider statuses; return the division that is in force afterwards."""
        fleets = {"m": FleetCapacity(FleetEngine.VLLM, own=self.spec)}
        pools = {"default": [{"gpu": gpus * 1000}]}
        for each in statuses:
            await self.divisions.consider(fleets, FleetsStatus([each], list(engines)), pools)
        return self.divisions.degrees("m", self.spec)


class Lease:
    """The lease of a keeper that writes nothing."""

    name = "keeper"


async def test_a_division_that_gains_more_than_a_restart_is_applied_once_the_fleet_is_idle():
    fleet = Fleet()
    fleet.divisions.started("m", 20.0)
    fleet.finish(100.0, 90.0)
    assert await fleet.degrees() == (1, 1)
    live = idle(1, 1, live=1)
    assert await fleet.degrees(live, idle(1), idle(1, 1, unrouted={"no_worker": 1})) == (1, 1)
    assert await fleet.degrees(idle(1, 1)) == (2,)
    report = fleet.reports.of("m").division
    assert report is not None
    assert (report.degrees, report.best, report.restart_seconds) == ((2,), (2,), 20.0)
    assert report.current_seconds > report.best_seconds + 20.0


@pytest.mark.parametrize(
    ("restart", "spec", "gpus"),
    [
        (95.0, SPEC, 2),  # it gains 90 s
        (None, SPEC, 2),  # what a restart takes is not known
        (20.0, SPEC, 1),  # no node has two GPUs
        (20.0, replace(SPEC, degrees=(1,)), 2),
    ],
)
async def test_a_division_stays_where_another_gains_too_little_or_cannot_be(
    restart: float | None, spec: FleetSpec, gpus: int
):
    fleet = Fleet(spec)
    if restart is not None:
        fleet.divisions.started("m", restart)
    fleet.finish(100.0, 90.0)
    assert await fleet.degrees(idle(1, 1), gpus=gpus) == (1, 1)


async def test_the_profile_says_what_a_restart_takes_until_one_was_measured():
    declared = EngineProfile((times(1, 1.0), times(2, 0.1, restart=30.0)))
    fleet = Fleet(replace(SPEC, profile=declared))
    fleet.finish(100.0, 90.0)
    assert await fleet.degrees(idle(1, 1)) == (2,)


async def test_the_next_keeper_goes_on_with_a_division_until_it_is_declared_otherwise():
    fleet = Fleet()
    fleet.divisions.started("m", 20.0)
    fleet.finish(100.0, 90.0)
    await fleet.degrees(idle(1, 1))
    stored = {"m": msgspec.json.encode(fleet.reports.of("m")), "n": b"{"}

    following = Fleet()
    following.divisions.recall(stored)
    assert await following.degrees() == (2,)
    assert following.divisions.degrees("m", replace(SPEC, gpus=4)) == (1, 1, 1, 1)
    assert following.divisions.degrees("m", replace(SPEC, degrees=(1,))) == (1, 1)


async def test_a_fleet_without_workers_returns_to_the_smallest_degree_when_chunks_do_not_come():
    fleet = Fleet()
    fleet.divisions.recall({"m": stored_division((2,))})
    process = WorkerProcess("m", "own-2x-1", 20000)
    waiting = WorkerEngineStatus("a", "default", process, 2, ActionState.QUEUED, age_seconds=9.0)
    assert await fleet.degrees(idle(), engines=(waiting,)) == (2,)
    late = replace(waiting, age_seconds=GIVE_UP_SECONDS + 1)
    assert await fleet.degrees(idle(2), engines=(late,)) == (2,)
    assert await fleet.degrees(idle(), engines=(late,)) == (1, 1)


def stored_division(degrees: tuple[int, ...]) -> bytes:
    division = {"degrees": degrees, "current_seconds": 9.0, "best": degrees, "best_seconds": 1.0}
    report = msgspec.convert({"division": division}, KeeperReport)
    return msgspec.json.encode(report)
