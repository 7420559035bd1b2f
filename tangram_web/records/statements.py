"""SQL of the projection: few statements of many rows, the same for SQLite and PostgreSQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache
from math import modf
from operator import attrgetter
from typing import Any, Final

import msgspec
from django.db import connection
from django.db.backends.utils import CursorWrapper
from django.db.models import Model

from tangram_web.records.action_rows import ActionChange
from tangram_web.records.models import (
    ActionRecord,
    EndRecord,
    RolloutRecord,
    StepRecord,
    TaskRecord,
    TrajectoryRecord,
    TrajectoryRecordState,
)
from tangram_web.records.rollout_rows import RolloutChange
from tangram_web.records.spending import PEAKS, SUMS
from tangram_web.records.sums import EndChange, EndKey, StepChange, StepKey, Sums
from tangram_web.records.workload_changes import TaskChange, TrajectoryChange, WorkloadChanges

#: Ids in one query: within SQLite's oldest limit on parameters.
_IDS_PER_QUERY: Final = 900

_ACTIONS: Final = ActionRecord._meta.db_table
_ROLLOUTS: Final = RolloutRecord._meta.db_table
_TASKS: Final = TaskRecord._meta.db_table
_TRAJECTORIES: Final = TrajectoryRecord._meta.db_table


def _values_of(change: type[Any]) -> attrgetter[tuple[Any, ...]]:
    """Return what reads the columns of a change: `dataclasses.astuple` copies every value deeply."""
    return attrgetter(*(field.name for field in fields(change)))


_task_values: Final = _values_of(TaskChange)
_trajectory_values: Final = _values_of(TrajectoryChange)
_step_values: Final = _values_of(StepChange)
_end_values: Final = _values_of(EndChange)


def instant_writer() -> Callable[[float], Any]:
    """Return a function from seconds since the epoch to the value of a timestamp column.

    SQLite's columns hold the text that Django's own adapter would write.
    """
    return instant_text if connection.vendor == "sqlite" else _instant


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def instant_text(seconds: float) -> str:
    """Return an instant as Django's adapter for SQLite writes it; a third of its cost, for every action."""
    fraction, whole = modf(seconds)
    microseconds = round(fraction * 1e6)
    if not 0 < microseconds < 1_000_000:
        return str(_instant(seconds))[:-6]
    return f"{_second_text(whole)}.{microseconds:06d}"


@lru_cache(maxsize=64)
def _second_text(seconds: float) -> str:
    return str(_instant(seconds))[:-6]


def load_actions(cursor: CursorWrapper, ids: Iterable[str]) -> dict[str, ActionChange]:
    """Return the present state of the actions ``ids``; those without a row are left out."""
    wanted = list(ids)
    found: dict[str, ActionChange] = {}
    for start in range(0, len(wanted), _IDS_PER_QUERY):
        part = wanted[start : start + _IDS_PER_QUERY]
        cursor.execute(
            f"SELECT id, state, node, attempt, kind, project, task, trajectory, cost, step, detail IS NOT NULL "
            f"FROM {_ACTIONS} "
            f"WHERE id IN ({_marks(len(part))})",
            part,
        )
        found.update((row[0], ActionChange(*row[1:])) for row in cursor.fetchall())
    return found


def load_rollouts(cursor: CursorWrapper, ids: Iterable[str]) -> dict[str, RolloutChange]:
    """Return the present state of the rollouts ``ids``; those without a row are left out."""
    wanted = list(ids)
    found: dict[str, RolloutChange] = {}
    for start in range(0, len(wanted), _IDS_PER_QUERY):
        part = wanted[start : start + _IDS_PER_QUERY]
        cursor.execute(
            f"SELECT id, state, attempt, began_at IS NOT NULL, parked_times, attempts FROM {_ROLLOUTS} "
            f"WHERE id IN ({_marks(len(part))})",
            part,
        )
        for name, state, attempt, began, parked_times, attempts in cursor.fetchall():
            kept = msgspec.json.decode(attempts)
            found[name] = RolloutChange(state, attempt, bool(began), parked_times, kept)
    return found


def write_actions(cursor: CursorWrapper, actions: Mapping[str, ActionChange]) -> bool:
    """Write the changes of the rows of actions; return False if one that is new to the fold has a row."""
    return _write_rows(cursor, _ACTIONS, actions)


def write_rollouts(cursor: CursorWrapper, rollouts: Mapping[str, RolloutChange]) -> None:
    """Write the changes of the rows of rollouts."""
    _write_rows(cursor, _ROLLOUTS, rollouts)


def _write_rows(
    cursor: CursorWrapper,
    table: str,
    changes: Mapping[str, ActionChange] | Mapping[str, RolloutChange],
) -> bool:
    """Insert new rows, and update the others, those with the same columns together.

    A statement names the columns that are set: Python's `sqlite3` takes longer over a None than over any value.
    """
    new: defaultdict[tuple[str, ...], list[tuple[Any, ...]]] = defaultdict(list)
    changed: defaultdict[tuple[str, ...], list[tuple[Any, ...]]] = defaultdict(list)
    for name, change in changes.items():
        values = change.columns
        if change.is_new:
            new[tuple(values)].append(tuple(values.values()))
        elif values:
            changed[tuple(values)].append((*values.values(), name))
    all_new = True
    for columns, rows in new.items():
        # An existing row belongs to the same one, and is more recent than a second insertion.
        cursor.executemany(f"{_insert(table, columns)} ON CONFLICT (id) DO NOTHING", rows)
        all_new = all_new and cursor.rowcount == len(rows)
    for columns, rows in changed.items():
        assignments = ", ".join(f'"{column}" = %s' for column in columns)
        cursor.executemany(
            f"UPDATE {table} SET {assignments} WHERE id = %s AND finished_seq IS NULL", rows
        )
    return all_new


def write_workloads(cursor: CursorWrapper, changes: WorkloadChanges) -> None:
    """Apply the changes of tasks and trajectories to their rows."""
    ends = [
        (end.finished_at, end.finished_at, end.environment_removed_at, key)
        for key, end in changes.ends.items()
    ]
    if ends:
        cursor.executemany(_END_TRAJECTORY, ends)
    if changes.tasks:
        cursor.executemany(
            _UPSERT_TASK, [(key, *_task_values(change)) for key, change in changes.tasks.items()]
        )
    if changes.trajectories:
        cursor.executemany(
            _UPSERT_TRAJECTORY,
            [
                (key, _state(change), *_trajectory_values(change))
                for key, change in changes.trajectories.items()
            ],
        )


def write_sums(cursor: CursorWrapper, sums: Sums) -> None:
    """Add to the sums of steps and of outcomes."""
    if sums.steps:
        cursor.executemany(
            _UPSERT_STEP, [(*key, *_step_values(change)) for key, change in sums.steps.items()]
        )
    if sums.ends:
        cursor.executemany(
            _UPSERT_END, [(*key, *_end_values(change)) for key, change in sums.ends.items()]
        )


def _state(change: TrajectoryChange) -> str:
    ended = change.finished_at is not None
    return (TrajectoryRecordState.FINISHED if ended else TrajectoryRecordState.OPEN).value


def _marks(count: int) -> str:
    return ", ".join(["%s"] * count)


def _insert(table: str, columns: Sequence[str]) -> str:
    names = ", ".join(f'"{column}"' for column in columns)
    return f"INSERT INTO {table} ({names}) VALUES ({_marks(len(columns))})"


_ADD_COUNTERS: Final = ",\n    ".join(
    f"{name} = {{table}}.{name} + excluded.{name}"
    for name in ("actions", "finished", "external_seconds", *SUMS)
)
_HIGHEST: Final = "{name} = CASE WHEN excluded.{name} > {table}.{name} THEN excluded.{name} ELSE {table}.{name} END"


def _sums_and_highest(table: str, *highest: str) -> str:
    kept = [_HIGHEST.format(table=table, name=name) for name in highest]
    return ",\n    ".join([_ADD_COUNTERS.format(table=table), *kept])


_UPSERT_TASK: Final = f"""
{_insert(_TASKS, ["key", *(field.name for field in fields(TaskChange))])}
ON CONFLICT (key) DO UPDATE SET
    pool = CASE WHEN excluded.pool = '' THEN {_TASKS}.pool ELSE excluded.pool END,
    metadata = CASE WHEN excluded.metadata = '{{}}' THEN {_TASKS}.metadata
                    ELSE excluded.metadata END,
    {_sums_and_highest(_TASKS, *PEAKS)}"""

_UPSERT_TRAJECTORY: Final = f"""
{_insert(_TRAJECTORIES, ["key", "state", *(field.name for field in fields(TrajectoryChange))])}
ON CONFLICT (key) DO UPDATE SET
    state = CASE WHEN excluded.finished_at IS NULL THEN {_TRAJECTORIES}.state
                 ELSE excluded.state END,
    pool = CASE WHEN {_TRAJECTORIES}.pool = '' THEN excluded.pool ELSE {_TRAJECTORIES}.pool END,
    node = COALESCE(excluded.node, {_TRAJECTORIES}.node),
    environment = COALESCE({_TRAJECTORIES}.environment, excluded.environment),
    metadata = CASE WHEN excluded.metadata = '{{}}' THEN {_TRAJECTORIES}.metadata
                    ELSE excluded.metadata END,
    finished_at = COALESCE({_TRAJECTORIES}.finished_at, excluded.finished_at),
    environment_removed_at = COALESCE(excluded.environment_removed_at,
                                      {_TRAJECTORIES}.environment_removed_at),
    {_sums_and_highest(_TRAJECTORIES, "ended_wall", *PEAKS)}"""


def _upsert_sums(model: type[Model], key: Sequence[str], change: type[Any], rest: str = "") -> str:
    table, names = model._meta.db_table, [field.name for field in fields(change)]
    added = [name for name in names if not name.endswith("_wall")]
    additions = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in added)
    return f"{_insert(table, [*key, *names])} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {additions}{rest}"


_STEPS: Final = StepRecord._meta.db_table
#: A step begins with its earliest submission, which may be projected after later ones.
_LIFE_OF_STEP: Final = f""",
    begun_wall = CASE WHEN {_STEPS}.begun_wall = 0 THEN excluded.begun_wall
                      WHEN excluded.begun_wall = 0 THEN {_STEPS}.begun_wall
                      WHEN excluded.begun_wall < {_STEPS}.begun_wall THEN excluded.begun_wall
                      ELSE {_STEPS}.begun_wall END,
    {_HIGHEST.format(table=_STEPS, name="ended_wall")}"""
_UPSERT_STEP: Final = _upsert_sums(StepRecord, StepKey._fields, StepChange, _LIFE_OF_STEP)
_UPSERT_END: Final = _upsert_sums(EndRecord, EndKey._fields, EndChange)

_END_TRAJECTORY: Final = f"""
UPDATE {_TRAJECTORIES} SET
    state = CASE WHEN %s IS NULL THEN state ELSE 'finished' END,
    finished_at = COALESCE(finished_at, %s),
    environment_removed_at = COALESCE(%s, environment_removed_at)
WHERE key = %s"""
