"""`task`, `node` and `service`: the verbs of operators."""

from __future__ import annotations

import click

from tangram_client.cli.shell import Shell, connected, pass_shell


@click.group()
def task() -> None:
    """Steer a task as a whole."""


@click.group()
def node() -> None:
    """Take a node out of use, or back."""


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
@connected
@pass_shell
def drain(shell: Shell, /, name: str, reason: str | None) -> None:
    """Let a node take no new actions; what runs there goes on."""
    with shell.client() as client:
        client.drain_node(name, reason=reason)


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
