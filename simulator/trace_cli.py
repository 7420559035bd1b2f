"""`tangram trace`: convert, describe and sample traces, of other systems, too.

Standard output carries the result, standard error what was assumed. Bad input is one line and exit code 2.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.table import Table

from domain.errors import InvalidRequest
from simulator.cli import one_line_errors, print_tables, seconds
from simulator.foreign.modelled import TOKENS_PER_SECOND, Modelled
from simulator.foreign.reading import FORMATS, read_sources
from simulator.foreign.trace import Trace
from simulator.result import Spread
from simulator.trace_files import sample, write_trace
from simulator.trace_summary import RecordingFigures, RequestFigures, TraceSummary, summarise
from tangram_client.traces.recording import MEBIBYTE

_READING: Final = (
    click.argument("sources", nargs=-1, required=True, metavar="SOURCE…", type=click.Path(path_type=Path)),
    click.option("--format", "format_name", type=click.Choice(list(FORMATS)),
                 help="Format of the sources [found by their content]."),
    click.option("--skip-bad", is_flag=True, help="Skip and count bad lines; else the first is an error."),
    click.option("--tokens-per-second", type=click.FloatRange(0, min_open=True), default=TOKENS_PER_SECOND,
                 show_default=True, help="Of the model, where a source has no think times."),
    click.option("--model-seed", default=0, show_default=True,
                 help="Seed of figures that a source does not contain."),
)  # fmt: skip
_TO: Final = click.option(
    "--to", required=True, type=click.Path(path_type=Path, dir_okay=False), help="File to write."
)


def _with_reading(command: Callable[..., None]) -> Callable[..., None]:
    """Add what every verb takes."""
    for option in reversed(_READING):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def verbs() -> None:
    """Convert, describe and sample traces: recordings of coding agents, or LLM requests.

    SOURCE: files or folders of one format. Formats of other systems: mooncake, bailian, azure, swe-agent,
    mini-swe-agent, verl; our own: tangram, requests, journal (docs/traces.md).
    """


@verbs.command()
@_with_reading
@_TO
def convert(to: Path, **reading: Any) -> None:
    """Write SOURCE in our format: recordings as JSON lines, LLM requests as CSV."""
    with _errors():
        trace = _read(**reading)
        _write(trace, to, reading["sources"])


@verbs.command()
@_with_reading
@click.option("--json", "as_json", is_flag=True, help="All figures as JSON.")
def describe(as_json: bool, **reading: Any) -> None:
    """Show what SOURCE holds: counts, spans, percentiles, families, burstiness."""
    with _errors():
        summary = summarise(_read(**reading))
    if as_json:
        sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
    else:
        print_tables(*tables(summary))


@verbs.command("sample")
@_with_reading
@click.option("--count", type=int, required=True, help="Trajectories or requests to keep.")
@click.option("--seed", default=0, show_default=True)
@_TO
def sample_command(count: int, seed: int, to: Path, **reading: Any) -> None:
    """Keep --count whole trajectories, or runs of requests, so that the shape of SOURCE stays."""
    with _errors():
        trace = sample(_read(**reading), count, seed)
        _write(trace, to, reading["sources"])


def _read(
    sources: tuple[Path, ...],
    format_name: str | None,
    skip_bad: bool,
    tokens_per_second: float,
    model_seed: int,
) -> Trace:
    trace = read_sources(
        sources,
        format_name=format_name,
        skip_bad=skip_bad,
        modelled=Modelled(model_seed, tokens_per_second),
    )
    for note in trace.notes():
        click.echo(f"tangram trace: {note}", err=True)
    return trace


def _write(trace: Trace, to: Path, sources: tuple[Path, ...]) -> None:
    if any(source.exists() and to.exists() and source.samefile(to) for source in sources):
        raise InvalidRequest(f"{to}: is the source; give another file")
    write_trace(trace, to)
    count = len(trace.recordings) or len(trace.requests)
    click.echo(f"{to}: {count:,} {trace.kind.plural} from format {trace.format}")


def _errors() -> Any:
    return one_line_errors("tangram trace")


def tables(summary: TraceSummary) -> Iterator[Table]:
    """Yield the tables of a trace: its counts, its percentiles, its families."""
    if (recordings := summary.recordings) is not None:
        yield _facts(summary, _recording_facts(recordings))
        yield _spreads(
            {
                "think time, s": recordings.think_seconds,
                "tool time, s": recordings.tool_seconds,
                "trajectory, s": recordings.trajectory_seconds,
                "tool calls of a trajectory": recordings.calls_per_trajectory,
                "CPU of a call, cores": recordings.cpu_cores,
                "output of a call, characters": recordings.output_characters,
                "memory, MiB": _scaled(recordings.memory_bytes, 1 / MEBIBYTE),
            }
        )
        yield _families(recordings)
    if (requests := summary.requests) is not None:
        yield _facts(summary, _request_facts(requests))
        yield _spreads(
            {
                "input tokens": requests.input_tokens,
                "output tokens": requests.output_tokens,
                "gap, s": requests.gap_seconds,
            }
        )


def _facts(summary: TraceSummary, facts: dict[str, str]) -> Table:
    table = Table(show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_row("source", summary.source)
    table.add_row("format", summary.format)
    for what, value in facts.items():
        table.add_row(what, value)
    if summary.skipped:
        table.add_row("bad lines skipped", f"{summary.skipped:,}")
    return table


def _recording_facts(figures: RecordingFigures) -> dict[str, str]:
    acting = figures.acting_at_once
    return {
        "trajectories": f"{figures.trajectories:,}",
        "tool calls": f"{figures.tool_calls:,}",
        "recorded, s": seconds(figures.recorded_seconds),
        "tools act": f"{figures.acting_share:.1%} of that",
        "tools at once, all trajectories begun together": (
            f"mean {acting.mean:.1f}, p99 {acting.p99}, most {acting.most}"
        ),
    }


def _request_facts(figures: RequestFigures) -> dict[str, str]:
    return {
        "requests": f"{figures.requests:,}",
        "span, s": seconds(figures.span_seconds),
        "requests a second": f"{figures.per_second:.3g}",
        "variation of gaps": f"{figures.gap_variation:.2f}",
        "shortest gap above 0, s": seconds(figures.tick_seconds),
        **{
            f"busiest {window} s over the mean": f"{times:.1f} ×"
            for window, times in figures.busiest_window.items()
        },
    }


def _spreads(rows: dict[str, Spread]) -> Table:
    table = Table(title="percentiles", title_justify="left")
    table.add_column("")
    for name in ("mean", "p50", "p95", "p99", "most"):
        table.add_column(name, justify="right")
    for what, spread in rows.items():
        table.add_row(what, *(seconds(value) for value in msgspec.structs.astuple(spread)))
    return table


def _families(figures: RecordingFigures) -> Table:
    table = Table(title="families of tool calls", title_justify="left")
    table.add_column("family")
    for name in ("calls", "of calls", "of tool time", "mean, s", "p50", "p95", "p99"):
        table.add_column(name, justify="right")
    for each in figures.families:
        numbers = each.seconds.mean, each.seconds.p50, each.seconds.p95, each.seconds.p99
        table.add_row(
            each.family or "-", f"{each.calls:,}", f"{each.call_share:.1%}",
            f"{each.time_share:.1%}", *map(seconds, numbers),
        )  # fmt: skip
    return table


def _scaled(spread: Spread, factor: float) -> Spread:
    return Spread(*(factor * value for value in msgspec.structs.astuple(spread)))


def main() -> None:
    """Run the command line."""
    verbs(prog_name="tangram trace")


if __name__ == "__main__":
    main()
