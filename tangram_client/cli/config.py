"""`diff`, `apply`, `export`: the configuration as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

import click

from tangram_client._calls import apply_config, diff_config, export_config
from tangram_client.cli.output import put_data
from tangram_client.cli.shell import Shell, complain, connected, pass_shell, say
from tangram_client.errors import TangramClientError

_file = click.argument("file", type=click.File())
_prune = click.option("--prune", is_flag=True, help="Delete what the file does not name.")
_SIGNS = {"create": "+", "update": "~", "delete": "-"}
_COLOURS = {"create": "green", "update": "yellow", "delete": "red"}


@click.command()
@_file
@_prune
@connected
@pass_shell
def diff(shell: Shell, /, file: TextIO, prune: bool) -> None:
    """Show what applying FILE (YAML; - reads stdin) would change.

    Exit codes as kubectl's: 0 nothing, 1 something, above 1 an error.
    """
    try:
        with shell.client() as client:
            answer = client.send(diff_config(_content(file), prune=prune))
    except TangramClientError as error:
        complain(error)
        raise SystemExit(2) from None
    _show(shell, answer)
    if answer["changes"]:
        raise SystemExit(1)


@click.command()
@_file
@_prune
@click.option("--if-revision", type=int, metavar="N", help="Only if that is the one in force.")
@connected
@pass_shell
def apply(shell: Shell, /, file: TextIO, prune: bool, if_revision: int | None) -> None:
    """Put FILE (YAML; - reads stdin) in force: all of it or nothing, as one revision."""
    with shell.client() as client:
        call = apply_config(_content(file), prune=prune, revision=if_revision)
        answer = client.send(call)
    _show(shell, answer)
    done = "changed" if answer["changes"] else "nothing to change"
    say(f"{done}; revision {answer['revision']} is in force")


@click.command()
@connected
@pass_shell
def export(shell: Shell, /) -> None:
    """Print the configuration in force as YAML that `tangram apply` takes."""
    with shell.client() as client:
        click.echo(client.send(export_config()), nl=False)


def _content(file: TextIO) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{file.name} is not UTF-8: {error}", param_hint="FILE") from None


def _show(shell: Shell, answer: Mapping[str, Any]) -> None:
    if shell.format in {"json", "yaml"}:
        put_data(answer, shell.format)
        return
    for change in answer["changes"]:
        verb = change["verb"]
        click.secho(f"{_SIGNS[verb]} {change['kind']} {change['name']}", fg=_COLOURS[verb])
        if shell.format != "name":
            for line in _members(change["before"] or {}, change["after"] or {}):
                click.echo(f"    {line}")


def _members(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is different, a member a line."""
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if name not in before:
            yield f"{name}: {_text(new)}"
        elif name not in after:
            yield f"{name}: {_text(old)} → default"
        else:
            yield f"{name}: {_text(old)} → {_text(new)}"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
