"""The result of one simulation, as one struct with deterministic bytes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from simulator.cluster import Cluster
from simulator.tally import SimulationTally
from simulator.trainers import Trainers

Column = NDArray[np.float64]

#: Stretches that a run is cut into.
WINDOWS = 40


class Spread(msgspec.Struct, frozen=True):
    """A column of seconds in five numbers."""

    mean: float
    p50: float
    p95: float
    p99: float
    most: float


class ResultPart(msgspec.Struct, frozen=True):
    """Some actions: how many, their ACT, and what it is made of."""

    actions: int
    act: Spread
    queue: Spread
    overhead: Spread
    execution: Spread


class TimeWindow(msgspec.Struct, frozen=True):
    """A stretch of the run: how many actions ended in it, and their mean ACT."""

    from_seconds: float
    actions: int
    act_mean: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One policy's run. All of it is simulated; equal runs have equal bytes (`encode`)."""

    policy: str
    outcomes: dict[str, int]
    requeued: int
    resized: int
    #: Calls for which a GPU service had to be brought to its chunk first.
    restores: int
    #: Restores ahead of their grant, and how many of them a call met.
    restores_ahead: int = 0
    restores_met: int = 0
    #: Passes of the loop, and events that they took.
    passes: int
    events: int
    whole: ResultPart
    rewards: ResultPart | None
    interactions: ResultPart | None
    #: Sum of ACTs of one trajectory, over trajectories: what ARL-Tangram §6 reports.
    trajectory_act: Spread
    step_seconds: tuple[float, ...]
    #: From the first moment of a trajectory to its last answer, thinking included; the largest is the
    #: slowest trajectory, which a synchronous trainer waits for (ARL-Tangram §2).
    trajectory_seconds: Spread = Spread(0.0, 0.0, 0.0, 0.0, 0.0)
    #: `jain_index` over tasks; None with one task.
    fairness: float | None = None
    virtual_seconds: float
    #: The whole run in `WINDOWS` equal stretches (ARL-Tangram Figure 6).
    windows: tuple[TimeWindow, ...]
    #: Resource → share of all its units × time that was granted (``cpu``, ``gpu``: all nodes together).
    granted: dict[str, float]
    #: T_ori completed per granted core·second: what parallelism has left of it.
    efficiency: float
    #: Digest of every single timing.
    fingerprint: str
    #: Of each RL step, how long its trajectories took, thinking included.
    step_trajectory_seconds: tuple[Spread, ...] = ()


def encode(results: Sequence[Result]) -> bytes:
    """Return results as JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n"


class Finished(Protocol):
    """A finished run, of the core or of a baseline."""

    tally: SimulationTally
    trainers: Trainers
    passes: int
    events: int


def summarise(simulation: Finished, cluster: Cluster, policy: str) -> Result:
    """Return the result of a finished run."""
    tally = simulation.tally
    columns = _columns(tally)
    family = np.frombuffer(tally.rows.family, dtype=np.uint16)
    is_reward = family == tally.families.get("reward", -1)
    began_at = tally.began_at
    seconds = simulation.trainers.ended_at - began_at
    of_steps = [_floats(each) for each in simulation.trainers.trajectory_seconds]
    return Result(
        policy=policy,
        outcomes=dict(sorted(tally.outcomes.items())),
        requeued=tally.requeued,
        resized=tally.resized,
        restores=tally.restores,
        restores_ahead=tally.restores_ahead,
        restores_met=tally.restores_met,
        passes=simulation.passes,
        events=simulation.events,
        whole=_part(columns, np.ones(len(family), dtype=bool)),
        rewards=_part(columns, is_reward) if is_reward.any() else None,
        interactions=_part(columns, ~is_reward) if is_reward.any() else None,
        trajectory_act=_trajectory_act(tally, columns),
        step_seconds=tuple(each - began_at for each in simulation.trainers.step_seconds),
        trajectory_seconds=spread(np.concatenate([np.empty(0), *of_steps])),
        fairness=fairness(tally),
        virtual_seconds=seconds,
        windows=_windows(columns, _floats(tally.rows.ended) - began_at, seconds),
        granted=_granted(tally, cluster, seconds),
        efficiency=_ratio(tally.useful_core_seconds, tally.held_core_seconds),
        fingerprint=tally.fingerprint(),
        step_trajectory_seconds=tuple(spread(each) for each in of_steps),
    )


def spread(values: Column) -> Spread:
    """Return the five numbers of ``values``; zeros when there are none."""
    if not len(values):
        return Spread(0.0, 0.0, 0.0, 0.0, 0.0)
    p50, p95, p99 = np.quantile(values, (0.5, 0.95, 0.99))
    return Spread(float(values.mean()), float(p50), float(p95), float(p99), float(values.max()))


def fairness(tally: SimulationTally) -> float | None:
    """Return Jain's index of the stretch of all tasks; None with fewer than two.

    The stretch of a task is its mean ACT over the mean T_ori of its actions, seconds by seconds, so that a
    task of long actions does not count as neglected. Where T_ori is not known, it is the execution.
    """
    stretches = [act / work for act, work in tally.tasks.values() if work > 0]
    return jain_index(stretches) if len(stretches) > 1 else None


def jain_index(values: Sequence[float]) -> float:
    """Return (Σx)² / (n · Σx²): 1 when all ``values`` are equal, 1/n when all but one are 0.

    R. Jain, D. Chiu, W. Hawe, A Quantitative Measure of Fairness, DEC-TR-301, 1984.
    """
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else 1.0


def _columns(tally: SimulationTally) -> tuple[Column, Column, Column]:
    rows = tally.rows
    return _floats(rows.queue), _floats(rows.overhead), _floats(rows.execution)


def _floats(column: array[float]) -> Column:
    return np.frombuffer(column, dtype=np.float64)


def _part(columns: tuple[Column, Column, Column], chosen: NDArray[np.bool_]) -> ResultPart:
    queue, overhead, execution = (column[chosen] for column in columns)
    return ResultPart(
        actions=len(queue),
        act=spread(queue + overhead + execution),
        queue=spread(queue),
        overhead=spread(overhead),
        execution=spread(execution),
    )


def _windows(
    columns: tuple[Column, Column, Column], ended: Column, until: float
) -> tuple[TimeWindow, ...]:
    width = until / WINDOWS
    if not width > 0:
        return ()
    which = np.clip((ended / width).astype(np.intp), 0, WINDOWS - 1)
    counts = np.bincount(which, minlength=WINDOWS)
    sums = np.bincount(which, weights=sum(columns), minlength=WINDOWS)
    return tuple(
        TimeWindow(index * width, int(count), float(total) / int(count) if count else 0.0)
        for index, (count, total) in enumerate(zip(counts, sums, strict=True))
    )


def _trajectory_act(tally: SimulationTally, columns: tuple[Column, Column, Column]) -> Spread:
    owners = np.frombuffer(tally.rows.trajectory, dtype=np.uint32)
    queue, overhead, execution = columns
    sums = np.zeros(len(tally.trajectories))
    np.add.at(sums, owners, queue + overhead + execution)
    return spread(sums)


def _granted(tally: SimulationTally, cluster: Cluster, seconds: float) -> dict[str, float]:
    held = dict(tally.held) | {kind: tally.held_milli_seconds(kind) for kind in ("cpu", "gpu")}
    return {
        resource: _ratio(held.get(resource, 0.0), capacity * seconds)
        for resource, capacity in cluster.capacity_milli().items()
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
