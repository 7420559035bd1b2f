"""Cost of an action, a trajectory or a task, compared with a reservation for whole trajectories.

The reservation holds a trajectory's widest grant from its opening to the end of its last action, as
a system does that gives each trajectory a container and GPUs for its whole life.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, F, FloatField, QuerySet, Sum

from tangram_web.dashboard.templatetags.console import amount
from tangram_web.records.models import ActionRecord, TaskRecord, TrajectoryRecord


@dataclass(frozen=True)
class CostLine:
    """Amounts of one kind of resource, in units times seconds."""

    name: str
    asked: float
    granted: float
    #: The part of ``granted`` whose use was measured; and that use.
    measured: float
    used: float
    #: Granted to actions of trajectories, and the reservation for these trajectories.
    in_trajectories: float
    reserved: float

    @property
    def used_share(self) -> float | None:
        """Used share of the grants, where it was measured."""
        return self.used / self.measured if self.measured else None

    @property
    def saving(self) -> float | None:
        """Share of the reservation that was not held."""
        return 1 - self.in_trajectories / self.reserved if self.reserved else None


@dataclass(frozen=True)
class Bill:
    """The kinds that were granted, and the number of trajectories in the comparison."""

    lines: list[CostLine]
    trajectories: int


def bill_of_trajectory(row: TrajectoryRecord) -> Bill:
    """Return the cost of one trajectory so far."""
    life = row.ended_wall - row.begun_wall if row.begun_wall else 0.0
    return _bill(row, 1, _reservation(row, life, life * row.peak_cores, life * row.peak_gpus))


def bill_of_task(row: TaskRecord) -> Bill:
    """Return the cost of one task so far; one query over its trajectories."""
    rows: QuerySet[TrajectoryRecord] = TrajectoryRecord.objects.filter(
        project=row.project, task=row.name, begun_wall__gt=0, ended_wall__gt=0
    )
    life = F("ended_wall") - F("begun_wall")
    sums = rows.aggregate(
        count=Count("key"),
        cores=Sum("granted_core_seconds"),
        gpus=Sum("granted_gpu_seconds"),
        reserved_cores=Sum(life * F("peak_cores"), output_field=FloatField()),
        reserved_gpus=Sum(life * F("peak_gpus"), output_field=FloatField()),
    )
    numbers = {name: value or 0.0 for name, value in sums.items()}
    reservation = (
        (numbers["cores"], numbers["reserved_cores"]),
        (numbers["gpus"], numbers["reserved_gpus"]),
    )
    return _bill(row, sums["count"], reservation)


def cost_of_action(row: ActionRecord) -> list[tuple[str, str]]:
    """Return name and text of what a finished action held and used; empty before its end."""
    if row.act_seconds is None or row.queue_seconds is None:
        return []
    held_seconds = max(0.0, row.act_seconds - row.queue_seconds)
    words = []
    for name, kind in (("Core-seconds", "cpu"), ("GPU-seconds", "gpu")):
        units = (row.units or {}).get(kind)
        if units is None:
            continue
        granted = units * held_seconds
        if kind == "cpu" and row.widths:
            granted = integral(row.widths, held_seconds)
        used = row.used["cpu_seconds"] if row.used and kind == "cpu" else None
        counted = "" if used is None else f", {amount(used)} used"
        words.append((name, f"{amount(granted)} granted{counted}"))
    return words


def integral(widths: list[list[float]], until: float) -> float:
    """Return units times seconds of ``[[since, units], …]``."""
    ends = [since for since, _ in widths[1:]] + [until]
    return sum(
        units * max(0.0, end - since) for (since, units), end in zip(widths, ends, strict=True)
    )


Reservation = tuple[tuple[float, float], tuple[float, float]]


def _reservation(row: TrajectoryRecord, life: float, cores: float, gpus: float) -> Reservation:
    if not life:
        return (0.0, 0.0), (0.0, 0.0)
    return (row.granted_core_seconds, cores), (row.granted_gpu_seconds, gpus)


def _bill(row: TaskRecord | TrajectoryRecord, trajectories: int, reservation: Reservation) -> Bill:
    cores = CostLine(
        "Core-seconds",
        row.asked_core_seconds,
        row.granted_core_seconds,
        row.measured_core_seconds,
        row.used_core_seconds,
        *reservation[0],
    )
    gpus = CostLine(
        "GPU-seconds", row.asked_gpu_seconds, row.granted_gpu_seconds, 0.0, 0.0, *reservation[1]
    )
    return Bill([line for line in (cores, gpus) if line.granted], trajectories)
