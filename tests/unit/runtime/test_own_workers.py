"""A look at all workers of our own: what is asked, what is appended, and what is reported of those whose engine ended."""

from __future__ import annotations

from typing import Any, cast

import httpx
import pytest

from contract.fleet_status import FleetsStatus
from domain.errors import Unavailable
from domain.events import ActionSubmitted, Event
from domain.fleets import FleetEngine, FleetSpec
from scheduler.runtime.capacity import FleetCapacity
from scheduler.runtime.fleets.divisions import Divisions
from scheduler.runtime.fleets.keeper_reports import KeeperReports
from scheduler.runtime.fleets.own_workers import OwnWorkers


class Parts:
    """What the workers are kept with: a lease, the fleets in force, and a loop that knows of no engine."""

    name = "keeper"
    known = True
    pools = {"default": [{"gpu": 2000}]}

    def __init__(self, gpus: int) -> None:
        own = FleetSpec(FleetEngine.VLLM, gpus=gpus, degrees=(1,)) if gpus else None
        self.fleets = {"m": FleetCapacity(FleetEngine.VLLM, own=own)}
        self.status = FleetsStatus(engines=[])
        self.appended: list[Event] = []
        self.asked = 0
        self.why: str | Exception = ""

    async def engines(self) -> FleetsStatus:
        self.asked += 1
        return self.status

    async def append(self, events: list[Event]) -> None:
        self.appended += events

    async def why_ended(self, action: str) -> str:
        if isinstance(self.why, Exception):
            raise self.why
        return self.why


def kept(gpus: int = 2) -> tuple[OwnWorkers, Parts, KeeperReports]:
    parts = cast("Any", Parts(gpus))
    reports = KeeperReports(parts, "reports")
    divisions = Divisions(reports, 5.0)
    own = OwnWorkers(
        httpx.AsyncClient(), parts, parts, reports, parts, parts, divisions, parts.why_ended
    )
    return own, parts, reports


async def test_an_engine_that_ended_is_reported_with_what_its_row_says_once_there_is_one():
    own, parts, reports = kept()
    await own.step()
    ports = {each.action.engine.port for each in parts.appended if isinstance(each, ActionSubmitted)
             and each.action.engine is not None}  # fmt: skip
    assert len(ports) == 2

    parts.why = RuntimeError("the database is away")
    await own.step()  # the loop knows of none of them: they have ended
    assert "its engine has ended; the next start is in 1 s" in reports.of("m").own[0].detail
    parts.why = "the engine ended with exit status 1: CUDA out of memory"
    await own.step()
    assert "exit status 1: CUDA out of memory; the next" in reports.of("m").own[0].detail
    assert len(parts.appended) == 2


async def test_the_loop_is_asked_no_more_where_no_fleet_has_workers_of_its_own():
    own, parts, _ = kept(gpus=0)
    for _ in range(3):
        await own.step()
    assert parts.asked == 1
    parts.known = False  # the fleets were not read yet: nothing may be ended
    await own.step()
    assert parts.asked == 1


async def test_nothing_is_started_while_the_leader_does_not_know_what_runs():
    own, parts, _ = kept()
    parts.status = FleetsStatus()
    with pytest.raises(Unavailable, match="earlier version"):
        await own.step()
    assert parts.appended == []
