"""`batch`: batches of finished rollouts for the ranks of a trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from tangram_client.cli.output import put_data, rows, show
from tangram_client.cli.shell import Shell, connected, pass_shell, say

_BATCHES: Final = ("ID", "STATE", "RANKS", "ROLLOUTS", "ROWS", "TOKENS", "MIB", "PULLED", "EXPIRES")
_OWNERS: Final = ("RANK", "ROWS", "TOKENS", "MIB")
_ROWS: Final = (
    "ROW",
    "ROLLOUT",
    "SEGMENT",
    "PROMPT",
    "RESPONSE",
    "REWARD",
    "VERSIONS",
    "RANKS",
    "WORKER",
)
_MIB: Final = 1024 * 1024


@click.group()
def batch() -> None:
    """Make batches of finished rollouts, whose rows the ranks of a trainer pull."""


@batch.command()
@click.argument("rollout_ids", nargs=-1, metavar="[ID]…")
@click.option("--group", "groups", multiple=True, help="All rollouts of a group; several times.")
@click.option("--ranks", type=click.IntRange(1), help="Ranks; rows are balanced by tokens.")
@click.option("--layout", metavar="JSON", help="Instead of --ranks, as in POST /batches.")
@click.option("--leave-out", is_flag=True, help="Leave out rollouts that cannot train.")
@click.option("--expires", type=click.IntRange(1, 86_400), metavar="SECONDS", help="[3600]")
@connected
@pass_shell
def create(
    shell: Shell,
    /,
    rollout_ids: Sequence[str],
    groups: Sequence[str],
    ranks: int | None,
    layout: str | None,
    leave_out: bool,
    expires: int | None,
) -> None:
    """Make a batch of rollouts, as in: tangram batch create --group g-1 --ranks 4 -o json >manifest.json"""
    if bool(rollout_ids) == bool(groups):
        raise click.UsageError("give IDs of rollouts, or --group")
    if (ranks is None) == (layout is None):
        raise click.UsageError("give --ranks or --layout")
    with shell.client() as client:
        manifest = client.batches.create(
            layout={"ranks": ranks} if layout is None else _layout(layout),
            rollouts=list(rollout_ids) or None,
            group=list(groups) or None,
            leave_out=leave_out,
            expires_seconds=expires,
        )
    _put(manifest, shell.format)
    for each in manifest["left_out"]:
        say(f"left out: {each['detail']}")


@batch.command("show")
@click.argument("batch_id", metavar="ID")
@click.option("--rank", type=click.IntRange(0), help="With the token of this rank alone.")
@connected
@pass_shell
def show_batch(shell: Shell, /, batch_id: str, rank: int | None) -> None:
    """Show the manifest of a batch; -o json has the tokens of its ranks."""
    with shell.client() as client:
        _put(client.batches.get(batch_id, rank=rank), shell.format)


@batch.command("list")
@click.option("--limit", type=click.IntRange(1, 500))
@connected
@pass_shell
def listed(shell: Shell, /, limit: int | None) -> None:
    """List batches, newest first, with what ranks have pulled."""
    with shell.client() as client:
        found = client.batches.list(limit=limit)
    if shell.format in {"json", "yaml"}:
        put_data([dict(each) for each in found], shell.format)
    elif shell.format == "name":
        for each in found:
            click.echo(each["id"])
    else:
        show(rows(_BATCHES, [_line(each) for each in found]))


def _layout(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"no JSON: {error}", param_hint="--layout") from None
    if not isinstance(found, dict):
        raise click.BadParameter('give an object, as {"ranks": 4}', param_hint="--layout")
    return found


def _put(manifest: Mapping[str, Any], form: str) -> None:
    if form in {"json", "yaml"}:
        put_data(dict(manifest), form)
        return
    if form == "name":
        click.echo(manifest["id"])
        return
    say(f"{manifest['id']}: {manifest['tokens']} tokens, until {manifest['expires_at']}")
    owners = manifest["owners"]
    show(
        rows(
            _OWNERS,
            [
                (
                    str(each["rank"]),
                    str(len(each["rows"])),
                    str(each["tokens"]),
                    _mib(each["bytes"]),
                )
                for each in owners
            ],
        )
    )
    ranks: dict[int, list[str]] = {}
    for owner in owners:
        for row in owner["rows"]:
            ranks.setdefault(row, []).append(str(owner["rank"]))
    show(rows(_ROWS, [_row(each, ranks.get(each["row"], [])) for each in manifest["rows"]]))


def _row(row: Mapping[str, Any], ranks: Sequence[str]) -> tuple[str, ...]:
    first, last = row["weights_versions"]
    return (
        str(row["row"]), row["rollout"], str(row["segment"]), str(row["prompt_tokens"]),
        str(row["response_tokens"]), f"{row['reward']:g}",
        str(first) if first == last else f"{first}–{last}", " ".join(ranks), row["worker"] or "–",
    )  # fmt: skip


def _line(found: Mapping[str, Any]) -> tuple[str, ...]:
    pulled = sum(each["bytes"] for each in found["pulls"])
    return (
        found["id"], "expired" if found["expired"] else "live", str(found["ranks"]),
        str(found["rollouts"]), str(found["rows"]), str(found["tokens"]), _mib(found["bytes"]),
        _mib(pulled), found["expires_at"],
    )  # fmt: skip


def _mib(count: int) -> str:
    return f"{count / _MIB:.1f}"
