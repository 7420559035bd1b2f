"""`view`: list, save, rename, share and delete saved views of the explorer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from tangram_client.cli.output import put_data, rows, show
from tangram_client.cli.shell import Shell, connected, pass_shell, say

_HEADINGS: Final = ("ID", "NAME", "LIST", "PROJECT", "FILTER", "ORDER")
_LISTS: Final = click.Choice(("actions", "trajectories", "tasks", "rollouts"))


@click.group()
def view() -> None:
    """Keep filters of the explorer under a name; VIEW is an id, or a name that is unique."""


@view.command("list")
@click.option("--list", "list_name", type=_LISTS, help="Views of this list alone.")
@connected
@pass_shell
def listed(shell: Shell, /, list_name: str | None) -> None:
    """List the views of projects and your own ones."""
    with shell.client() as client:
        found = client.views.list(list_name)
    if shell.format in {"json", "yaml"}:
        put_data([dict(each) for each in found], shell.format)
    elif shell.format == "name":
        for each in found:
            click.echo(each["id"])
    else:
        show(rows(_HEADINGS, [_line(each) for each in found]))


@view.command("save")
@click.argument("name")
@click.argument("query")
@click.option("--list", "list_name", type=_LISTS, default="actions", show_default=True)
@click.option("--sort", metavar="ORDER", help="An order of the list, as -act: the slowest first.")
@connected
@pass_shell
def save(shell: Shell, /, name: str, query: str, list_name: str, sort: str | None) -> None:
    """Save the filter QUERY as NAME, for yourself or for all members of --project."""
    with shell.client() as client:
        _put(shell, client.views.save(name, query, list_name=list_name, sort=sort), "is saved")


@view.command("rename")
@click.argument("view_name", metavar="VIEW")
@click.argument("name")
@connected
@pass_shell
def rename(shell: Shell, /, view_name: str, name: str) -> None:
    """Give VIEW another NAME."""
    with shell.client() as client:
        _put(shell, client.views.rename(view_name, name), "is its name now")


@view.command("share")
@click.argument("view_name", metavar="VIEW")
@connected
@pass_shell
def share(shell: Shell, /, view_name: str) -> None:
    """Show VIEW to all members of --project; without --project, to yourself alone."""
    with shell.client() as client:
        found = client.views.share(view_name, shell.project)
    _put(
        shell, found, f"is shared with {found['project']}" if found["project"] else "is yours alone"
    )


@view.command("delete")
@click.argument("view_name", metavar="VIEW")
@connected
@pass_shell
def delete(shell: Shell, /, view_name: str) -> None:
    """Delete VIEW."""
    with shell.client() as client:
        client.views.delete(view_name)
    say(f"{view_name} is deleted")


def _put(shell: Shell, found: Mapping[str, Any], what: str) -> None:
    if shell.format in {"json", "yaml"}:
        put_data(dict(found), shell.format)
    else:
        say(f"{found['name']} {what}")
        click.echo(found["id"])


def _line(each: Mapping[str, Any]) -> list[str]:
    return [
        each["id"],
        each["name"],
        each["list"],
        each["project"] or "yours alone",
        each["q"] or "all",
        each["sort"] or "–",
    ]
