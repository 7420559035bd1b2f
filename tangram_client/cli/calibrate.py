"""`calibrate`: measure what this machine and this Tangram take beside the work of an action."""

from __future__ import annotations

import asyncio
import secrets
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import click

from tangram_client.aio import AsyncClient
from tangram_client.cli.shell import Shell, connected, pass_shell, say
from tangram_client.errors import TangramClientError
from tangram_client.models import ActionView
from tangram_client.replay.player import Session
from tangram_client.replay.tally import ReplayTally
from tangram_client.system_status import StatusSummary
from tangram_client.traces.calibration import (
    PROBES,
    ROUNDS,
    MachineCalibration,
    MachineIdentity,
    MeasuredNode,
    ProbedAction,
    ProbeRun,
    ReplayProbe,
    calibration_path,
    write_calibration,
)
from tangram_client.traces.submissions import ReplayPlan, Submission, cost_named


@click.command()
@click.option(
    "--rounds", type=click.IntRange(1, 20), default=ROUNDS, show_default=True,
    help="Repetitions; their differences become the interval of predictions.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path),
    help="Where it is stored [replay-calibration.json in TANGRAM_HOME].",
)  # fmt: skip
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
@connected
@pass_shell
def calibrate(shell: Shell, /, rounds: int, out: Path | None, quiet: bool) -> None:
    """Measure the costs of this machine for ``sim --as-replay``, in about half a minute: short replays against the
    running Tangram, which should have nothing else to do."""
    calibration = asyncio.run(_measure(shell, rounds, quiet=quiet))
    path = out or calibration_path()
    try:
        write_calibration(calibration, path)
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from None
    alone = [each for run in calibration.of("alone") for each in run.actions]
    crowd = calibration.of("crowd")
    rate = sum(len(run.actions) for run in crowd) / sum(run.wall_seconds for run in crowd)
    beside = fmean(each.round_trip_seconds - each.asked_seconds for each in alone)
    click.echo(
        f"{beside * 1000:.1f} ms beside the work of an action alone, {rate:.0f} actions/s at most"
    )
    click.echo(f"stored in {path}")


async def _measure(shell: Shell, rounds: int, *, quiet: bool) -> MachineCalibration:
    async with shell.async_client() as client:
        status = StatusSummary.of(await client.status())
        if status.running or status.queued:
            say(f"{status.running} actions run and {status.queued} wait: they are measured as well")
        runs: list[ProbeRun] = []
        for number in range(rounds):
            for probe in PROBES:
                if not quiet:
                    say(f"round {number + 1} of {rounds}: {probe.name}")
                runs.append(await _run(client, shell, probe, number))
    return MachineCalibration(
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=MachineIdentity.this(),
        version=status.version,
        policy=next((pool.policy for pool in status.pools), ""),
        nodes=tuple(
            MeasuredNode(node.name, node.cores_total, node.cores_kept)
            for node in status.nodes
            if node.alive
        ),
        runs=tuple(runs),
    )


async def _run(client: AsyncClient, shell: Shell, probe: ReplayProbe, number: int) -> ProbeRun:
    """Play one probe. Raises TangramClientError when an action did not complete."""
    found: list[ProbedAction] = []

    def watch(submission: Submission, action: ActionView, seconds: float) -> None:
        timing = action.timing
        if not action.completed or timing is None:
            raise TangramClientError(f"a command of the calibration ended as {action.outcome}")
        found.append(
            ProbedAction(
                submission.number == 0, seconds, timing.queue_seconds, timing.overhead_seconds,
                timing.execution_seconds, submission.asked_seconds, submission.cores,
            )
        )  # fmt: skip

    run = f"calibration-{secrets.token_hex(3)}"
    session = Session(
        recordings=probe.recordings,
        plan=ReplayPlan("calibration", run, 1.0, cost_named("from-trace")),
        concurrency=probe.concurrency,
        tally=ReplayTally(),
        clock=shell.time,
        watch=watch,
    )
    report = await session.run(client)
    if report.failures or not report.clean:
        failed = ", ".join(report.failures) or f"the actions ended as {report.outcomes}"
        raise TangramClientError(f"the calibration failed: {failed}")
    return ProbeRun(probe.name, number, report.wall_seconds, tuple(found))
