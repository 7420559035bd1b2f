"""`rollout` and `backend`: submit rollouts and follow them, and manage the servers of their language models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TextIO

import click

from tangram_client._rollout_calls import ChangeResult, RolloutInfo
from tangram_client.cli.output import put_data, put_line, rows, show
from tangram_client.cli.shell import Shell, complain, connected, exit_code, pass_shell, say
from tangram_client.errors import refusal

_HEADINGS: Final = (
    "ID",
    "STATE",
    "OUTCOME",
    "REWARD",
    "STAGE",
    "TURNS",
    "TASK",
    "INSTANCE",
    "WORKER",
)
_BACKENDS: Final = ("POOL", "NAME", "ADDRESS", "SEATS", "VERSION", "STATE")
_pool = click.option("--pool", default="default", show_default=True, help="Pool (llm:POOL).")


@click.group()
def rollout() -> None:
    """Submit rollouts of agents, and follow them."""


@rollout.command()
@click.argument("handler", required=False)
@click.option("--task", default="cli", show_default=True, help="Workload it belongs to.")
@click.option(
    "--instance", "names", multiple=True, metavar="ID", help="May be given several times."
)
@click.option("--samples", type=click.IntRange(1), default=1, show_default=True)
@click.option("--llm", metavar="POOL", help="Pool of backends whose seat RUN takes, or fleet:NAME.")
@click.option("--option", "options", multiple=True, metavar="NAME=JSON", help="Of the handler.")
@click.option("--file", "file", type=click.File(), help="Body of POST /rollouts. - reads stdin.")
@click.option("--wait", is_flag=True, help="Wait for the ends; exit code 1 unless all completed.")
@connected
@pass_shell
def submit(
    shell: Shell,
    /,
    handler: str | None,
    names: Sequence[str],
    file: TextIO | None,
    wait: bool,
    **fields: Any,
) -> None:
    """Run HANDLER on instances, as in: tangram rollout submit noop --instance a --samples 4 --wait"""
    if (file is None) == (handler is None):
        raise click.UsageError("give a HANDLER or a --file")
    if file is not None:
        payload = _read(file)
    else:
        payload = {
            "task": fields["task"],
            "handler": handler,
            "instances": [{"id": name} for name in names or ("0",)],
            "samples": fields["samples"],
            "llm": fields["llm"],
            "options": dict(_option(text) for text in fields["options"]),
        }
    with shell.client() as client:
        made = client.rollouts.submit(**payload)
        if not wait:
            click.echo("\n".join(made))
            return
        say(f"submitted {len(made)}: waiting (Ctrl-C leaves them running)")
        found = [client.rollouts.wait(each, tokens=False) for each in made]
    _put(found, shell.format)
    if not all(each.outcome == "completed" for each in found):
        raise SystemExit(1)


@rollout.command()
@click.argument("rollout_id", required=False, metavar="[ID]")
@click.option("--task", help="Only of this task, without ID.")
@click.option("--group", help="Only of this group, without ID.")
@click.option("--tokens", is_flag=True, help="With its tokens (-o json).")
@connected
@pass_shell
def get(
    shell: Shell, /, rollout_id: str | None, task: str | None, group: str | None, tokens: bool
) -> None:
    """Show one rollout, or all that are not finished."""
    with shell.client() as client:
        if rollout_id is None:
            _put(client.rollouts.list(task=task, group=group), shell.format)
        else:
            found = client.rollouts.get(rollout_id, tokens=tokens)
            _put([found], shell.format, single=True)


@rollout.command()
@click.argument("rollout_ids", nargs=-1, required=True, metavar="ID…")
@click.option("--reason", help="Shown with its end.")
@connected
@pass_shell
def cancel(shell: Shell, /, rollout_ids: Sequence[str], reason: str | None) -> None:
    """Cancel rollouts; repeats change nothing."""
    with shell.client() as client:
        _check(client.rollouts.cancel_many(rollout_ids, reason=reason))


@rollout.command()
@click.argument("rollout_ids", nargs=-1, required=True, metavar="ID…")
@click.option("--reason", help="Shown while it is parked.")
@connected
@pass_shell
def park(shell: Shell, /, rollout_ids: Sequence[str], reason: str | None) -> None:
    """Keep rollouts without a lease, from their last turn on; repeats change nothing."""
    with shell.client() as client:
        _check(client.rollouts.park_many(rollout_ids, reason=reason))


@rollout.command("resume")
@click.argument("rollout_ids", nargs=-1, required=True, metavar="ID…")
@connected
@pass_shell
def resume_parked(shell: Shell, /, rollout_ids: Sequence[str]) -> None:
    """Continue rollouts that are parked."""
    with shell.client() as client:
        _check(client.rollouts.resume_many(rollout_ids))


def _check(changes: Sequence[ChangeResult]) -> None:
    """End with the exit code of an unknown object where a rollout is refused; the others are changed."""
    refused = [refusal(each.problem) for each in changes if each.problem is not None]
    for error in refused:
        complain(error)
    if refused:
        raise SystemExit(exit_code(refused[0]))


@rollout.command()
@click.argument("rollout_id", required=False, metavar="[ID]")
@click.option("--after", default="now", metavar="CURSOR", help="Go on after this cursor.")
@connected
@pass_shell
def watch(shell: Shell, /, rollout_id: str | None, after: str) -> None:
    """Follow one rollout to its end, or all ends. One line each; -o json for lines of JSON."""
    with shell.client() as client, suppress(KeyboardInterrupt):
        if rollout_id is not None:
            _follow(shell, rollout_id)
            return
        say("watching ends of rollouts; Ctrl-C ends it")
        while True:
            page = client.rollouts.completions(after, wait_seconds=30.0, tokens=False)
            for each in page.items:
                _put_line(each, shell.format)
            after = page.next


def _follow(shell: Shell, rollout_id: str) -> None:
    shown: tuple[object, ...] | None = None
    with shell.client() as client:
        while True:
            found = client.rollouts.get(rollout_id, wait_seconds=2.0, tokens=False)
            now = (found.state, found.stage, found.turns, found.attempt)
            if now != shown:
                shown = now
                _put_line(found, shell.format)
            if found.finished:
                return


@click.group()
def backend() -> None:
    """Manage the servers of language models that rollouts sample from."""


@backend.command("list")
@connected
@pass_shell
def listed(shell: Shell, /) -> None:
    """List the backends of all pools."""
    with shell.client() as client:
        pools = client.backends.list()
    found = [each for pool in pools for each in pool["backends"]]
    if shell.format in {"json", "yaml"}:
        put_data([dict(pool) for pool in pools], shell.format)
    elif shell.format == "name":
        for each in found:
            click.echo(f"{each['pool']}/{each['name']}")
    else:
        show(rows(_BACKENDS, [_backend_line(each) for each in found]))


@backend.command("add")
@click.argument("address")
@_pool
@click.option("--name", help="[host and port of ADDRESS]")
@click.option("--seats", type=click.IntRange(1), help="Rollouts that may use it at once.")
@click.option("--dialect", help="prorl, vllm, sglang or openai [probed].")
@click.option("--model", help="Name of the model in its requests [the first that it lists].")
@connected
@pass_shell
def add(shell: Shell, /, address: str, pool: str, **fields: Any) -> None:
    """Add the server at ADDRESS, or change the one of its name; print the name."""
    with shell.client() as client:
        click.echo(client.backends.add(pool, address, **fields))


@backend.command("rm")
@click.argument("name")
@_pool
@connected
@pass_shell
def remove(shell: Shell, /, name: str, pool: str) -> None:
    """Remove a backend; its rollouts sample elsewhere from their next turn on."""
    with shell.client() as client:
        client.backends.remove(pool, name)


@backend.command()
@click.argument("name")
@_pool
@connected
@pass_shell
def drain(shell: Shell, /, name: str, pool: str) -> None:
    """Let a backend take no new rollouts."""
    with shell.client() as client:
        client.backends.drain(pool, name)


@backend.command()
@click.argument("name")
@_pool
@connected
@pass_shell
def resume(shell: Shell, /, name: str, pool: str) -> None:
    """Let a drained backend take rollouts again."""
    with shell.client() as client:
        client.backends.resume(pool, name)


@backend.command()
@_pool
@connected
@pass_shell
def clear(shell: Shell, /, pool: str) -> None:
    """Remove all backends; those added next serve the next weights version."""
    with shell.client() as client:
        client.backends.clear(pool)


def _read(file: TextIO) -> dict[str, Any]:
    try:
        payload = json.load(file)
    except ValueError as error:
        raise click.BadParameter(f"no JSON: {error}", param_hint="--file") from None
    if not isinstance(payload, dict) or not {"task", "handler", "instances"} <= payload.keys():
        raise click.BadParameter("give task, handler and instances", param_hint="--file")
    return payload


def _option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _put(found: Sequence[RolloutInfo], form: str, *, single: bool = False) -> None:
    if form in {"json", "yaml"}:
        bodies = [dict(each.body) for each in found]
        put_data(bodies[0] if single else bodies, form)
    elif form == "name":
        for each in found:
            click.echo(each.id)
    else:
        show(rows(_HEADINGS, [_line(each) for each in found]))


def _put_line(found: RolloutInfo, form: str) -> None:
    if form == "json":
        put_line(dict(found.body))
    elif form == "name":
        click.echo(found.id)
    else:
        click.echo(
            "  ".join(part for part in (*_line(found), found.reason) if part not in {"", "–"})
        )


def _line(found: RolloutInfo) -> tuple[str, ...]:
    reward = "–" if found.reward is None else f"{found.reward:g}"
    return (
        found.id, found.state, found.outcome or "–", reward, found.stage or "–", str(found.turns),
        found.task, found.instance or "–", found.worker or "–",
    )  # fmt: skip


def _backend_line(found: Mapping[str, Any]) -> tuple[str, ...]:
    state = "drained" if found.get("drained") else found.get("unhealthy") or "usable"
    seats = f"{found.get('taken', 0)} of {found['seats']}"
    version = str(found.get("weights_version", 0))
    return found["pool"], found["name"], found["address"], seats, version, state
