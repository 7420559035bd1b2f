"""`task`, `node` and `service`: the verbs of operators, and the tokens by which nodes join."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import click

from tangram_client._calls import create_join_token, node_groups, revoke_join_token
from tangram_client.cli.output import put_data, rows, show
from tangram_client.cli.shell import Shell, connected, pass_shell, say
from tangram_client.cli.token import list_tokens
from tangram_client.client import Client
from tangram_client.system_status import StatusSummary

#: Between two looks at a drain that is waited for.
DRAIN_LOOK_SECONDS: Final = 2.0


@click.group()
def task() -> None:
    """Steer a task as a whole."""


@click.group()
def node() -> None:
    """Take a node in, out of use, or back, and look at groups of nodes."""


@click.group()
def service() -> None:
    """Look after a GPU service."""


@service.command("evict")
@click.argument("name")
@connected
@pass_shell
def evict(shell: Shell, /, name: str) -> None:
    """Let a service leave the chunks where it does not work; its next call restores it."""
    with shell.client() as client:
        client.evict_service(name)


@task.command("pause")
@click.argument("name")
@connected
@pass_shell
def pause(shell: Shell, /, name: str) -> None:
    """Grant a task nothing; what runs goes on, what is submitted waits."""
    with shell.client() as client:
        client.pause_task(name)


@task.command("resume")
@click.argument("name")
@connected
@pass_shell
def resume(shell: Shell, /, name: str) -> None:
    """Go on with a task."""
    with shell.client() as client:
        client.resume_task(name)


@task.command("priority")
@click.argument("name")
@click.argument("priority", type=int, required=False)
@connected
@pass_shell
def priority(shell: Shell, /, name: str, priority: int | None) -> None:
    """Serve all actions of a task at PRIORITY; without one, each at its own."""
    with shell.client() as client:
        client.prioritise_task(name, priority)


@task.command("cancel")
@click.argument("name")
@connected
@pass_shell
def cancel(shell: Shell, /, name: str) -> None:
    """End what a task has now; what is submitted later is accepted."""
    with shell.client() as client:
        client.cancel_task(name)


@node.command("drain")
@click.argument("name")
@click.option("--reason", help="For people.")
@click.option(
    "--finish-trajectories",
    is_flag=True,
    help="Trajectories that have their environment there continue until they end, or move to other nodes.",
)
@click.option(
    "--wait", is_flag=True, help="Wait until none is left, and say what it waits for. Needs --finish-trajectories."
)  # fmt: skip
@connected
@pass_shell
def drain(
    shell: Shell, /, name: str, reason: str | None, finish_trajectories: bool, wait: bool
) -> None:
    """Let a node take no new actions; what runs there goes on."""
    if wait and not finish_trajectories:
        raise click.UsageError("--wait needs --finish-trajectories: else trajectories stay there")
    with shell.client() as client:
        client.drain_node(name, reason=reason, finishing=finish_trajectories)
        if wait:
            _wait_for_drain(client, name)


def _wait_for_drain(client: Client, name: str) -> None:
    """Say what a drain waits for, whenever that changes, until its node has no trajectory."""
    said = None
    while True:
        found = [n for n in StatusSummary.of(client.status()).nodes if n.name == name]
        if not found:
            say(f"node {name} has left")
            return
        # A loop that has not read the drain yet says nothing of it.
        drain = found[0].drain
        if drain and drain != said:
            say(drain)
            said = drain
        if found[0].is_draining and not found[0].trajectories:
            say(f"node {name} has no trajectory")
            return
        time.sleep(DRAIN_LOOK_SECONDS)


@node.command("resume")
@click.argument("name")
@connected
@pass_shell
def undrain(shell: Shell, /, name: str) -> None:
    """Let a node take actions again."""
    with shell.client() as client:
        client.resume_node(name)


@node.command("forget")
@click.argument("name")
@connected
@pass_shell
def forget(shell: Shell, /, name: str) -> None:
    """Forget a node that shows no life and holds no work; should it come back, it is a new one."""
    with shell.client() as client:
        client.forget_node(name)


@node.command("revoke")
@click.argument("name")
@connected
@pass_shell
def revoke(shell: Shell, /, name: str) -> None:
    """Shut a node out at once: what runs there ends, its user of Redis is deleted, and it joins by a new token alone."""
    with shell.client() as client:
        deleted = client.revoke_node(name)
    say(f"{name} is shut out, and what ran there has ended")
    if not deleted:
        say("its user of Redis is deleted once the keeper of node access runs")


@node.group("token")
def join_token() -> None:
    """Tokens by which machines join as nodes."""


@join_token.command("create")
@click.option("--node", "name", help="The only node that may use it.")
@click.option("--prefix", help="What the names of its nodes begin with.")
@click.option("--pool", help="Pool of its nodes [as each machine says].")
@click.option("--isolation", help="Isolation of its nodes: auto, bwrap, apptainer or process.")
@click.option("--minutes", type=click.IntRange(1), help="Until it expires [60].")
@click.option("--uses", type=click.IntRange(1), help="Machines that may join by it [1].")
@connected
@pass_shell
def create(shell: Shell, /, name: str | None, minutes: int | None, **more: Any) -> None:
    """Create a join token and print it, once."""
    seconds = None if minutes is None else 60 * minutes
    given = {"node": name, "seconds": seconds, **more}
    with shell.client() as client:
        made = client.send(create_join_token({k: v for k, v in given.items() if v is not None}))
    if shell.format in {"json", "yaml"}:
        put_data(made, shell.format)
        return
    say(
        f"{made['id']} expires {made['expires_at']}; the token is shown only now. On the machine, start the node worker with"
        " TANGRAM_JOIN (the https address of this Tangram) and TANGRAM_JOIN_TOKEN, without TANGRAM_REDIS_URL"
    )
    click.echo(made["token"])


_TOKENS: Final = ("ID", "NODES", "POOL", "USED", "EXPIRES", "CREATED BY", "STATE")


@join_token.command("list")
@connected
@pass_shell
def listed(shell: Shell, /) -> None:
    """List join tokens, newest first."""
    list_tokens(shell, "node-tokens", _TOKENS, _token_line)


@join_token.command("revoke")
@click.argument("token_id", metavar="ID")
@connected
@pass_shell
def revoke_token(shell: Shell, /, token_id: str) -> None:
    """Revoke the join token ID; nodes that joined by it stay."""
    with shell.client() as client:
        client.send(revoke_join_token(token_id))
    say(f"{token_id} is revoked")


def _token_line(each: Mapping[str, Any]) -> list[str]:
    names = each["node"] or (f"{each['prefix']}…" if each["prefix"] else "any")
    return [
        each["id"], names, each["pool"] or "any", f"{each['used']} of {each['uses']}", each["expires_at"],
        each["created_by"], each["useless"] or "may be used",
    ]  # fmt: skip


_GROUPS: Final = (
    "GROUP", "ENGINE", "POOL", "WANTED", "READY", "NODE", "STATE", "MACHINE", "HANDLE", "REASON",
)  # fmt: skip


@node.command("groups")
@connected
@pass_shell
def groups(shell: Shell, /) -> None:
    """List the groups of nodes that an engine places, with each instance."""
    with shell.client() as client:
        found = client.send(node_groups())
    if shell.format in {"json", "yaml"}:
        put_data({"groups": list(found)}, shell.format)
    elif shell.format == "name":
        for each in found:
            click.echo(each["name"])
    else:
        show(rows(_GROUPS, [row for each in found for row in _rows_of(each)]))


def _rows_of(group: dict[str, Any]) -> list[list[str]]:
    """Return the row of a group, and one for each of its instances."""
    spec = group["spec"]
    # A server of an earlier version has no estimate, nor has a group with a fixed count.
    said = [group["error"], *group.get("silent", {}).values(), group.get("rollout", "")]
    said += [each for each in group.get("problems", ()) if each not in said]
    says = "; ".join(each for each in said if each) or (group.get("estimate") or {}).get("reason", "")  # fmt: skip
    first = [
        group["name"], spec["engine"], spec.get("pool", "default"), str(group["wanted"]), str(group["ready"]),
        "", "", "", "", says,
    ]  # fmt: skip
    others = []
    for each in group["instances"]:
        state = each["state"] + ("" if each["joined"] else ", has not joined")
        state += ", drained" if each["drained"] else ""
        state += ", former shape" if each.get("outdated") else ""
        others.append(
            [
                "",
                "",
                "",
                "",
                "",
                each["name"],
                state,
                each["machine"],
                each["handle"],
                each["reason"],
            ]
        )
    return [first, *others]
