"""`submit`, `get`, `describe`, `cancel`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final, TextIO

import click

from tangram_client.cli.describe import described, output_lines
from tangram_client.cli.logs import put_output
from tangram_client.cli.output import put_actions, put_data
from tangram_client.cli.shell import (
    Number,
    Shell,
    complain,
    connected,
    exit_code,
    pass_shell,
    say,
)
from tangram_client.client import Client
from tangram_client.errors import StillRunning, TangramClientError, refusal
from tangram_client.models import ActionView
from tangram_client.payloads import exec_action


@click.command()
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--task", default="cli", show_default=True, help="Workload it belongs to.")
@click.option("--trajectory", metavar="NAME", help="Run in this trajectory's environment.")
@click.option("--cpu", default="1", show_default=True, help="Cores: 2, 0.1, or choices: 1,2,4.")
@click.option(
    "--duration", type=Number(0, min_open=True), metavar="SECONDS", help="Expected on one core."
)
@click.option(
    "--amdahl",
    type=Number(0, 1),
    metavar="FRACTION",
    help="Part that speeds up with cores; with --duration, policies compare counts.",
)
@click.option("--pool", metavar="NAME")
@click.option("--priority", type=int, help="Higher goes first.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="May be given several times.")
@click.option("--cwd", metavar="PATH", help="Folder, absolute or relative to the workspace.")
@click.option(
    "--reward",
    metavar="RULE",
    help="exit_code; pytest (only if tests ran); json:PATH in the last line; junit:FILE.",
)
@click.option(
    "--timeout", type=Number(0, min_open=True), metavar="SECONDS", help="Limit on execution alone."
)
@click.option(
    "--queue-timeout",
    type=Number(0, min_open=True),
    metavar="SECONDS",
    help="Limit on waiting alone.",
)
@click.option(
    "--file", "file", type=click.File(), help="Action as JSON; a list is a batch. - reads stdin."
)
@click.option("--wait", is_flag=True, help="Wait for the end; exit code 1 unless it went well.")
@click.option("--follow", "-f", is_flag=True, help="Print its output while it runs; with --wait.")
@connected
@pass_shell
def submit(
    shell: Shell,
    /,
    command: tuple[str, ...],
    file: TextIO | None,
    wait: bool,
    follow: bool,
    **options: Any,
) -> None:
    """Run COMMAND as an action, as in: tangram submit --cpu 1,2 --wait -- pytest -q

    A COMMAND of one word with spaces in it goes through sh. With --file the action is read whole.
    """
    if (file is None) == (not command):
        raise click.UsageError("give a COMMAND or a --file")
    if follow and (not wait or file is not None):
        raise click.UsageError(
            "--follow needs --wait and a COMMAND; tangram logs -f ID is for others"
        )
    payloads = [_payload(command, options)] if file is None else _read(file)
    with shell.client() as client:
        accepted = _accepted(client, payloads, single=file is None)
        if wait:
            say(f"submitted {len(accepted)}: waiting (Ctrl-C leaves them running)")
            if follow:
                put_output(client, accepted[0].id, shell.format)
            accepted = [client.wait(action.id) for action in accepted]
        put_actions(accepted, shell.format, single=len(payloads) == 1)
        if wait and not follow and len(accepted) == 1 and shell.format in {"table", "wide"}:
            _tell_end(accepted[0])
        good = len(accepted) == len(payloads)
    if not good or (wait and not all(action.succeeded for action in accepted)):
        raise SystemExit(1)


def _tell_end(action: ActionView) -> None:
    """Show what an action printed, and why it has no better end."""
    for name, text in (("stdout", action.stdout), ("stderr", action.stderr)):
        if text:
            click.echo("\n".join(output_lines(name, text)))
    if action.detail:
        say(f"{action.id}: {action.detail}")


def _accepted(client: Client, payloads: list[dict[str, Any]], *, single: bool) -> list[ActionView]:
    if single or len(payloads) == 1:
        return [client.submit(payloads[0])]
    accepted = []
    for index, item in enumerate(client.submit_batch(payloads).items):
        if item.id is not None:
            accepted.append(ActionView(item.id, item.state or "queued"))
        elif item.problem is not None:
            say(f"item {index}:")
            complain(refusal(item.problem))
    return accepted


def _payload(command: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
    lone = len(command) == 1 and " " in command[0]
    env = dict(_pair(text) for text in options["env"])
    action = exec_action(
        options["task"],
        command[0] if lone else command,
        cpu=_units(options["cpu"]),
        duration_seconds=options["duration"],
        elasticity=None if options["amdahl"] is None else {"amdahl": options["amdahl"]},
        cwd=options["cwd"],
        env=env or None,
        reward=options["reward"],
        trajectory=options["trajectory"],
        pool=options["pool"],
        priority=options["priority"],
        timeout_seconds=options["timeout"],
        queue_timeout_seconds=options["queue_timeout"],
    )
    return dict(action)


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--env")
    return name, value


def _units(text: str) -> float | list[float]:
    try:
        counts = [float(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r}: write 2, 0.1 or 1,2,4", param_hint="--cpu") from None
    if not all(map(math.isfinite, counts)):
        raise click.BadParameter(f"{text!r}: write 2, 0.1 or 1,2,4", param_hint="--cpu")
    whole = [int(count) if count.is_integer() else count for count in counts]
    return whole if len(whole) > 1 else whole[0]


def _read(file: TextIO) -> list[dict[str, Any]]:
    try:
        content = json.load(file)
    except ValueError as error:
        raise click.BadParameter(f"{file.name} is not JSON: {error}", param_hint="--file") from None
    payloads = content if isinstance(content, list) else [content]
    if not payloads or not all(isinstance(payload, dict) for payload in payloads):
        raise click.BadParameter("give an action, or a list of them", param_hint="--file")
    return payloads


#: What rows of a list have beside their own columns, by format.
_INCLUDED: Final = {"json": "result,waiting", "yaml": "result,waiting", "wide": "waiting"}


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--wait", type=float, metavar="SECONDS", help="Wait for the end at most so long.")
@click.option("--state", help="Only in this state (list).")
@click.option("--task", help="Only of this task (list).")
@click.option("--door", help="Only through this door, as e2b; native: none (list).")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@connected
@pass_shell
def get(
    shell: Shell,
    /,
    ids: tuple[str, ...],
    wait: float | None,
    state: str | None,
    task: str | None,
    door: str | None,
    limit: int,
) -> None:
    """Show actions by ID, or the latest ones."""
    with shell.client() as client:
        if ids:
            actions = [_after(client, action_id, wait) for action_id in ids]
        else:
            page = client.list(
                "actions",
                limit=limit,
                state=state,
                task=task,
                door=door,
                include=_INCLUDED.get(shell.format),
            )
            actions = [ActionView.of(body) for body in page.results]
            if page.next:
                say(f"the latest {len(actions)}; there are more (--limit)")
    if not actions:
        none_yet = "no actions yet; run one: tangram submit --wait -- echo hello"
        say("no such actions" if state or task or door else none_yet)
    put_actions(actions, shell.format, single=len(ids) == 1)


def _after(client: Client, action_id: str, wait: float | None) -> ActionView:
    if wait is None:
        return client.get(action_id)
    try:
        return client.wait(action_id, patience_seconds=wait)
    except StillRunning as error:
        say(str(error))
        return client.get(action_id)


@click.command()
@click.argument("action_id", metavar="ID")
@connected
@pass_shell
def describe(shell: Shell, /, action_id: str) -> None:
    """Tell the story of one action: when what happened, and why it waits."""
    with shell.client() as client:
        action = client.get(action_id, include="request")
    if shell.format in {"json", "yaml"}:
        put_data(dict(action.body), shell.format)
    else:
        click.echo("\n".join(described(action)))


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--reason", help="Kept with the action.")
@connected
@pass_shell
def cancel(shell: Shell, /, ids: tuple[str, ...], reason: str | None) -> None:
    """End actions; one that is over stays as it is."""
    worst = 0
    cancelled = []
    with shell.client() as client:
        for action_id in ids:
            try:
                cancelled.append(client.cancel(action_id, reason=reason))
            except TangramClientError as error:
                complain(error)
                worst = max(worst, exit_code(error))
    if cancelled or shell.format in {"json", "yaml"}:
        put_actions(cancelled, shell.format, single=len(ids) == len(cancelled) == 1)
    if worst:
        raise SystemExit(worst)
