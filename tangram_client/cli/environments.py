"""`fork`, `snapshot`, `restore`, `park`, `renew`: environments of trajectories as a whole."""

from __future__ import annotations

import click

from tangram_client.cli.output import put_data
from tangram_client.cli.shell import Shell, connected, pass_shell

_on_busy = click.option(
    "--on-busy",
    type=click.Choice(["refuse", "wait", "copy"]),
    default="refuse",
    show_default=True,
    help="While a command runs or a program writes.",
)


@click.command()
@click.argument("trajectory")
@click.argument("names", nargs=-1)
@click.option("--count", type=click.IntRange(1), help="Number of forks, without NAMES.")
@_on_busy
@connected
@pass_shell
def fork(
    shell: Shell, /, trajectory: str, names: tuple[str, ...], count: int | None, on_busy: str
) -> None:
    """Open trajectories NAMES with the files of TRAJECTORY's environment, and print their names.

    They share the files and store what they change. Processes are not forked.
    """
    with shell.client() as client:
        forks = client.fork_trajectory(trajectory, count, names=names or None, on_busy=on_busy)
    if shell.format in {"json", "yaml"}:
        put_data(dict(forks.body), shell.format)
    else:
        click.echo("\n".join(forks.names))


@click.group()
def snapshot() -> None:
    """Keep files of environments under names."""


@snapshot.command("take")
@click.argument("trajectory")
@click.argument("name")
@_on_busy
@connected
@pass_shell
def take(shell: Shell, /, trajectory: str, name: str, on_busy: str) -> None:
    """Keep the files of TRAJECTORY's environment under NAME."""
    with shell.client() as client:
        put_data(client.snapshots.take(trajectory, name, on_busy=on_busy), shell.format)


@snapshot.command("list")
@connected
@pass_shell
def list_snapshots(shell: Shell, /) -> None:
    """Print the snapshots of the project."""
    with shell.client() as client:
        found = client.snapshots.list()
    if shell.format in {"json", "yaml"}:
        put_data(found, shell.format)
        return
    for each in found:
        click.echo(f"{each['name']}\t{each['size_bytes']}\t{each['node']}\t{each['made_at']}")


@snapshot.command("rm")
@click.argument("name")
@connected
@pass_shell
def remove(shell: Shell, /, name: str) -> None:
    """Remove a snapshot; environments that began from it go on."""
    with shell.client() as client:
        client.snapshots.remove(name)


@click.command()
@click.argument("snapshot_name", metavar="SNAPSHOT")
@click.argument("trajectory")
@click.option("--task", default="cli", show_default=True, help="Workload it belongs to.")
@connected
@pass_shell
def restore(shell: Shell, /, snapshot_name: str, trajectory: str, task: str) -> None:
    """Open TRAJECTORY with the files of SNAPSHOT."""
    with shell.client() as client:
        client.open_trajectory(trajectory, task=task, environment={"snapshot": snapshot_name})


@click.command()
@click.argument("trajectory")
@click.option("--ttl", type=click.FloatRange(0), help="Seconds from now; else as it was opened.")
@click.option("--only-later", is_flag=True, help="Keep the end that it has if that is later.")
@connected
@pass_shell
def renew(shell: Shell, /, trajectory: str, ttl: float | None, only_later: bool) -> None:
    """Move the end of TRAJECTORY."""
    fields = {} if ttl is None else {"ttl_seconds": ttl}
    with shell.client() as client:
        found = client.renew_trajectory(trajectory, only_later=only_later, **fields)
    put_data(found, shell.format)


@click.command()
@click.argument("trajectory")
@connected
@pass_shell
def park(shell: Shell, /, trajectory: str) -> None:
    """Freeze TRAJECTORY's idle environment and give back its page cache, until its next action."""
    with shell.client() as client:
        put_data(client.snapshots.park(trajectory), shell.format)
