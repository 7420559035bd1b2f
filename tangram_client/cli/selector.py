"""`selector`: look at selectors of parallelism, ask for a degree, and pin one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from tangram_client._selector_calls import degree_of, degree_text
from tangram_client.cli.output import put_data, rows, seconds_text, show
from tangram_client.cli.shell import Shell, connected, pass_shell, say

_LIST: Final = ("SELECTOR", "STEERS", "STAGE", "DEGREE", "CONTEXT", "LONGEST", "RESPONSES", "PIN")
_SWITCHES: Final = ("AT", "STAGE", "FROM", "TO", "GAIN", "COST", "WHY")
#: Switches that `show` prints.
_LATEST: Final = 10


@click.group()
def selector() -> None:
    """Choose degrees of parallelism by what was measured and what is observed."""


@selector.command("list")
@connected
@pass_shell
def list_(shell: Shell, /) -> None:
    """List all selectors with the degree of each stage."""
    with shell.client() as client:
        found = client.selectors.list()
    if shell.format in {"json", "yaml"}:
        put_data({"selectors": list(found)}, shell.format)
    elif shell.format == "name":
        for each in found:
            click.echo(each["name"])
    else:
        show(rows(_LIST, [_row(each, stage) for each in found for stage in each["stages"]]))


@selector.command("show")
@click.argument("name", metavar="SELECTOR")
@connected
@pass_shell
def show_(shell: Shell, /, name: str) -> None:
    """Show a selector: what is in force and why, its profile, its latest switches."""
    with shell.client() as client:
        found = client.selectors.get(name)
    if shell.format in {"json", "yaml"}:
        put_data(found, shell.format)
        return
    if shell.format == "name":
        click.echo(found["name"])
        return
    show(rows(_LIST, [_row(found, stage) for stage in found["stages"]]))
    for stage in found["stages"]:
        say(f"{stage['stage']}: {stage['why']}")
    say(_profile_text(found["profile"]))
    if found["switches"]:
        click.echo()
        show(rows(_SWITCHES, [_switch(each) for each in found["switches"][: -_LATEST - 1 : -1]]))


@selector.command()
@click.argument("name", metavar="SELECTOR")
@click.option("--context", type=click.FloatRange(1), required=True, help="Mean tokens.")
@click.option("--responses", type=click.IntRange(1), default=1, help="Responses at once. [1]")
@click.option("--longest", type=click.FloatRange(0), help="Longest context that is known of.")
@click.option(
    "--stage", type=click.Choice(["rollout", "experience", "training"]), default="rollout"
)
@click.option("--record", is_flag=True, help="The stage begins now: the degree comes into force.")
@connected
@pass_shell
def decision(
    shell: Shell,
    /,
    name: str,
    context: float,
    responses: int,
    longest: float | None,
    stage: str,
    record: bool,
) -> None:
    """Ask for the degree at a load. Changes nothing without --record."""
    with shell.client() as client:
        found = client.selectors.decision(
            name, context=context, responses=responses, longest=longest, stage=stage,
            dry_run=not record,
        )  # fmt: skip
    if shell.format in {"json", "yaml"}:
        put_data(dict(found.body), shell.format)
        return
    click.echo(found.degree)
    say(found.why)


@selector.command()
@click.argument("name", metavar="SELECTOR")
@click.argument("degree")
@click.option("--force", is_flag=True, help="Although it would run out of memory.")
@connected
@pass_shell
def pin(shell: Shell, /, name: str, degree: str, force: bool) -> None:
    """Use DEGREE for all stages, as in: tangram selector pin policy tp8"""
    try:
        wanted = degree_of(degree)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    with shell.client() as client:
        client.selectors.pin(name, wanted, force=force)


@selector.command()
@click.argument("name", metavar="SELECTOR")
@connected
@pass_shell
def unpin(shell: Shell, /, name: str) -> None:
    """Select the degree by the load again."""
    with shell.client() as client:
        client.selectors.unpin(name)


def _row(found: Mapping[str, Any], stage: Mapping[str, Any]) -> tuple[str, ...]:
    load = stage["load"] or {}
    pin = degree_text(found["pin"]) + (", forced" if found["forced"] else "")
    return (
        found["name"], found["target"] or "a trainer", stage["stage"],
        degree_text(stage["parallelism"]), _tokens(load.get("context")), _tokens(stage["longest"]),
        str(load.get("responses", "–")), pin,
    )  # fmt: skip


def _switch(found: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        found["at"], found["stage"], degree_text(found["former"]), degree_text(found["parallelism"]),
        f"{found['gain']:+.1%}", seconds_text(found["switch_cost_seconds"]), found["why"],
    )  # fmt: skip


def _profile_text(profile: Mapping[str, Any] | None) -> str:
    if profile is None:
        return "It has no profile: nothing is chosen until one is measured."
    identity = ", ".join(profile["identity"][each] for each in ("hardware", "model", "engine"))
    return (
        f"Profile of {identity}: revision {profile['revision']}, {profile['cells']} cells,"
        f" {profile['out_of_memory']} of them out of memory"
        + (f" ({profile['source']})" if profile["source"] else "")
    )


def _tokens(count: float | None) -> str:
    return f"{count:,.0f}" if count else "–"
