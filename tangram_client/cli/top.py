"""`top`: pools, nodes and queues, refreshed in place."""

from __future__ import annotations

from contextlib import suppress

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from tangram_client.cli.output import data_console, put_data, rows, show
from tangram_client.cli.shell import Number, Shell, connected, pass_shell
from tangram_client.client import Client
from tangram_client.errors import Busy, Unreachable
from tangram_client.system_status import NodeSummary, PoolSummary, StatusSummary


@click.command()
@click.option("--interval", type=Number(0.2), default=1.0, show_default=True)
@click.option("--once", is_flag=True, help="Show it once; so in a pipe.")
@connected
@pass_shell
def top(shell: Shell, /, interval: float, once: bool) -> None:
    """Show pools and nodes, refreshed until Ctrl-C."""
    console = data_console()
    with shell.client() as client, suppress(KeyboardInterrupt):
        if shell.format in {"json", "yaml"}:
            put_data(client.status(), shell.format)
        elif once or not console.is_terminal:
            show(_screen(StatusSummary.of(client.status()), client.url))
        else:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                while True:
                    live.update(_look(client), refresh=True)
                    shell.time.sleep(interval)


def _look(client: Client) -> RenderableType:
    try:
        return _screen(StatusSummary.of(client.status()), client.url)
    except (Unreachable, Busy) as error:
        return Text(f"{error}\ntrying again …", style="red")


def _screen(standing: StatusSummary, url: str) -> RenderableType:
    head = Text.assemble(
        ("Tangram ", "bold"),
        f"at {url} · leader {standing.leader or 'none'} · "
        f"{standing.running} running, {standing.queued} queued, "
        f"{standing.trajectories} trajectories · "
        f"{standing.cores_held:g} of {standing.cores_total:g} cores held\n",
    )
    pools = rows(("POOL", "RUNNING", "QUEUED", "POLICY", ""), [_pool(p) for p in standing.pools])
    nodes = rows(
        ("NODE", "POOL", "STATE", "CORES HELD", "", ""), [_node(n) for n in standing.nodes]
    )
    return Group(head, pools, Text(), nodes)


def _pool(pool: PoolSummary) -> tuple[str, ...]:
    paused = "paused" if pool.paused else ""
    return pool.name, str(pool.running), str(pool.queued), pool.policy, paused


def _node(node: NodeSummary) -> tuple[str, ...]:
    cores = f"{node.cores_held:g}/{node.cores_total:g}"
    note = "oversubscribed" if node.oversubscribed else ""
    note = node.drain or note
    return node.name, node.pool, node.state, cores, _bar(node.cores_held, node.cores_total), note


def _bar(held: float, total: float, width: int = 20) -> str:
    filled = round(width * min(1.0, held / total)) if total > 0 else 0
    return "█" * filled + "░" * (width - filled)
