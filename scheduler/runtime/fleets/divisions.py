"""Divisions: how the GPUs of each fleet are divided into workers of our own, planned between two batches.

The lengths of the trajectories that finished since the fleet was idle last are what the next ones are expected to have.
`placement.degrees` finds the division on which those would end soonest; it is applied where that gain exceeds a restart.

Rules
1. A fleet begins with workers of its smallest degree. One that allows a single degree, or has declared workers beside its own, stays as it is.
2. A division is considered while no trajectory of the fleet is live and all its workers serve and are idle, for `idle_seconds`: no cache
   is lost, and no generation waits for a worker that restarts.
3. A restart costs what the longest start lately took, from the start of its process to its first answer; before any was seen, what the
   profile says. Where neither is known, nothing changes.
4. Degrees that no node of the pool can hold are not considered.
5. The division in force is in the report of its fleet: the next keeper goes on with it, as long as the declaration allows it.
6. Others in the pool may take GPUs while workers restart. A fleet that has no worker for `GIVE_UP_SECONDS`, because wide ones wait for chunks,
   returns to its smallest degree.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

import msgspec

from contract.fleet_reports import DivisionReport, KeeperReport
from contract.fleet_status import FleetsStatus, FleetStatus, WorkerEngineStatus
from domain.action import ActionState
from domain.errors import InvalidRequest
from domain.fleets import FleetSpec
from domain.resources import MILLI
from placement.features import FinishedTrajectory
from scheduler.runtime.capacity import FleetCapacity
from scheduler.runtime.fleets.keeper_reports import KeeperReports, wall_clock

log = logging.getLogger(__name__)

#: Finished trajectories of one fleet that are looked at, the latest.
MOST_LENGTHS: Final = 4096
#: Longest wait for chunks without any worker (rule 6).
GIVE_UP_SECONDS: Final = 60.0
#: Starts whose longest one counts.
_STARTS: Final = 8

Degrees = tuple[int, ...]


class FinishedLength(NamedTuple):
    """What a finished trajectory took."""

    tokens: float
    #: Mean tokens of context while it sampled them.
    context_tokens: float


class Divisions:
    """The divisions of all fleets."""

    def __init__(self, reports: KeeperReports, idle_seconds: float) -> None:
        self._reports = reports
        self._idle_seconds = idle_seconds
        self._chosen: dict[str, Degrees] = {}
        self._lengths: dict[str, deque[FinishedLength]] = {}
        self._starts: dict[str, deque[float]] = {}
        self._idle_since: dict[str, float] = {}

    def recall(self, stored: Mapping[str, bytes]) -> None:
        """Go on with the divisions in the reports of the keeper before."""
        for fleet, value in stored.items():
            try:
                report = msgspec.json.decode(value, type=KeeperReport).division
            except msgspec.DecodeError as error:  # of another version
                log.warning("the division of fleet %s is not known: %s", fleet, error)
                continue
            if report is not None:
                self._chosen[fleet] = report.degrees
                self._reports.of(fleet).division = report
                if report.restart_seconds is not None:
                    self.started(fleet, report.restart_seconds)

    def degrees(self, fleet: str, spec: FleetSpec) -> Degrees:
        """Return the degrees of the workers of a fleet, descending."""
        chosen = self._chosen.get(fleet, ())
        if sum(chosen) == spec.gpus and set(chosen) <= set(spec.degrees):
            return chosen
        least = min(spec.degrees)
        return (least,) * (spec.gpus // least)

    def finished(self, fleet: str, trajectory: FinishedTrajectory) -> None:
        """Note a trajectory that finished."""
        tokens = sum(each.tokens for each in trajectory.steps)
        if tokens > 0:
            grown = trajectory.prompt_tokens + tokens / 2
            context = max(grown, fmean(each.context_tokens for each in trajectory.steps))
            known = self._lengths.setdefault(fleet, deque(maxlen=MOST_LENGTHS))
            known.append(FinishedLength(tokens, context))

    def started(self, fleet: str, seconds: float) -> None:
        """Note how long a start took."""
        self._starts.setdefault(fleet, deque(maxlen=_STARTS)).append(seconds)

    async def consider(
        self,
        fleets: Mapping[str, FleetCapacity],
        found: FleetsStatus,
        pools: Mapping[str, list[dict[str, int]]],
    ) -> None:
        """Plan the division of each fleet that is idle and has finished trajectories since it was last."""
        now = asyncio.get_running_loop().time()
        for status in found.fleets:
            self._give_up(status, found.engines or ())
            declared = fleets.get(status.name)
            spec = None if declared is None else declared.own
            if spec is None or len(spec.degrees) < 2 or not self._is_idle(status, spec):
                self._idle_since.pop(status.name, None)
                continue
            if now - self._idle_since.setdefault(status.name, now) < self._idle_seconds:
                continue
            lengths = self._lengths.pop(status.name, None)
            if lengths:
                await self._plan(status.name, spec, list(lengths), _largest(pools, spec.pool))

    def _give_up(self, status: FleetStatus, engines: Iterable[WorkerEngineStatus]) -> None:
        """Return to the smallest degree where no worker serves, because wide ones do not get their chunks (rule 6)."""
        waits = [
            each.age_seconds
            for each in engines
            if each.process.fleet == status.name and each.state is ActionState.QUEUED
        ]
        serves = any(each.facts.usable for each in status.workers)
        if not serves and max(waits, default=0.0) > GIVE_UP_SECONDS:
            given_up = self._chosen.pop(status.name, None)
            if given_up is not None:
                log.warning("fleet %s: no chunks for workers of %s GPUs", status.name, given_up)
                self._reports.of(status.name).division = None

    def _is_idle(self, status: FleetStatus, spec: FleetSpec) -> bool:
        """Whether all workers of the division serve, and nothing runs or will go on."""
        usable = [each.facts.degree for each in status.workers if each.facts.usable]
        whole = sorted(usable, reverse=True) == list(self.degrees(status.name, spec))
        own = all(each.facts.own for each in status.workers)
        busy = any(each.running or each.waiting for each in status.workers)
        return whole and own and not (busy or status.live or status.unrouted)

    async def _plan(
        self, fleet: str, spec: FleetSpec, lengths: list[FinishedLength], most: int
    ) -> None:
        current, restart = self.degrees(fleet, spec), self._restart_seconds(fleet, spec)
        try:
            found = await asyncio.to_thread(_best, spec, lengths, most, current, restart or 0.0)
        except InvalidRequest as error:
            log.warning("the GPUs of fleet %s are not divided otherwise: %s", fleet, error)
            return
        degrees, seconds, current_seconds = found
        gain = current_seconds - seconds
        applied = restart is not None and gain > restart and degrees != current
        if applied:
            log.info("fleet %s: %s GPUs are divided into %s", fleet, spec.gpus, degrees)
            self._chosen[fleet] = degrees
        self._reports.of(fleet).division = DivisionReport(
            degrees if applied else current, current_seconds, degrees, seconds, restart, len(lengths),
            wall_clock(),
        )  # fmt: skip

    def _restart_seconds(self, fleet: str, spec: FleetSpec) -> float | None:
        measured = self._starts.get(fleet)
        if measured:
            return max(measured)
        profiled = () if spec.profile is None else spec.profile.degrees
        known = [each.restart_seconds for each in profiled if each.restart_seconds is not None]
        return max(known, default=None)


def _largest(pools: Mapping[str, list[dict[str, int]]], pool: str) -> int:
    """Return the GPUs of the node of a pool that has most."""
    return max((node.get("gpu", 0) for node in pools.get(pool, ())), default=0) // MILLI


def _best(
    spec: FleetSpec, lengths: Sequence[FinishedLength], most: int, current: Degrees, restart: float
) -> tuple[Degrees, float, float]:
    """Return the best division with its seconds, and those of the present one. Raises InvalidRequest."""
    # Imported here: numpy is loaded where a fleet has a choice, and nowhere else.
    import numpy as np

    from placement.arrange import size_table
    from placement.degrees import plan_degrees
    from placement.roofline import declared_times

    times = declared_times(spec.profile, spec.modelled)
    context = fmean(each.context_tokens for each in lengths)
    longest = max(each.tokens for each in lengths)
    tables = {
        degree: size_table(times, degree, spec.slots * degree, len(lengths), context)
        for degree in spec.degrees
        if degree in current
        or (degree <= most and degree in times.degrees and times.kv_tokens(degree) > longest)
    }
    found = plan_degrees(
        [each.tokens for each in lengths], spec.gpus, tables, np.random.default_rng(0), current=current,
        restart_seconds=restart,
    )  # fmt: skip
    before = found.seconds if found.current_seconds is None else found.current_seconds
    return found.degrees, found.seconds, before
