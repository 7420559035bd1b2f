"""`token`: list, create, renew and revoke tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from tangram_client._calls import create_token, renew_token, revoke_token
from tangram_client.cli.listing import every_row
from tangram_client.cli.output import put_data, rows, show
from tangram_client.cli.shell import Shell, connected, pass_shell, say

_HEADINGS = ("ID", "NAME", "PROJECT", "SCOPES", "EXPIRES", "LAST USED", "FROM", "NETWORKS")
_days = click.option("--days", type=click.IntRange(1), help="Days until it expires [90].")
#: A token that expires within this time is shown with the days left.
_SOON = timedelta(days=14)


@click.group()
def token() -> None:
    """Manage the tokens that your own token may see."""


def list_tokens(
    shell: Shell,
    noun: str,
    headings: Sequence[str],
    line: Callable[[Mapping[str, Any]], Sequence[str]],
) -> None:
    """Print all tokens of a kind in the format that was asked for; a name is the id of a token."""
    with shell.client() as client:
        found = list(every_row(client, noun))
    if shell.format in {"json", "yaml"}:
        put_data(found, shell.format)
    elif shell.format == "name":
        for each in found:
            click.echo(each["id"])
    else:
        show(rows(headings, [line(each) for each in found]))


@token.command("list")
@connected
@pass_shell
def listed(shell: Shell, /) -> None:
    """List tokens, newest first, with their end and their last use."""
    list_tokens(shell, "tokens", _HEADINGS, _line)


@token.command("create")
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, required=True, help="May be given several times.")
@_days
@click.option("--never-expires", is_flag=True, help="For services of the whole installation.")
@click.option("--network", "networks", multiple=True, help="Allow this network only (CIDR).")
@click.option("--form", metavar="PROTOCOL", help="Print it as these clients accept it: e2b.")
@connected
@pass_shell
def create(
    shell: Shell, /, name: str, scopes: tuple[str, ...], days: int | None, never_expires: bool,
    networks: tuple[str, ...], form: str | None,
) -> None:  # fmt: skip
    """Create a token called NAME and print it, once. It expires after 90 days by default."""
    if days is not None and never_expires:
        raise click.UsageError("give --days or --never-expires")
    body: dict[str, Any] = {"name": name, "scopes": list(scopes)}
    if networks:
        body["networks"] = list(networks)
    if shell.project is not None:
        body["project"] = shell.project
    if never_expires:
        body["expires_at"] = None
    if days is not None:
        body["expires_at"] = (datetime.now(UTC) + timedelta(days=days)).isoformat()
    with shell.client() as client:
        made = client.send(create_token(body))
    if shell.format in {"json", "yaml"}:
        put_data(made, shell.format)
        return
    say(f"{made['id']} expires {made['expires_at'] or 'never'}; the token is shown only now")
    click.echo(_in_form(made, form))


@token.command("renew")
@click.argument("token_id", metavar="ID")
@_days
@connected
@pass_shell
def renew(shell: Shell, /, token_id: str, days: int | None) -> None:
    """Let the token ID expire 90 days from now, or after --days."""
    with shell.client() as client:
        renewed = client.send(renew_token(token_id, days=days))
    say(f"{renewed['id']} ({renewed['name']}) expires {renewed['expires_at']}")


@token.command("revoke")
@click.argument("token_id", metavar="ID")
@connected
@pass_shell
def revoke(shell: Shell, /, token_id: str) -> None:
    """Revoke the token ID: it is refused within seconds."""
    with shell.client() as client:
        client.send(revoke_token(token_id))
    say(f"{token_id} is revoked")


def _in_form(made: Mapping[str, Any], form: str | None) -> str:
    """Return a new token in the form of a protocol; None: as it is."""
    forms = made.get("forms") or {}
    if form is not None and form not in forms:
        known = ", ".join(forms) or "none"
        say(f"the server has no form {form!r} of a token, it has {known}; this is the token itself")
        return str(made["token"])
    return str(made["token"] if form is None else forms[form])


def _line(each: Mapping[str, Any]) -> list[str]:
    return [
        each["id"],
        each["name"],
        each["project"] or "every",
        ",".join(each["scopes"]),
        _end_of(each),
        each["last_used_at"] or "never",
        each.get("last_used_from") or "–",
        ",".join(each.get("networks") or ()) or "every",
    ]


def _end_of(each: Mapping[str, Any]) -> str:
    """Return when a token ends: the date, and the days left when they are few."""
    if each["revoked_at"]:
        return "revoked"
    if not each["expires_at"]:
        return "never"
    left = datetime.fromisoformat(each["expires_at"]) - datetime.now(UTC)
    if left <= timedelta(0):
        return "expired"
    date = str(each["expires_at"])[:10]
    return f"{date} (in {left.days} days)" if left < _SOON else date
