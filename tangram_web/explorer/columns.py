"""Columns of the lists: titles, orders and cells.

Rules
1. A cell is markup that is already escaped; all values pass through `format_html`.
2. A duration that still counts ends with “…”.
3. The first column of a row that is wide on a phone, the *lead*, has a second line with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from domain.action import ActionState
from domain.command_text import command_text
from tangram_web.dashboard.templatetags.console import duration, resources, words
from tangram_web.explorer.fields import Tab
from tangram_web.lib.explorer_links import explorer_link
from tangram_web.rollouts.templatetags.rollouts import phase

MISSING: Final = "–"


@dataclass(frozen=True)
class Drawing:
    """What the cells of a page have in common."""

    #: Instant of the page, in seconds since the epoch.
    at: float
    #: Longest completion time on the page.
    longest: float = 1.0


Cell = Callable[[Any, Drawing], str]


@dataclass(frozen=True)
class Column:
    """One column of a list."""

    name: str
    title: str
    cell: Cell
    #: The order that its title selects; empty: none.
    order: str = ""
    right: bool = False
    #: Shown unless a reader chooses otherwise.
    usual: bool = True
    #: Shown on a phone, with a second line in it.
    lead: bool = False
    #: Its number is on other pages, too (`data-figure` of the markup).
    figure: bool = False


def text_of(value: Any) -> str:
    """Return a value as text, a dash for none."""
    return MISSING if value is None or value == "" else str(value)


def _plain(name: str) -> Cell:
    return lambda row, _: text_of(getattr(row, name))


def _count(name: str) -> Cell:
    return lambda row, _: MISSING if getattr(row, name) is None else f"{getattr(row, name):,}"


def _number(name: str) -> Cell:
    return lambda row, _: MISSING if getattr(row, name) is None else f"{getattr(row, name):.4g}"


def _duration(name: str) -> Cell:
    return lambda row, _: duration(getattr(row, name))


def _instant(name: str) -> Cell:
    def cell(row: Any, _: Drawing) -> str:
        at: datetime | None = getattr(row, name)
        if at is None:
            return MISSING
        at = at.astimezone(UTC)
        return format_html(
            '<time datetime="{0}" title="{0}">{1}</time>', at.isoformat(), f"{at:%-d %b %H:%M:%S}"
        )

    return cell


def _chip(kind: str, text: str) -> SafeString:
    return format_html('<span class="chip" data-is="{}">{}</span>', kind, text)


def _state_or_exit(action: Any, _: Drawing) -> str:
    if action.state != ActionState.FINISHED:
        return _chip(action.state, action.state)
    if action.failed:
        return _chip("failed", f"exit {action.exit_code}")
    if action.outcome == "completed":
        code = action.exit_code
        return _chip("completed", "completed" if code is None else f"exit {code}")
    return _chip(action.outcome or "unknown", words(action.outcome))


def _command(action: Any, _: Drawing) -> str:
    text = command_text(action.spec)
    return format_html(
        '<a class="id" href="{}" title="{}"><code>{}</code></a><small>{}</small>',
        reverse("dashboard:action", args=[action.id]),
        action.id,
        text or f"{action.kind} …{action.id[-8:]}",
        _second_line(_ending_words(action), action.task, action.node),
    )


def _ending_words(action: Any) -> str:
    if action.state != ActionState.FINISHED:
        return str(action.state)
    if action.exit_code is not None:
        return f"exit {action.exit_code}"
    return words(action.outcome)


def _second_line(*parts: Any) -> str:
    return " · ".join(str(part) for part in parts if part)


def _task_and_trajectory(action: Any, _: Drawing) -> str:
    if not action.trajectory:
        return format_html('<span class="name-cell">{}</span>', action.task)
    return format_html(
        '<span class="name-cell">{} <a class="muted" href="{}">{}</a></span>',
        action.task,
        reverse("dashboard:trajectory", args=[f"{action.project}/{action.trajectory}"]),
        action.trajectory,
    )


def _short_id(action: Any, _: Drawing) -> str:
    return format_html('<code title="{}">…{}</code>', action.id, action.id[-8:])


def _wait(action: Any, _: Drawing) -> str:
    """Leave room for the reason, which the scheduler gives after the page is shown."""
    if action.state != ActionState.QUEUED:
        return MISSING
    return format_html('<span data-wait="{}" class="muted">…</span>', action.id)


def spent(action: Any, at: float) -> tuple[float, float, float]:
    """Return the queue, overhead and execution seconds of an action, until ``at`` if it is live."""
    if action.act_seconds is not None:
        seconds = (action.queue_seconds, action.overhead_seconds, action.execution_seconds)
        return seconds[0] or 0.0, seconds[1] or 0.0, seconds[2] or 0.0
    submitted = action.submitted_at.timestamp()
    if action.state == ActionState.FINISHED:
        return 0.0, 0.0, 0.0
    granted = action.granted_at.timestamp() if action.granted_at else at
    granted = at if action.state == ActionState.QUEUED else granted
    started = action.started_at.timestamp() if action.started_at else at
    return (
        max(0.0, granted - submitted),
        max(0.0, min(started, at) - granted),
        max(0.0, at - started),
    )


def completion(action: Any, at: float) -> float | None:
    """Return the completion time of an action, until ``at`` if it is live; None: it has none."""
    if action.act_seconds is not None:
        seconds: float = action.act_seconds
        return seconds
    if action.state == ActionState.FINISHED:
        return None
    begun: float = action.submitted_at.timestamp()
    return max(0.0, at - begun)


def _phases(action: Any, drawing: Drawing) -> str:
    parts, left = [], 0.0
    for name, seconds in zip(("queue", "over", "exec"), spent(action, drawing.at), strict=True):
        wide = 100 * seconds / drawing.longest
        if wide > 0:
            parts.append(f'<rect class="f-{name}" x="{left:.2f}" width="{wide:.2f}" height="8"/>')
        left += wide
    title = " · ".join(
        f"{name} {duration(seconds)}"
        for name, seconds in zip(
            ("queue", "overhead", "execution"), spent(action, drawing.at), strict=True
        )
    )
    return format_html(
        '<svg class="phases" viewBox="0 0 100 8" preserveAspectRatio="none" role="img"'
        ' aria-label="{0}"><title>{0}</title>{1}</svg>',
        title,
        mark_safe("".join(parts)),
    )


def _act(action: Any, drawing: Drawing) -> str:
    seconds = completion(action, drawing.at)
    return duration(seconds) + ("" if action.state == ActionState.FINISHED else "…")


def _door(row: Any, _: Drawing) -> str:
    return row.door or "native"


def _named(page: str) -> Cell:
    def cell(row: Any, _: Drawing) -> str:
        said = f"{row.actions:,} actions"
        parts = (getattr(row, "state", ""), getattr(row, "task", ""), said)
        return format_html(
            '<a class="id" href="{}">{}</a><small>{}</small>',
            reverse(page, args=[row.key]), row.name, _second_line(*parts),
        )  # fmt: skip

    return cell


def _failing(task: Any, _: Drawing) -> str:
    if not task.failing:
        return "0"
    link = explorer_link(
        "actions", task=task.name, project=task.project, outcome="completed", exit="!=0"
    )
    return format_html('<a href="{}">{}</a>', link, _chip("failed", f"{task.failing:,}"))


def _actions_of(name: str) -> Cell:
    def cell(row: Any, _: Drawing) -> str:
        link = explorer_link("actions", **{name: row.name}, project=row.project)
        return format_html('<a href="{}">{}</a>', link, f"{row.actions:,}")

    return cell


def _rollout(row: Any, _: Drawing) -> str:
    said = _second_line(
        words(row.outcome) if row.outcome else phase(row).words, row.task, row.worker
    )
    return format_html(
        '<a class="id mono" href="{}" title="{}">…{}</a><small>{}</small>',
        reverse("rollouts:one", args=[row.id]), row.id, row.id[-8:], said,
    )  # fmt: skip


def _stage(row: Any, _: Drawing) -> str:
    found = phase(row)
    return _chip(found.chip, found.words)


def _rollout_outcome(row: Any, _: Drawing) -> str:
    if not row.outcome:
        return MISSING
    return format_html(
        '<span class="chip" data-is="{}" title="{}">{}</span>',
        row.outcome, (row.reason or "")[:300], words(row.outcome),
    )  # fmt: skip


def _group(row: Any, _: Drawing) -> str:
    if not row.group:
        return MISSING
    shown = row.group if len(row.group) <= 14 else f"{row.group[:13]}…"
    link = reverse("rollouts:groups", query={"group": row.group})
    return format_html('<a href="{}" title="{}">{}</a>', link, row.group, shown)


def _instance(row: Any, _: Drawing) -> str:
    return f"{row.instance or MISSING} #{row.sample}"


_COLUMNS: Final[dict[str, tuple[Column, ...]]] = {
    "actions": (
        Column("state", "State or exit", _state_or_exit, "exit"),
        Column("command", "Command or call", _command, lead=True),
        Column("task", "Task, trajectory", _task_and_trajectory, "task"),
        Column("node", "Node", _plain("node")),
        Column("wait", "Wait reason", _wait),
        Column("door", "Door", _door),
        Column("phases", "Phases", _phases),
        Column("act", "ACT", _act, "act", right=True),
        Column("id", "Action", _short_id, usual=False),
        Column("submitted", "Submitted", _instant("submitted_at"), "submitted", usual=False),
        Column("finished", "Finished", _instant("finished_at"), "finished", usual=False),
        Column("queue", "Queue", _duration("queue_seconds"), "queue", right=True, usual=False),
        Column("execution", "Execution", _duration("execution_seconds"), "execution", right=True,
               usual=False),
        Column("kind", "Kind", _plain("kind"), usual=False),
        Column("project", "Project", _plain("project"), usual=False),
        Column("pool", "Pool", _plain("pool"), usual=False),
        Column("units", "Units", lambda row, _: resources(row.units), usual=False),
        Column("family", "Family", _plain("family"), usual=False),
        Column("step", "Step", _plain("step"), right=True, usual=False),
        Column("group", "Group", _plain("group"), usual=False),
        Column("priority", "Priority", _plain("priority"), right=True, usual=False),
        Column("attempt", "Attempt", _plain("attempt"), right=True, usual=False),
        Column("reward", "Reward", _number("reward"), right=True, usual=False),
    ),
    "trajectories": (
        Column("name", "Trajectory", _named("dashboard:trajectory"), "name", lead=True),
        Column("task", "Task", _plain("task"), "task"),
        Column("opened", "Opened", _instant("opened_at"), "opened"),
        Column("state", "State", lambda row, _: _chip(row.state, row.state)),
        Column("node", "Node", _plain("node")),
        Column("actions", "Actions", _actions_of("trajectory"), "actions", right=True, figure=True),
        Column("finished", "Finished", _count("finished"), "finished", right=True),
        Column("external", "Sum of ACT", _duration("external_seconds"), "external", right=True),
        Column("project", "Project", _plain("project"), usual=False),
        Column("pool", "Pool", _plain("pool"), usual=False),
        Column("ended", "Ended", _instant("finished_at"), usual=False),
    ),
    "tasks": (
        Column("name", "Task", _named("dashboard:task"), "name", lead=True),
        Column("project", "Project", _plain("project")),
        Column("pool", "Pool", _plain("pool")),
        Column("opened", "Opened", _instant("opened_at"), "opened"),
        Column("actions", "Actions", _actions_of("task"), "actions", right=True, figure=True),
        Column("finished", "Finished", _count("finished"), "finished", right=True, figure=True),
        Column("failing", "Exit not 0", _failing, "failing", right=True, figure=True),
        Column("external", "Sum of ACT", _duration("external_seconds"), "external", right=True),
    ),
    "rollouts": (
        Column("rollout", "Rollout", _rollout, lead=True),
        Column("submitted", "Submitted", _instant("submitted_at"), "submitted"),
        Column("task", "Task", _plain("task"), "task"),
        Column("instance", "Instance", _instance),
        Column("group", "Group", _group),
        Column("handler", "Handler", _plain("handler")),
        Column("state", "State", _stage),
        Column("outcome", "Outcome", _rollout_outcome),
        Column("reward", "Reward", _number("reward"), "reward", right=True),
        Column("turns", "Turns", _count("turns"), "turns", right=True),
        Column("tokens", "Tokens", _count("tokens"), "tokens", right=True),
        Column("attempt", "Attempt", _plain("attempt"), right=True),
        Column("worker", "Worker", _plain("worker")),
        Column("total", "Took", _duration("total_seconds"), "total", right=True),
        Column("finished", "Finished", _instant("finished_at"), "finished", usual=False),
        Column("llm", "Backends", _plain("llm"), usual=False),
        Column("project", "Project", _plain("project"), usual=False),
        Column("door", "Door", _door, usual=False),
    ),
}  # fmt: skip


def columns_of(tab: Tab) -> tuple[Column, ...]:
    """Return all columns of a tab in their order."""
    return _COLUMNS[tab.name]


def chosen_columns(tab: Tab, names: Iterable[str]) -> tuple[Column, ...]:
    """Return the columns of these names in the order of the tab; the usual ones if there are none.

    The lead is always shown: without it, a row would not say what it is.
    """
    wanted = set(names)
    known = columns_of(tab)
    if not wanted & {each.name for each in known}:
        return tuple(each for each in known if each.usual)
    return tuple(each for each in known if each.name in wanted or each.lead)


def drawing_of(tab: Tab, rows: Iterable[Any], at: float) -> Drawing:
    """Return what the cells of these rows have in common."""
    if tab.name != "actions":
        return Drawing(at)
    return Drawing(at, max((completion(row, at) or 0.0 for row in rows), default=1.0) or 1.0)
