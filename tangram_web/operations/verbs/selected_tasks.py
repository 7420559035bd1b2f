"""The verb on several tasks at once, which a person selected in a list, or whose actions are selected.

Rules
1. A target lists up to `MOST` keys of tasks (``project/name``) and ids of actions, which stand for their tasks.
2. The priority of a task is that of all its actions (`scheduler.core.handlers.tasks`), also of those that are not selected.
3. The role is needed in the project of each task, and each project has an audit entry of its own.
"""

from __future__ import annotations

from typing import Any, Final

from django.db import transaction
from django.http import HttpRequest

from domain.errors import NotFound, Unavailable
from domain.events import TaskPrioritised
from tangram_web.accounts.models import Role
from tangram_web.audit.services import record
from tangram_web.lib import scheduler_client
from tangram_web.lib.scheduler_client import send_commands
from tangram_web.operations import forms
from tangram_web.operations.live_counts import live
from tangram_web.operations.verb import Effect, Target, Values, Verb, shell_line
from tangram_web.records.models import ActionRecord, TaskRecord

#: Keys and ids of one target, and tasks that they stand for.
MOST: Final = 1000
MOST_TASKS: Final = 100
#: Tasks that the shell command and a sentence name.
_LINES: Final = 20
_NAMED: Final = 3
_PLAIN: Final[Values] = {"paused": False, "priority": None}


def tasks_target(name: str) -> Target:
    """Return the tasks that ``name`` lists. Raises NotFound."""
    given = list(dict.fromkeys(filter(None, name.split(","))))
    if len(given) > MOST:
        raise NotFound(f"a verb applies to at most {MOST:,} rows; {len(given):,} are selected")
    keys = {each for each in given if "/" in each}
    actions = ActionRecord.objects.filter(pk__in=[each for each in given if each not in keys])
    owners = actions.values_list("project", "task").distinct()
    keys |= {f"{project}/{task}" for project, task in owners}
    rows = list(TaskRecord.objects.filter(pk__in=keys).order_by("pk").values_list("pk", "project"))
    if not rows:
        raise NotFound("there are no such tasks")
    if len(rows) > MOST_TASKS:
        raise NotFound(f"a verb applies to at most {MOST_TASKS} tasks; these are {len(rows):,}")
    projects: dict[str, list[str]] = {}
    for key, project in rows:
        projects.setdefault(project, []).append(key)
    steered = steered_tasks([key for key, _ in rows])
    found: dict[str, Any] = {
        "title": rows[0][0] if len(rows) == 1 else f"{len(rows)} selected",
        "projects": projects,
        "steered": steered,
    }
    present = {each["priority"] for each in steered.values()}
    if len(present) == 1:
        found["priority"] = present.pop()
    project = next(iter(projects)) if len(projects) == 1 else ""
    return Target(kind="tasks", name=name, project=project, now=found)


def steered_tasks(keys: list[str]) -> dict[str, Values]:
    """Return whether each task is paused, and its priority; without an answer of the scheduler as if none was steered."""
    try:
        controls = scheduler_client.status().get("steered_tasks", {})
    except Unavailable:
        controls = {}
    return {key: {**_PLAIN, **controls.get(key, {})} for key in keys}


def _name(key: str) -> str:
    return key.partition("/")[2]


def _effect(target: Target, _: Values) -> Effect:
    counts: dict[str, int] = {}
    for project, keys in target.now["projects"].items():
        for word, number in live(project=project, task__in=[_name(key) for key in keys]).items():
            counts[word] = counts.get(word, 0) + number
    names = list(target.now["steered"])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    says = (
        f"All waiting actions of {', '.join(names[:_NAMED])}{more} move to another place in their"
        " queues, also those that are not selected; no action is ended."
    )
    return Effect(counts, says)


def _prioritise(request: HttpRequest, target: Target, values: Values) -> None:
    events: list[Any] = []
    after = values["priority"]
    with transaction.atomic():
        for project, keys in target.now["projects"].items():
            before = {key: target.now["steered"][key]["priority"] for key in keys}
            changed = {key: former for key, former in before.items() if former != after}
            if not changed:
                continue
            aim, done = f"tasks/{len(changed)} selected", {"priority": after, "tasks": [*changed]}
            record(request, "prioritise", aim, {"priorities": changed}, done, project=project)
            events += [
                TaskPrioritised(project=project, task=_name(key), priority=after) for key in changed
            ]
        send_commands(*events)


def _line(target: Target, values: Values) -> str:
    given = [str(values["priority"])] if values.get("priority") is not None else []
    keys = list(target.now["steered"])
    lines = [
        shell_line(
            "tangram", "task", "priority", _name(key), *given, "--project", key.partition("/")[0]
        )
        for key in keys[:_LINES]
    ]
    more = f" # and {len(keys) - _LINES:,} more" if len(keys) > _LINES else ""
    return " && ".join(lines) + more


ON_SELECTED_TASKS: Final = (
    Verb(kind="tasks", name="priority", title="Change priority", role=Role.OPERATOR, effect=_effect,
         do=_prioritise, form=forms.PriorityForm, line=_line),
)  # fmt: skip
