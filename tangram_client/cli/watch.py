"""`watch`: what happens, while it happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

import click

from tangram_client.cli.output import put_line, seconds_text, units_text
from tangram_client.cli.shell import Shell, connected, pass_shell, say
from tangram_client.client import Client
from tangram_client.models import ActionView

#: One look at a single action lasts so long; a change ends it only when the action is over.
LOOK_SECONDS = 2.0


@click.command()
@click.argument("action_id", required=False, metavar="[ID]")
@click.option("--after", default="", metavar="CURSOR", help="Go on after this event.")
@click.option("--limit", type=click.IntRange(1), help="Stop after so many lines.")
@connected
@pass_shell
def watch(shell: Shell, /, action_id: str | None, after: str, limit: int | None) -> None:
    """Follow one action to its end, or everything that happens. One line each; -o json for lines
    of JSON. Ctrl-C ends it."""
    with shell.client() as client, suppress(KeyboardInterrupt):
        if action_id:
            changes = ((view.state, "", view) for view in _changes(client, action_id))
        else:
            say("watching; Ctrl-C ends it")
            changes = ((e.kind, e.cursor, e.action) for e in client.events(after))
        for kind, cursor, action in islice(changes, limit):
            if shell.format == "json":
                put_line({"event": kind, "cursor": cursor, "action": dict(action.body)})
            elif shell.format == "name":
                click.echo(action.id)
            else:
                click.echo(_line(kind, action))


def _changes(client: Client, action_id: str) -> Iterator[ActionView]:
    view = client.get(action_id)
    yield view
    while not view.finished:
        before, view = view, client.get(action_id, wait_seconds=LOOK_SECONDS)
        if (view.state, view.waiting) != (before.state, before.waiting):
            yield view


def _line(kind: str, action: ActionView) -> str:
    parts = [f"{kind:<9}", action.id, action.task]
    if action.finished:
        act = seconds_text(action.timing.act_seconds) if action.timing else "–"
        parts += [str(action.outcome), f"ACT {act}"]
    elif action.waiting is not None:
        parts.append(action.waiting.reason)
    else:
        parts += [units_text(action.units) if action.units else "", action.node or ""]
    return "  ".join(part for part in parts if part)
