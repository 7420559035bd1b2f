"""`status`: is everything in order, and if not, what is wrong, since when, and what helps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from tangram_client._calls import problems
from tangram_client.cli.output import put_data, rows, show
from tangram_client.cli.shell import Shell, connected, pass_shell, say

_COLUMNS: Final = ("SEVERITY", "STATE", "PROBLEM", "SINCE", "ACTIONS", "OWNER", "DETAIL")


@click.command()
@click.option("--check", is_flag=True, help="Exit with 1 while a problem is not cleared.")
@connected
@pass_shell
def status(shell: Shell, /, *, check: bool) -> None:
    """Show the health of the system and its problems, worst first, as the Overview does."""
    with shell.client() as client:
        found = client.send(problems())
    there = [each for each in found["problems"] if each["state"] != "cleared"]
    if shell.format in {"json", "yaml"}:
        put_data(found, shell.format)
    elif shell.format == "name":
        for each in there:
            click.echo(each["id"])
    else:
        _show(found, there)
    if check and (there or found["health"] == "unknown"):
        raise SystemExit(1)


def _show(found: Mapping[str, Any], there: list[dict[str, Any]]) -> None:
    say(" ".join(filter(None, (found["headline"], found["detail"]))))
    if there:
        show(rows(_COLUMNS, [_row(each) for each in there]))


def _row(problem: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(problem["severity"]),
        str(problem["state"]),
        str(problem["title"]),
        str(problem["since"])[:19].replace("T", " "),
        str(problem["actions"] or "–"),
        str(problem["owner"]),
        str(problem["detail"]),
    )
