"""Actions and other objects as table, wide table, JSON, YAML or names, on standard output."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tangram_client.models import ActionView

#: Columns of the table, by heading; the second half only when it may be wide.
COLUMNS: dict[str, Callable[[ActionView], str]] = {
    "ID": lambda action: action.id,
    "STATE": lambda action: action.state,
    "OUTCOME": lambda action: action.outcome or "–",
    "EXIT": lambda action: "–" if action.exit_code is None else str(action.exit_code),
    "TASK": lambda action: action.task or "–",
    "TRAJECTORY": lambda action: action.trajectory or "–",
    "UNITS": lambda action: units_text(action.units),
    "ACT": lambda action: seconds_text(action.timing.act_seconds if action.timing else None),
}
WIDE: dict[str, Callable[[ActionView], str]] = {
    "KIND": lambda action: action.kind or "–",
    "DOOR": lambda action: action.door or "–",
    "NODE": lambda action: action.node or "–",
    "QUEUE": lambda action: seconds_text(action.timing.queue_seconds if action.timing else None),
    "EXECUTION": lambda action: seconds_text(
        action.timing.execution_seconds if action.timing else None
    ),
    "REWARD": lambda action: "–" if action.reward is None else f"{action.reward:g}",
    "SUBMITTED": lambda action: action.submitted_at or "–",
    "WAITS FOR": lambda action: action.waiting.reason if action.waiting else "–",
}
STYLES = {
    "queued": "yellow", "granted": "cyan", "running": "cyan", "completed": "green",
    "timeout": "red", "expired": "red", "oom_killed": "red", "infra_failed": "red",
    "unknown": "magenta", "cancelled": "dim", "lost": "red", "drained": "yellow",
    "paused": "yellow", "oversubscribed": "yellow", "critical": "red", "warning": "yellow",
}  # fmt: skip


#: Columns of a table that goes into a pipe: it is never cut.
PIPE_WIDTH = 1000


def data_console() -> Console:
    """Return standard output as a terminal knows it."""
    return Console(highlight=False)


def talk_console() -> Console:
    """Return standard error, for progress and tables that are no data."""
    return Console(stderr=True, highlight=False)


def show(*parts: RenderableType) -> None:
    """Write tables to standard output."""
    console = data_console()
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    pipe = Console(highlight=False, width=PIPE_WIDTH)
    with pipe.capture() as captured:
        pipe.print(*parts, sep="\n")
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def put_actions(actions: Sequence[ActionView], form: str, *, single: bool = False) -> None:
    """Write actions in the format that was asked for; ``single``: JSON without a list around it."""
    if form == "name":
        for action in actions:
            click.echo(action.id)
    elif form in {"json", "yaml"}:
        bodies = [_body(action) for action in actions]
        put_data(bodies[0] if single else bodies, form)
    else:
        show(_table(actions, wide=form == "wide"))


def put_data(data: Any, form: str) -> None:
    """Write plain data as JSON or YAML."""
    click.echo(_yaml(data) if form == "yaml" else json.dumps(data, indent=2, ensure_ascii=False))


def put_line(data: Mapping[str, Any]) -> None:
    """Write one object as one line of JSON."""
    click.echo(json.dumps(data, ensure_ascii=False))


def units_text(units: Mapping[str, float]) -> str:
    """Return units as ``cpu=4 api:search=1``."""
    return " ".join(f"{name}={count:g}" for name, count in units.items()) or "–"


def seconds_text(seconds: float | None) -> str:
    """Return a duration as ``12 ms`` or ``3.2 s``."""
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def rows(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    """Return a table without lines, its cells coloured by the words they hold."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    for line in lines:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in line))
    return table


def _table(actions: Sequence[ActionView], *, wide: bool) -> Table:
    columns = COLUMNS | WIDE if wide else COLUMNS
    lines = [[column(action) for column in columns.values()] for action in actions]
    return rows(list(columns), lines)


def _body(action: ActionView) -> dict[str, Any]:
    return dict(action.body) or {"id": action.id, "state": action.state}


def _yaml(data: Any) -> str:
    try:
        import yaml
    except ImportError:
        raise click.UsageError("-o yaml needs PyYAML (pip install pyyaml); or -o json") from None
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return text.rstrip()
