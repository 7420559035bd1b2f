"""`replay`: play recorded trajectories as their trainer would, and report."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Iterable
from pathlib import Path

import click

from tangram_client.cli.output import put_data, show
from tangram_client.cli.progress import shown
from tangram_client.cli.shell import Number, Shell, connected, pass_shell, say
from tangram_client.replay.player import Session
from tangram_client.replay.report import Report
from tangram_client.replay.tally import ReplayTally
from tangram_client.traces.recording import Recording, TraceError
from tangram_client.traces.submissions import Cost, ReplayPlan, Source, cost_named


def _cost(context: click.Context, parameter: click.Parameter, text: str) -> Cost:
    try:
        return cost_named(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument(
    "trace", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--generate", "generated", is_flag=True, help="Make trajectories up; needs no TRACE.")
@click.option(
    "--trajectories",
    type=click.IntRange(1),
    metavar="N",
    help="How many; resampled when the trace has fewer [all of it; generated: 8].",
)
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="At once [all].")
@click.option(
    "--speed",
    type=Number(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Think times and durations are divided by it.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--task", default="replay", show_default=True)
@click.option(
    "--cost-cpu",
    "cost",
    default="from-trace",
    show_default=True,
    callback=_cost,
    help="Cores of each action: as recorded (light below half a core), or a number.",
)
@click.option("--reserve-memory", is_flag=True, help="Reserve the recorded peak on the node.")
@click.option("--forever", is_flag=True, help="Go on until stopped.")
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
@connected
@pass_shell
def replay(
    shell: Shell, /, trace: Path | None, generated: bool, trajectories: int | None,
    concurrency: int | None, speed: float, seed: int, task: str,
    cost: Cost, reserve_memory: bool, forever: bool, quiet: bool,
) -> None:  # fmt: skip
    """Play the trajectories recorded in TRACE: think, then run a command that burns the recorded
    CPU for the recorded time, then the next. Ctrl-C cancels what is under way and reports."""
    if generated == (trace is not None):
        raise click.UsageError("give a TRACE or --generate")
    try:
        recordings, count = Source(trace, seed, trajectories, forever).recordings()
    except TraceError as error:
        raise click.UsageError(str(error)) from None
    run = f"{task}-{secrets.token_hex(3)}"
    session = Session(
        recordings=recordings,
        plan=ReplayPlan(task, run, speed, cost, reserve_memory),
        concurrency=concurrency or count,
        tally=_tally(recordings),
        clock=shell.time,
    )
    report = asyncio.run(_play(shell, session, quiet=quiet))
    if shell.format in {"json", "yaml"}:
        put_data(report.body(), shell.format)
    else:
        show(*report.tables())
    if not report.clean and not (forever and report.stopped):
        raise SystemExit(1)


def _tally(recordings: Iterable[Recording]) -> ReplayTally:
    if not isinstance(recordings, list):
        return ReplayTally()
    return ReplayTally(len(recordings), sum(len(recording.steps) for recording in recordings))


async def _play(shell: Shell, session: Session, *, quiet: bool) -> Report:
    task = asyncio.current_task()
    if task is not None:
        # A replay in the background is ended by SIGTERM, as by Ctrl-C.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with shell.async_client() as client, shown(session.tally, quiet=quiet):
        if not quiet:
            say(f"playing as {session.plan.run} at {client.url}, {session.concurrency} at once")
        return await session.run(client)
