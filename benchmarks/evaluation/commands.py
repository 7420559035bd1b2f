"""`tangram sim report`: the whole evaluation in one command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from benchmarks.evaluation.cases import SCALES, Inputs, Scale
from benchmarks.evaluation.checkpoint import Kept
from benchmarks.evaluation.estimate import estimate, stored_rates
from benchmarks.evaluation.findings import of_report
from benchmarks.evaluation.inputs import read_inputs
from benchmarks.evaluation.page import write
from benchmarks.evaluation.report import Content, Measured, Report, content, evaluate
from benchmarks.evaluation.runs import Done, Job, Planned, Progress
from benchmarks.fleets import report as fleet_report
from domain.errors import InvalidRequest
from simulator.cli import one_line_errors, say_assumed

#: How many this process may use.
CORES: Final = len(os.sched_getaffinity(0))
#: What is done already, in the report's folder until the report is whole.
KEPT: Final = "simulated.jsonl"
#: Without a terminal, progress is printed as a line this often.
SAID_EVERY_SECONDS: Final = 30.0
#: Where `benchmarks.predicted` stores; there in a clone, not in an installed package.
STORED: Final = Path(__file__).parents[1] / "results" / "predicted.json"

OPTIONS: Final = (
    click.option("--trace", type=click.Path(path_type=Path),
                 help="Recorded coding agents, or LLM requests, of any known format [made up]."),
    click.option("--requests", type=click.Path(path_type=Path),
                 help="Recorded LLM requests of any known format [made up]."),
    click.option("--out", type=click.Path(path_type=Path), default=Path("evaluation"),
                 show_default=True, help="Folder for report.html and report.json."),
    click.option("--figure", "figures", multiple=True, metavar="ID", help="Only these [all of ARL-Tangram]; heddle: all of Heddle, heddle-12: one."),
    click.option("--scale", type=click.Choice(list(SCALES)), default="standard",
                 show_default=True, help="full: as large as the paper's; quick: a first look."),
    click.option("--seeds", type=int, help="Seeds that intervals are over [the scale's]."),
    click.option("--interactions", type=int, help="Kept of each recording [the scale's]."),
    click.option("--measured", type=click.Path(path_type=Path),
                 help="What benchmarks.predicted stored [the repository's]."),
    click.option("--jobs", default=CORES, show_default=f"{CORES}, the cores there are",
                 help="Simulations at once."),
    click.option("--quiet", "-q", is_flag=True, help="No progress."),
)  # fmt: skip


def with_report_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add what the command takes."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def report(
    *, trace: Path | None, requests: Path | None, out: Path, figures: tuple[str, ...], scale: str,
    jobs: int, quiet: bool, measured: Path | None, **changes: int | None,
) -> tuple[Path, Report]:  # fmt: skip
    """Simulate and write; return where the page is, and what is in it."""
    given: dict[str, Any] = {name: n for name, n in changes.items() if n is not None}
    for name, value in (*given.items(), ("jobs", jobs)):
        if value < 1:
            raise InvalidRequest(f"--{name} must be at least 1, not {value}")
    if any(name.startswith(fleet_report.FAMILY) for name in figures):
        made = fleet_report.evaluate_fleets(figures, trace, scale, given.get("seeds"), jobs)
        return _written(made, out), made
    size = SCALES[scale]
    for name, value in given.items():
        size = size.__class__(**{**vars(size), name: value})
    wanted, beside = content(size, figures), stored_measurement(measured)
    inputs, assumed = read_inputs(trace, requests)
    say_assumed(assumed)
    kept = kept_of(out / KEPT, inputs, wanted)
    with shown(quiet=quiet) as progress:
        made = evaluate(
            wanted, inputs, jobs=jobs, progress=progress, measured=beside, kept=kept,
            planned=None if quiet else say_estimate(jobs),
        )  # fmt: skip
    page = _written(made, out)
    (out / KEPT).unlink(missing_ok=True)
    return page, made


def kept_of(path: Path, inputs: Inputs, wanted: Content) -> dict[Scale, Kept]:
    """Return what ``path`` has of each scale. Raises InvalidRequest when it cannot be read."""
    return {scale: Kept(path, inputs, scale) for scale in wanted.cases()}


def say_estimate(jobs: int) -> Planned:
    """Say on standard error what is left to simulate and about how long it takes."""

    def say(left: Mapping[Job, int]) -> None:
        click.echo(f"{estimate(left, stored_rates(), jobs)} with --jobs {jobs}", err=True)

    return say


def _written(made: Report, out: Path) -> Path:
    try:
        page, _ = write(made, out, of_report(made))
    except OSError as error:
        raise InvalidRequest(f"{error.filename}: {error.strerror}") from None
    return page


def stored_measurement(path: Path | None = None) -> Measured | None:
    """Read what was measured; None when nothing is stored where it usually is."""
    if path is None and not STORED.exists():
        return None
    try:
        return msgspec.json.decode((path or STORED).read_bytes(), type=Measured)
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{path or STORED}: {error}") from None


@click.command("report")
@with_report_options
def report_command(**options: Any) -> None:
    """Simulate the evaluation of ARL-Tangram again, or with --figure heddle that of Heddle.

    One page, the paper's numbers beside ours.
    """
    with one_line_errors():
        page, _ = report(**options)
    click.echo(page)


@contextmanager
def shown(*, quiet: bool) -> Iterator[Progress | None]:
    """Show how far it is on standard error: a bar, or a line now and then where that is no terminal."""
    console = Console(stderr=True)
    if quiet:
        yield None
        return
    if not console.is_terminal:
        yield _Lines()
        return
    columns = TextColumn("{task.fields[cases]} simulations"), BarColumn(), TaskProgressColumn()
    times = TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn()
    with Bars(*columns, *times, console=console, speed_estimate_period=300) as bars:
        task = bars.add_task("simulations", total=1.0, cases="")

        def update(done: Done) -> None:
            bars.update(task, completed=done.share, cases=f"{done.cases} of {done.of}")

        yield update


class _Lines:
    """Says in lines how far it is, and how long it will still take."""

    def __init__(self) -> None:
        self._began = self._said_at = monotonic()
        self._from: float | None = None

    def __call__(self, done: Done) -> None:
        now = monotonic()
        if self._from is None:  # what was kept took no time
            self._from = done.share
        if now - self._said_at < SAID_EVERY_SECONDS or done.share <= self._from:
            return
        self._said_at = now
        left = (now - self._began) * (1 - done.share) / (done.share - self._from)
        click.echo(
            f"{done.cases} of {done.of} simulations, {done.share:.0%} of the work, "
            f"about {left / 60:.0f} min left",
            err=True,
        )
