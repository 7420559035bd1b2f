"""The progress of a replay on standard error: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from tangram_client.cli.output import talk_console
from tangram_client.cli.shell import say
from tangram_client.replay.tally import ReplayTally

REFRESH_SECONDS = 0.25
#: Between two lines where there is no terminal.
LINE_SECONDS = 10.0


@asynccontextmanager
async def shown(tally: ReplayTally, *, quiet: bool) -> AsyncIterator[None]:
    """Show a tally while the block runs."""
    if quiet:
        yield
        return
    show = _bars if talk_console().is_terminal else _lines
    task = asyncio.create_task(show(tally))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _bars(tally: ReplayTally) -> None:
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=talk_console(),
    )
    with progress:
        trajectories = progress.add_task("trajectories", total=tally.trajectories_total, note="")
        actions = progress.add_task("actions", total=tally.actions_total, note="")
        try:
            while True:
                await asyncio.sleep(REFRESH_SECONDS)
                progress.update(trajectories, completed=_ended(tally))
                progress.update(actions, completed=tally.finished, note=_now(tally))
        finally:
            progress.update(trajectories, completed=_ended(tally))
            progress.update(actions, completed=tally.finished, note=_now(tally))


async def _lines(tally: ReplayTally) -> None:
    while True:
        await asyncio.sleep(LINE_SECONDS)
        say(f"{_ended(tally)} trajectories, {tally.finished} actions finished, {_now(tally)}")


def _ended(tally: ReplayTally) -> int:
    return tally.trajectories_done + tally.failures.total()


def _now(tally: ReplayTally) -> str:
    if tally.running is None or tally.queued is None:
        return f"{tally.submitted - tally.finished} under way"
    return f"{tally.running} running, {tally.queued} queued"
