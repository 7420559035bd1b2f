"""`rerun`: submits the request of an action again."""

from __future__ import annotations

import json
import secrets
from typing import Any, Final

import click

from tangram_client.cli.output import put_actions
from tangram_client.cli.shell import Shell, connected, pass_shell, say

#: Exit code of a request that cannot be repeated.
_CONFLICT: Final = 4
#: Characters of a trajectory's name that the name of a new one begins with.
_KEPT_CHARACTERS: Final = 100


@click.command()
@click.argument("action_id", metavar="ID")
@click.option("--trajectory", metavar="NAME", help="Run in this one; by default in a new one.")
@click.option("--print", "only_print", is_flag=True, help="Print its request for submit --file.")
@click.option("--wait", is_flag=True, help="Wait for the end; exit code 1 unless it went well.")
@connected
@pass_shell
def rerun(
    shell: Shell, /, action_id: str, trajectory: str | None, only_print: bool, wait: bool
) -> None:
    """Submit the request of an action again, in the same task.

    Secrets of a request are masked and large ones are cut: these are refused with exit code 4. With --print
    the secrets can be written into the request, and it can be changed: tangram submit --file FILE.
    """
    with shell.client() as client:
        request = client.get(action_id, include="request").request or {}
        body = request.get("body")
        if body is None or (request.get("obstacle") and not only_print):
            why = request.get("obstacle") or "this server does not answer with requests"
            say(f"{action_id} cannot be submitted again: {why}")
            raise SystemExit(_CONFLICT)
        body = _placed(body, trajectory)
        if only_print:
            click.echo(json.dumps(body, indent=2, ensure_ascii=False))
            return
        action = client.submit(body)
        if wait:
            say(f"submitted {action.id}: waiting (Ctrl-C leaves it running)")
            action = client.wait(action.id)
        put_actions([action], shell.format, single=True)
    if wait and not action.succeeded:
        raise SystemExit(1)


def _placed(body: dict[str, Any], trajectory: str | None) -> dict[str, Any]:
    """Return a request in ``trajectory``, or in a new one where it had one."""
    if trajectory is None and not body.get("trajectory"):
        return body
    name = trajectory or f"{body['trajectory'][:_KEPT_CHARACTERS]}-again-{secrets.token_hex(3)}"
    return {**body, "trajectory": name}
