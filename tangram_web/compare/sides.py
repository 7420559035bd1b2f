"""Sides of a comparison: a task, a time range, a revision of the configuration, or a run of a simulation.

A side is named by one text, so that an address and the API name it alike:

    task:PROJECT/NAME            actions of a task
    range:FROM..TO               actions submitted in a time range; instants as ISO 8601 or seconds since 1970
    revision:NUMBER              actions submitted while a revision was in force
    simulation:ID/RUN            a run of a simulation of recorded minutes, by its policy or configuration
    measured:ID                  what was measured in these minutes

Rules
1. A reader sees the actions of the projects that `Sight` shows; what it hides is `UnknownSide`, as what is not there.
2. Rows are finished actions, the latest `MOST_ROWS` of the side; `SideRows.cut` says that there are more.
3. Where a range has no rows any more, its histograms are read from the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import nan
from time import time
from typing import Any, Final, NamedTuple

import numpy as np
import redis
from django.db.models import QuerySet
from numpy.typing import NDArray

from domain.errors import InvalidRequest, NotFound
from domain.ids import action_id
from tangram_web.compare.statistics import Column
from tangram_web.dashboard.costs import integral
from tangram_web.dashboard.history_query import binned_of
from tangram_web.live.access import Sight
from tangram_web.pools.models import ConfigRevision
from tangram_web.records.models import ActionRecord, TaskRecord
from tangram_web.simulations.models import Simulation

#: Rows that are read of one side.
MOST_ROWS: Final = 5_000
KINDS: Final = ("task", "range", "revision", "simulation", "measured")
_COLUMNS: Final = (
    "queue", "overhead", "execution", "granted", "measured", "failed", "incomplete", "begun", "ended",
)  # fmt: skip
_LATEST_INSTANT: Final = 32_503_680_000.0  # the year 3000


class UnknownSide(NotFound):
    """The side does not exist, or the reader may not see it."""


@dataclass(frozen=True)
class SideRows:
    """Columns of one side; a column is empty where it is not known."""

    name: str
    #: One sentence on what these actions are.
    says: str
    simulated: bool = False
    queue: Column = field(default_factory=lambda: np.empty(0))
    overhead: Column = field(default_factory=lambda: np.empty(0))
    execution: Column = field(default_factory=lambda: np.empty(0))
    #: Number of the trajectory of each.
    trajectory: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    #: Core-seconds granted, and those that were measured; nan: not measured.
    granted: Column = field(default_factory=lambda: np.empty(0))
    measured: Column = field(default_factory=lambda: np.empty(0))
    #: 1.0 for an exit code that is not 0, and for an outcome other than completed.
    failed: Column = field(default_factory=lambda: np.empty(0))
    incomplete: Column = field(default_factory=lambda: np.empty(0))
    #: Wall clock of submission and end.
    begun: Column = field(default_factory=lambda: np.empty(0))
    ended: Column = field(default_factory=lambda: np.empty(0))
    #: Outcome → number of actions.
    outcomes: Mapping[str, int] = field(default_factory=dict)
    #: There are more actions than rows.
    cut: bool = False
    #: Phase → counts of its histogram, where there are no rows.
    binned: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    #: Sides of one recorded window have the same actions in the same order.
    window: str = ""

    @property
    def act(self) -> Column:
        """Action completion times."""
        return self.queue + self.overhead + self.execution

    def __len__(self) -> int:
        return int(self.binned["act"].sum()) if self.binned else len(self.queue)


def rows_of(text: str, sight: Sight) -> SideRows:
    """Return the rows of the side that ``text`` names. Raises InvalidRequest and UnknownSide."""
    kind, separator, rest = text.partition(":")
    if kind not in KINDS or not separator or not rest or "\0" in rest:
        raise InvalidRequest(f"{text[:80]!r} names no side: write KIND:…, of {', '.join(KINDS)}")
    return {
        "task": _task, "range": _range, "revision": _revision, "simulation": _simulation,
        "measured": _measured,
    }[kind](rest, sight)  # fmt: skip


def _task(key: str, sight: Sight) -> SideRows:
    row = TaskRecord.objects.filter(pk=key).first()
    if row is None or not sight.sees(row.project):
        raise UnknownSide(f"there is no task {key[:200]!r}")
    rows = ActionRecord.objects.filter(project=row.project, task=row.name)
    return _read(rows, row.name, f"task {key}, as it ran")


def _range(text: str, sight: Sight) -> SideRows:
    first, separator, last = text.partition("..")
    if not separator:
        raise InvalidRequest("a range is FROM..TO")
    span = (instant_of(first), instant_of(last))
    if span[0] >= span[1]:
        raise InvalidRequest("a range begins before it ends")
    name = f"{_clock(span[0])} to {_clock(span[1])}"
    side = _read(_submitted(span, sight), name, f"actions submitted {name} UTC")
    return side if len(side) else _of_history(side, span, sight)


def _of_history(side: SideRows, span: tuple[float, float], sight: Sight) -> SideRows:
    """Return the histograms of a range without rows; ``side`` where none is kept, or not for the reader."""
    projects = sight.projects
    if projects is not None and len(projects) != 1:
        return side
    try:
        binned = binned_of(*span, time(), projects[0] if projects else "")
    except redis.RedisError:
        return side
    if not binned["act"].sum():
        return side
    says = f"actions that ended {side.name} UTC, from histograms: their rows are not kept any more"
    return replace(side, says=says, binned=binned)


def _revision(text: str, sight: Sight) -> SideRows:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequest("a revision is a number")
    row = ConfigRevision.objects.filter(number=int(text)).first()
    if row is None:
        raise UnknownSide(f"there is no revision {text}")
    after = ConfigRevision.objects.filter(number__gt=row.number).order_by("number").first()
    first = row.created_at.timestamp()
    last = after.created_at.timestamp() if after else datetime.now(UTC).timestamp()
    until = _clock(last) if after else "now"
    says = f"actions submitted under revision {text}, {_clock(first)} to {until} UTC"
    return _read(_submitted((first, last), sight), f"revision {text}", says)


def _submitted(span: tuple[float, float], sight: Sight) -> QuerySet[ActionRecord]:
    """Select actions by their ids, which begin with the time of their submission."""
    low, high = (action_id(int(at * 1000), b"\0" * 8) for at in span)
    return sight.of(ActionRecord.objects.filter(id__gte=low, id__lt=high))


def instant_of(text: str) -> float:
    """Return seconds since 1970 of an instant. Raises InvalidRequest."""
    try:
        at = float(text)
    except ValueError:
        try:
            found = datetime.fromisoformat(text)
            at = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise InvalidRequest(
                f"{text[:40]!r} is no instant: write 2026-11-28T14:15:00Z"
            ) from None
    if not 0 <= at < _LATEST_INSTANT:
        raise InvalidRequest(f"{text[:40]!r} is no instant between 1970 and 3000")
    return at


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def _read(rows: QuerySet[ActionRecord], name: str, says: str) -> SideRows:
    """Read the latest rows; actions that have not finished have no duration yet."""
    finished = rows.filter(finished_seq__isnull=False).order_by("-id")
    rows_read = finished.values_list(*ActionRow._fields)[: MOST_ROWS + 1]
    found = [ActionRow(*each) for each in rows_read]
    cut = len(found) > MOST_ROWS
    found = found[:MOST_ROWS]
    if cut:
        says += f"; the latest {MOST_ROWS:,} of them"
    return side_of(found, name, says, cut=cut)


class ActionRow(NamedTuple):
    """The fields of an action that a comparison reads."""

    project: str
    trajectory: str | None
    id: str
    queue_seconds: float | None
    overhead_seconds: float | None
    execution_seconds: float | None
    act_seconds: float | None
    units: Mapping[str, float] | None
    widths: list[list[float]] | None
    used: Mapping[str, Any] | None
    outcome: str
    exit_code: int | None
    submitted_at: datetime
    finished_at: datetime | None

    def columns(self) -> dict[str, float]:
        """Return its value in each column of `SideRows`."""
        held = max(0.0, (self.act_seconds or 0.0) - (self.queue_seconds or 0.0))
        granted = float((self.units or {}).get("cpu", 0.0)) * held
        return {
            "queue": self.queue_seconds or 0.0,
            "overhead": self.overhead_seconds or 0.0,
            "execution": self.execution_seconds or 0.0,
            "granted": integral(self.widths, held) if self.widths else granted,
            "measured": float(self.used["cpu_seconds"]) if self.used else nan,
            "failed": float(self.outcome == "completed" and bool(self.exit_code)),
            "incomplete": float(self.outcome != "completed"),
            "begun": self.submitted_at.timestamp(),
            "ended": (self.finished_at or self.submitted_at).timestamp(),
        }


def side_of(found: Iterable[ActionRow], name: str, says: str, *, cut: bool = False) -> SideRows:
    """Return the columns of rows."""
    numbers: dict[tuple[str, str], int] = {}
    outcomes: dict[str, int] = {}
    groups, rows = [], []
    for row in found:
        groups.append(numbers.setdefault((row.project, row.trajectory or row.id), len(numbers)))
        outcomes[row.outcome] = outcomes.get(row.outcome, 0) + 1
        rows.append(row.columns())
    columns: dict[str, Any] = {
        each: np.array([row[each] for row in rows], dtype=np.float64) for each in _COLUMNS
    }
    return SideRows(
        name=name, says=says, trajectory=np.array(groups, dtype=np.int64), outcomes=outcomes,
        cut=cut, **columns,
    )  # fmt: skip


# Simulations


def _outcome_of(key: str, sight: Sight) -> tuple[Simulation, dict[str, Any]]:
    found = Simulation.objects.filter(pk=key).first()
    if found is None or not sight.sees(found.project_id):
        raise UnknownSide(f"there is no simulation {key[:80]!r}")
    if not found.outcome:
        raise InvalidRequest(f"simulation {key} has no result")
    outcome: dict[str, Any] = found.outcome
    return found, outcome


def _simulation(text: str, sight: Sight) -> SideRows:
    key, _, run = text.partition("/")
    found, outcome = _outcome_of(key, sight)
    for each in outcome["runs"]:
        if each["policy"] == run:
            if not each.get("rows"):
                raise InvalidRequest(f"simulation {key} has no rows of its actions")
            return window_side(each["rows"], run, f"simulated: {found.source}", key, simulated=True)
    raise UnknownSide(f"simulation {key} has no run {run[:80]!r}")


def _measured(key: str, sight: Sight) -> SideRows:
    found, outcome = _outcome_of(key, sight)
    if not outcome.get("measured"):
        raise InvalidRequest(f"simulation {key} has no recorded window")
    return window_side(outcome["measured"], "measured", f"as it ran: {found.source}", key)


def window_side(
    rows: Mapping[str, Iterable[Any]], name: str, says: str, window: str, *, simulated: bool = False
) -> SideRows:
    """Return the rows of one run of a recorded window; nan where an action had not ended."""

    def column(part: str) -> Column:
        return np.array([nan if each is None else each for each in rows[part]], dtype=np.float64)

    numbers: dict[int, int] = {}
    groups = [numbers.setdefault(each, len(numbers)) for each in rows["trajectory"]]
    return SideRows(
        name=name, says=says, simulated=simulated, window=window, queue=column("queue"),
        overhead=column("overhead"), execution=column("execution"), granted=column("cores"),
        trajectory=np.array(groups, dtype=np.int64),
    )  # fmt: skip
