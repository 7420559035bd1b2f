"""`list`: actions, tasks, trajectories, GPUs, pools, services, fleets and other objects, as rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import click

from tangram_client._calls import API, list_page
from tangram_client._core import ApiCall
from tangram_client.cli.output import put_data, rows, show
from tangram_client.cli.shell import Shell, connected, pass_shell, say
from tangram_client.client import Client

#: Noun → columns of its table; a member of a member is named with a dot.
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "actions": ("id", "task", "trajectory", "state", "outcome", "node", "submitted_at"),
    "tasks": ("id", "project", "pool", "actions", "finished", "opened_at"),
    "trajectories": ("id", "project", "task", "state", "node", "actions", "finished", "opened_at"),
    "nodes": ("name", "pool", "state", "finishing", "isolation", "version", "joined_at"),
    "gpus": (
        "id",
        "pool",
        "chunk",
        "state",
        "busy_ratio",
        "used_bytes",
        "total_bytes",
        "measured_at",
    ),
    "pools": ("name", "policy", "paused", "sandbox"),
    "services": ("name", "spec.engine", "spec.quarantined"),
    "fleets": ("name", "engine", "policy", "gpus"),
    "resources": ("name", "limit_units"),
    "projects": ("name", "default_pool"),
}
#: Nouns with a state to select by, and nouns of a task.
_STATES: Final = ("trajectories", "nodes")
_OF_TASK: Final = ("trajectories",)
#: Nouns that the console's explorer lists.
_QUERIED: Final = ("actions", "tasks", "trajectories")


@click.command("list")
@click.argument("noun", type=click.Choice(sorted(COLUMNS)))
@click.option("--state", help="Only in this state (trajectories, nodes).")
@click.option("--task", help="Only of this task (trajectories).")
@click.option("--query", "-q", help="A filter of the explorer, as 'state:queued act:>5s'.")
@click.option(
    "--sort", metavar="ORDER", help="An order of the explorer, as -act: the slowest first."
)
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@connected
@pass_shell
def list_(
    shell: Shell, /, noun: str, state: str | None, task: str | None, query: str | None, sort: str | None, limit: int,
) -> None:  # fmt: skip
    """List actions, tasks, trajectories, nodes, GPUs, pools, services, fleets, resources or projects."""
    given = (
        ("--state", state, _STATES), ("--task", task, _OF_TASK), ("--query", query, _QUERIED), ("--sort", sort, _QUERIED),
    )  # fmt: skip
    for option, value, nouns in given:
        if value is not None and noun not in nouns:
            raise click.UsageError(f"{option} goes with {' and '.join(nouns)}")
    if sort is not None and (state is not None or task is not None):
        raise click.UsageError("with --sort, give conditions by -q, as in -q 'state:open task:swe'")
    with shell.client() as client:
        if noun == "services":
            found: Sequence[Mapping[str, Any]] = _services(client)[:limit]
        else:
            page = client.list(noun, limit=limit, state=state, task=task, q=query, sort=sort)
            found = page.results
            if page.next:
                say(f"the first {len(found)}; there are more (--limit)")
    put_rows(found, COLUMNS[noun], shell.format)


def every_row(client: Client, noun: str) -> Iterator[Mapping[str, Any]]:
    """Yield all rows of a list, page by page."""
    cursor: str | None = ""
    while cursor is not None:
        page = client.send(list_page(noun, limit=100, cursor=cursor or None))
        yield from page.results
        cursor = _cursor(page.next)


def _cursor(address: str | None) -> str | None:
    """Return the cursor in the address of the next page; None without one."""
    query = parse_qs(urlsplit(address).query) if address else {}
    return query.get("cursor", [None])[0]


def _services(client: Client) -> list[Mapping[str, Any]]:
    """Return the GPU services of the configuration: name and spec."""
    documents = client.send(ApiCall("GET", f"{API}/config", lambda answer: answer.json()))
    return [
        {"name": each["metadata"]["name"], "spec": each["spec"]}
        for each in documents["documents"]
        if each["kind"] == "GpuService"
    ]


def put_rows(found: Sequence[Mapping[str, Any]], columns: Sequence[str], form: str) -> None:
    """Write objects as a table, as JSON or YAML, or by their names."""
    if form in {"json", "yaml"}:
        put_data([dict(row) for row in found], form)
    elif form == "name":
        for row in found:
            click.echo(row[columns[0]])
    else:
        headings = [name.rpartition(".")[2].upper() for name in columns]
        show(rows(headings, [[_text(row, name) for name in columns] for row in found]))


def _text(row: Mapping[str, Any], path: str) -> str:
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None or value == "":
        return "–"
    return value if isinstance(value, str) else json.dumps(value)
