"""A database as full as after weeks of training: bulk rows, past the projection.

Sizes are those of a long run: one task has four tenths of all actions, most trajectories have
twenty-five, one has five thousand; nineteen in twenty actions completed. What is rare in production
is rare here, since a page that looks for rare rows is the one that reads them all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.db import connection
from django.db.models import Model

from benchmarks.million_times import APART_SECONDS, BEGUN
from domain.ids import action_id
from tangram_web.records.action_rows import BLANK
from tangram_web.records.models import ActionRecord, TaskRecord, TrajectoryRecord
from tangram_web.records.statements import instant_writer, write_sums
from tangram_web.records.sums import EndKey, StepKey, Sums

TRAJECTORY_ACTIONS: Final = 25
LONG_TRAJECTORY: Final = "t-long"
LONG_ACTIONS: Final = 5000
TASKS: Final = 24
STEP_ACTIONS: Final = 8192
#: The newest ones are not over.
LIVE: Final = 300
FAMILIES: Final = ("test", "read", "edit", "build", "search")
_OUTCOMES: Final = ("completed", "timeout", "cancelled", "expired", "oom_killed", "infra_failed")
_WEIGHTS: Final = (9500, 300, 150, 40, 9, 1)
_SPEC: Final = json.dumps({"task": "task-0", "kind": "exec", "cost": {"cpu": [1, 2, 4, 8]},
                           "exec": {"command": ["pytest", "-n", "{units}", "tests/" + "x" * 120]}})  # fmt: skip
_RESULT: Final = json.dumps({"exit_code": 0, "stdout": "." * 200, "stderr": "", "truncated": False})
_COST: Final = '{"cpu":[1,2,4,8]}'


def fill(actions: int) -> None:
    """Put ``actions`` rows and their trajectories and tasks into a migrated, empty database."""
    with connection.cursor() as cursor:
        sums = Sums()
        _copy(cursor, ActionRecord, list(BLANK), _actions(actions, sums))
        write_sums(cursor, sums)
        names, rows = _trajectories(actions)
        _copy(cursor, TrajectoryRecord, names, rows)
        names, rows = _tasks(actions)
        _copy(cursor, TaskRecord, names, rows)
        if connection.vendor == "postgresql":
            cursor.execute("VACUUM ANALYZE")  # as its own daemon does in time


def watcher() -> Any:
    """Return the account that looks at the pages in process."""
    users = get_user_model()._default_manager
    return users.get_or_create(username="bench", defaults={"is_staff": True, "is_superuser": True})[
        0
    ]


def place_of(number: int, actions: int) -> tuple[str, str]:
    """Return the task and the trajectory of an action: neighbours belong to different ones."""
    if number % (actions // LONG_ACTIONS or 1) == 0:
        return "task-0", LONG_TRAJECTORY
    many = max(1, actions // TRAJECTORY_ACTIONS)
    trajectory = number * 7919 % many
    share = trajectory % 10
    task = 0 if share < 4 else 1 + trajectory % (TASKS - 1)
    return f"task-{task}", f"t-{trajectory}"


def name_of(number: int) -> str:
    """Return the id of an action."""
    return action_id(int((BEGUN + number * APART_SECONDS) * 1000), number.to_bytes(8, "big"))


def actions_as_rows(actions: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of actions by column."""
    for row in _actions(actions, Sums()):
        yield dict(zip(BLANK, row, strict=True))


def _actions(actions: int, sums: Sums) -> Iterator[tuple[Any, ...]]:
    chance, instant = random.Random(1), instant_writer()
    for number in range(actions):
        task, trajectory = place_of(number, actions)
        at = BEGUN + number * APART_SECONDS
        step = sums.steps[StepKey("default", task, number // STEP_ACTIONS)]
        step.actions += 1
        step.begun_wall = step.begun_wall or at
        row = BLANK | {
            "id": name_of(number), "project": "default", "task": task, "trajectory": trajectory,
            "pool": "default", "kind": "exec", "family": FAMILIES[number % 5],
            "step": number // STEP_ACTIONS, "cost": _COST, "spec": _SPEC,
            "submitted_at": instant(at),
        }  # fmt: skip
        if number < actions - LIVE:
            seconds = chance.lognormvariate(0, 1.5)
            queue = chance.expovariate(2.0)
            outcome = chance.choices(_OUTCOMES, _WEIGHTS)[0]
            end = sums.ends[EndKey("default", task, outcome)]
            end.actions += 1
            step.finished += 1
            step.ended_wall = at + seconds
            for change in (step, end):
                change.queue_seconds += queue
                change.act_seconds += seconds
            row |= {
                "state": "finished", "outcome": outcome, "units": '{"cpu":2}', "node": "n1",
                "result": _RESULT, "exit_code": _exit_code(number) if outcome == "completed" else None,
                "door": "e2b" if number % 3 == 0 else None, "reward": 1.0 if outcome == "completed" else None,
                "granted_at": instant(at + queue), "started_at": instant(at + queue + 0.01),
                "finished_at": instant(at + queue + seconds + 0.01), "queue_seconds": queue,
                "overhead_seconds": 0.01, "execution_seconds": seconds,
                "act_seconds": queue + 0.01 + seconds, "finished_seq": number,
            }  # fmt: skip
        yield tuple(row.values())


def _exit_code(number: int) -> int:
    """Return the exit code of a command: one in forty fails."""
    return 0 if number % 40 else 137 if number % 400 == 0 else 1


def _trajectories(actions: int) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    many, instant = max(1, actions // TRAJECTORY_ACTIONS), instant_writer()
    owners = {f"t-{number}": place_of_trajectory(number) for number in range(many)}
    owners[LONG_TRAJECTORY] = "task-0"
    blank = _blank(TrajectoryRecord)

    def rows() -> Iterator[tuple[Any, ...]]:
        for number, (name, task) in enumerate(owners.items()):
            at = BEGUN + number * APART_SECONDS * TRAJECTORY_ACTIONS
            count = LONG_ACTIONS if name == LONG_TRAJECTORY else TRAJECTORY_ACTIONS
            row = blank | {
                "key": f"default/{name}", "project": "default", "name": name, "task": task,
                "pool": "default", "node": "n1", "opened_at": instant(at), "metadata": "{}",
                "state": "open" if number >= many - 50 else "finished", "actions": count,
                "finished": count, "external_seconds": 3.0 * count, "begun_wall": at,
                "ended_wall": at + 300, "granted_core_seconds": 6.0 * count, "peak_cores": 4.0,
            }  # fmt: skip
            yield tuple(row.values())

    return list(blank), rows()


def place_of_trajectory(number: int) -> str:
    """Return the task that a trajectory belongs to, as `place_of` has it."""
    return f"task-{0 if number % 10 < 4 else 1 + number % (TASKS - 1)}"


def _tasks(actions: int) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    instant, blank = instant_writer(), _blank(TaskRecord)
    rows = (
        tuple((blank | {
            "key": f"default/task-{number}", "project": "default", "name": f"task-{number}",
            "pool": "default", "opened_at": instant(BEGUN + number), "metadata": "{}",
            "actions": actions // TASKS, "finished": actions // TASKS,
            "external_seconds": 3.0 * actions / TASKS, "granted_core_seconds": 6.0 * actions / TASKS,
        }).values())
        for number in range(TASKS)
    )  # fmt: skip
    return list(blank), rows


def _blank(model: type[Model]) -> dict[str, Any]:
    """Return column → default, for all columns."""
    fields = model._meta.concrete_fields
    return {
        str(field.column): field.get_default() if field.has_default() else None for field in fields
    }


def _copy(
    cursor: Any, model: type[Model], columns: list[str], rows: Iterator[tuple[Any, ...]]
) -> None:
    names, table = ", ".join(f'"{name}"' for name in columns), model._meta.db_table
    if connection.vendor == "postgresql":
        with cursor.cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        return
    marks = ", ".join("?" * len(columns))
    raw = connection.connection
    raw.execute("PRAGMA synchronous=OFF")
    raw.execute("BEGIN")
    raw.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)
    raw.execute("COMMIT")
