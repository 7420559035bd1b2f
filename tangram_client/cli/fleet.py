"""`fleet`: look at fleets of language models, drain their workers, pin trajectories, and try an arrangement out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from tangram_client._fleet_calls import FleetInfo, FleetPlan
from tangram_client.cli.output import put_data, rows, seconds_text, show
from tangram_client.cli.shell import Shell, connected, pass_shell, say

_WORKERS: Final = (
    "WORKER", "STATE", "DEGREE", "RUNNING", "WAITING", "CACHES", "VERSION", "PRIORITIES", "MOVES", "WHY",
)  # fmt: skip
_TRAJECTORIES: Final = ("TRAJECTORY", "STATE", "WORKER", "STEPS", "SAMPLED", "PREDICTED")
_OWN: Final = ("ON GPUS", "STATE", "NODE", "GPUS", "ACTION", "WHY")
_MOVES: Final = ("MOVES", "FROM", "TO", "STATE", "TOKENS", "ENDS SOONER BY")
_PLACEMENTS: Final = ("TRAJECTORY", "WORKER", "PLANNED", "CONTEXT", "REST")
_limit = click.option("--limit", type=click.IntRange(0, 1000), help="Trajectories, longest first.")


@click.group()
def fleet() -> None:
    """Steer the workers of a language model, and the trajectories on them."""


@fleet.command()
@click.argument("name", metavar="FLEET")
@_limit
@connected
@pass_shell
def status(shell: Shell, /, name: str, limit: int | None) -> None:
    """Show a fleet as it is now: workers, lengths of trajectories, moves of caches."""
    with shell.client() as client:
        found = client.fleets.status(name, limit=limit)
    if shell.format in {"json", "yaml"}:
        put_data(dict(found.body), shell.format)
    elif shell.format == "name":
        for each in found.workers:
            click.echo(each["name"])
    else:
        _show_status(found)


@fleet.command()
@click.argument("name", metavar="FLEET")
@click.option("--limit", type=click.IntRange(1, 1000), help="Trajectories that are shown.")
@connected
@pass_shell
def plan(shell: Shell, /, name: str, limit: int | None) -> None:
    """Show which trajectories an arrangement of now would place elsewhere. It changes nothing."""
    with shell.client() as client:
        found = client.fleets.plan(name, limit=limit)
    if shell.format in {"json", "yaml"}:
        put_data(dict(found.body), shell.format)
    elif shell.format == "name":
        for each in found.placements:
            click.echo(_name(each))
    else:
        _show_plan(found)


@fleet.command()
@click.argument("name", metavar="FLEET")
@click.argument("worker")
@connected
@pass_shell
def drain(shell: Shell, /, name: str, worker: str) -> None:
    """Let a worker get no further generation; what runs there continues."""
    with shell.client() as client:
        client.fleets.drain(name, worker)


@fleet.command()
@click.argument("name", metavar="FLEET")
@click.argument("worker")
@connected
@pass_shell
def undrain(shell: Shell, /, name: str, worker: str) -> None:
    """Let a drained worker get generations again."""
    with shell.client() as client:
        client.fleets.undrain(name, worker)


@fleet.command()
@click.argument("name", metavar="FLEET")
@click.argument("trajectory")
@click.argument("worker")
@connected
@pass_shell
def pin(shell: Shell, /, name: str, trajectory: str, worker: str) -> None:
    """Bind a trajectory to a worker from its next generation on. It must have sent one."""
    if not worker:
        raise click.UsageError("name a WORKER; `tangram fleet unpin` ends a pin")
    with shell.client() as client:
        client.fleets.pin(name, trajectory, worker)


@fleet.command()
@click.argument("name", metavar="FLEET")
@click.argument("trajectory")
@connected
@pass_shell
def unpin(shell: Shell, /, name: str, trajectory: str) -> None:
    """Let the policy of the fleet place a trajectory again."""
    with shell.client() as client:
        client.fleets.unpin(name, trajectory)


def _show_status(found: FleetInfo) -> None:
    without = sum(found.unrouted.values())
    say(
        f"{found.name}: {found.engine}, policy {found.policy}, {found.live} trajectories not finished"
    )
    if without:
        codes = ", ".join(sorted(found.unrouted))
        say(f"{without} generations wait without a worker ({codes})")
    show(rows(_WORKERS, [_worker(each) for each in found.workers]))
    if own := found.body.get("own"):
        click.echo()
        show(rows(_OWN, [_own(each) for each in own]))
    if found.trajectories:
        click.echo()
        show(rows(_TRAJECTORIES, [_trajectory(each) for each in found.trajectories]))
    if found.moves:
        click.echo()
        show(rows(_MOVES, [_move(each) for each in found.moves]))


def _show_plan(found: FleetPlan) -> None:
    say(found.reason)
    if found.gain_seconds is None:
        say("Nothing would move.")
        return
    sooner = "sooner" if found.gain_seconds >= 0 else "later"
    say(
        f"{found.changes} of {found.trajectories} trajectories would move; what is left would end after"
        f" {seconds_text(found.planned_seconds)} instead of {seconds_text(found.kept_seconds)}:"
        f" {seconds_text(abs(found.gain_seconds))} {sooner}. Nothing was changed."
    )
    if found.placements:
        show(rows(_PLACEMENTS, [_placement(each) for each in found.placements]))


def _worker(found: Mapping[str, Any]) -> tuple[str, ...]:
    states = [state for state in ("unhealthy", "drained") if found[state]]
    return (
        found["name"], ", ".join(states) or "usable", str(found["degree"]),
        f"{found['running']} of {found['slots']}", str(found["waiting"]), str(found["trajectories"]),
        str(found["weights_version"]), found["priorities"] or "–", found["moves"] or "–",
        found["unhealthy"],
    )  # fmt: skip


def _own(found: Mapping[str, Any]) -> tuple[str, ...]:
    gpus = ",".join(map(str, found["gpus"])) or f"{found['degree']} wanted"
    return (
        found["name"],
        found["state"],
        found["node"] or "–",
        gpus,
        found["action"] or "–",
        found["detail"],
    )


def _trajectory(found: Mapping[str, Any]) -> tuple[str, ...]:
    state = f"{found['state']}, pinned" if found["pinned"] else found["state"]
    return (
        _name(found), state, found["worker"] or "–", str(found["steps"]), str(found["sampled_tokens"]),
        _tokens(found["predicted_tokens"]),
    )  # fmt: skip


def _move(found: Mapping[str, Any]) -> tuple[str, ...]:
    tokens, gain = str(found["context_tokens"]), seconds_text(found["gain_seconds"])
    return _name(found), found["source"], found["target"], found["state"], tokens, gain


def _placement(found: Mapping[str, Any]) -> tuple[str, ...]:
    context, rest = str(found["context_tokens"]), _tokens(found["tokens_left"])
    return _name(found), found["worker"] or "–", found["planned"], context, rest


def _name(found: Mapping[str, Any]) -> str:
    return f"{found['project']}/{found['trajectory']}"


def _tokens(count: float | None) -> str:
    return "–" if count is None else f"{count:.0f}"
