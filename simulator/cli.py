"""`tangram sim`: simulate a workload under one policy, or under several side by side.

Standard output carries the result, standard error what happens meanwhile. Bad input is one line and
exit code 2; nothing is printed of a comparison that did not come to its end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from domain.advice import PolicyDecision
from domain.errors import InvalidRequest, InvariantViolation
from domain.policies import DEFAULT_POLICY
from scheduler.core.advice.calibration import StartCalibration
from simulator.capacity import MEASURES, CapacityAnswer, CapacityTrial, Wish, fewest_nodes
from simulator.compare import Progress, Scene, Timed, check_policies, compare
from simulator.engine import Watch
from simulator.journal_replay import replay_journal
from simulator.options import build, foreign, with_options
from simulator.prediction import ReplayCosts, ReplayPrediction, age_text, predict
from simulator.replay_options import (
    OWN,
    build_replay,
    check_replayed_policies,
    with_replay_options,
)
from simulator.request import compared_policies
from simulator.result import Result, ResultPart, encode
from simulator.worker_processes import end_on_signal
from simulator.workloads.recorded import JournalWriter, read_journal
from tangram_client.traces.recording import TraceError

PartOf = Callable[[Result], ResultPart | None]


def seconds(value: float) -> str:
    """Return seconds with about three digits that matter."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.4f}"


def tables(timed: Sequence[Timed]) -> list[Table]:
    """Return the tables of a comparison; one row for each policy."""
    return [
        _act(timed, "all actions", lambda result: result.whole),
        _act(timed, "rewards", lambda result: result.rewards),
        _runs(timed),
    ]


def _act(timed: Sequence[Timed], title: str, part_of: PartOf) -> Table:
    table = Table(title=f"ACT of {title}, simulated seconds", title_justify="left")
    table.add_column("policy")
    for name in ("actions", "mean", "p50", "p95", "p99", "most", "queue", "overhead", "execution"):
        table.add_column(name, justify="right")
    for each in timed:
        part = part_of(each.result)
        if part is not None:
            act = part.act
            numbers = (
                act.mean, act.p50, act.p95, act.p99, act.most,
                part.queue.mean, part.overhead.mean, part.execution.mean,
            )  # fmt: skip
            table.add_row(each.result.policy, f"{part.actions:,}", *map(seconds, numbers))
    return table


def _runs(timed: Sequence[Timed]) -> Table:
    table = Table(title="runs, simulated", title_justify="left")
    table.add_column("policy")
    for name in (
        "ACT of a trajectory", "slowest trajectory", "step", "fairness", "granted", "efficiency", "restores", "not completed",
        "actions/s",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for each in timed:
        result = each.result
        steps = result.step_seconds
        lost = sum(n for outcome, n in result.outcomes.items() if outcome != "completed")
        table.add_row(
            result.policy,
            seconds(result.trajectory_act.mean),
            seconds(result.trajectory_seconds.most),
            seconds(sum(steps) / len(steps)) if steps else "-",
            "-" if result.fairness is None else f"{result.fairness:.3f}",
            ", ".join(f"{name} {share:.1%}" for name, share in result.granted.items()),
            f"{result.efficiency:.1%}",
            f"{result.restores:,}",
            f"{lost:,}",
            f"{each.actions_per_second:,.0f}",
        )
    return table


def decision_text(view: PolicyDecision) -> Iterator[str]:
    """Yield the lines about what a policy decided."""
    granted = ", ".join(f"{name} {count:g}" for name, count in view.units.items()) or "none"
    yield (
        f"{view.at_seconds:.3f} {view.policy} on {view.resource}: {granted}"
        f" ({len(view.candidates)} candidates, {view.waiting_behind} behind)"
    )
    for trial in view.trials:
        said = "certainly no better"
        if trial.objective_seconds is not None and trial.mean_seconds is not None:
            said = f"sum of ends {seconds(trial.objective_seconds)} s, "
            said += f"mean {seconds(trial.mean_seconds)} s"
        yield f"    {trial.evicted} evicted: {said}"
    if view.evicted:
        yield f"    keep waiting: {', '.join(view.evicted)}"


def trial_text(trial: CapacityTrial) -> str:
    """Return one line about a trial."""
    verdict = "enough" if trial.enough else "too few"
    return f"{trial.nodes} nodes: ACT {seconds(trial.act_seconds)} s, {verdict}"


def plan_table(answer: CapacityAnswer, cores: int) -> Table:
    """Return what was tried, fewest nodes first, and the answer as title."""
    found = "not even the most nodes are enough"
    if answer.nodes is not None:
        found = f"fewest nodes with {cores} cores each: {answer.nodes} (simulated)"
    table = Table(title=found, title_justify="left")
    for name in ("nodes", "cores", "ACT, s", "granted"):
        table.add_column(name, justify="right")
    table.add_column("")
    longest = max(trial.act_seconds for trial in answer.trials)
    for trial in sorted(answer.trials, key=lambda trial: trial.nodes):
        bar = "█" * max(1, round(40 * trial.act_seconds / longest))
        table.add_row(
            str(trial.nodes),
            f"{trial.nodes * cores:,}",
            seconds(trial.act_seconds),
            f"{trial.granted:.1%}",
            f"[{'green' if trial.enough else 'red'}]{bar}[/]",
        )
    return table


#: Module of the evaluation's verb. The installed distribution does not contain it.
EVALUATION: Final = "benchmarks.evaluation.commands"
#: Columns of a table that goes into a pipe: it is never cut.
PIPE_WIDTH: Final = 200


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def verbs() -> None:
    """Simulate: the production scheduler and ledgers in virtual time, trainers and nodes modelled.

    TRACE: recorded coding agents (JSON lines), for deep-search and mopd recorded LLM requests (CSV);
    without it they are made up. For recorded the journal of another run (JSON lines). Traces of
    other systems are read, too (docs/traces.md).
    """


@verbs.command("run")
@click.option("--policy", default=DEFAULT_POLICY, show_default=True, help="How units are granted.")
@click.option(
    "--journal", type=click.Path(path_type=Path), help="Write the journal there, for `recorded`."
)
@with_options
@with_replay_options
def run_command(policy: str, journal: Path | None, **options: Any) -> None:
    """Simulate under one policy; with --as-replay, predict what `tangram replay` would report."""
    if options["as_replay"]:
        _predict((policy,), journal=journal, **options)
    else:
        _simulate([policy], journal=journal, **_without_replay(options))


@verbs.command("compare")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="POLICY",
    help="Give several [all that there are].",
)
@with_options
@with_replay_options
def compare_command(policies: tuple[str, ...], **options: Any) -> None:
    """Simulate under several policies, on the same draws."""
    if options["as_replay"]:
        _predict(policies or compared_policies(), **options)
    else:
        _simulate(policies or compared_policies(), **_without_replay(options))


@verbs.command("plan")
@click.option("--policy", default=DEFAULT_POLICY, show_default=True, help="How units are granted.")
@click.option("--act", "act_seconds", type=float, required=True, help="Wished ACT in seconds.")
@click.option("--measure", type=click.Choice(list(MEASURES)), default="mean", show_default=True)
@click.option("--of-rewards", is_flag=True, help="ACT of rewards alone.")
@with_options
def plan_command(
    policy: str, act_seconds: float, measure: str, of_rewards: bool, **options: Any
) -> None:
    """Find how few nodes fulfil a wished ACT; --nodes is the most that may be.

    Exit code 1 when not even they are enough.
    """
    as_json, quiet = options.pop("as_json"), options.pop("quiet")
    with one_line_errors():
        wish, scene = Wish(act_seconds, measure, of_rewards), _scene(**options)
        say = None if quiet else lambda trial: click.echo(trial_text(trial), err=True)
        answer = fewest_nodes(scene, policy, wish, scene.cluster.nodes, say)
    if as_json:
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    else:
        print_tables(plan_table(answer, scene.cluster.cores))
    if answer.nodes is None:
        sys.exit(1)


@verbs.command("decisions")
@click.argument("journal", type=click.Path(path_type=Path))
@click.option("--resource", help="Only about this one, as in cpu:n000.")
@click.option("--action", help="Only those that looked at this action.")
@click.option("--starts", is_flag=True, help="How often ranges of predicted starts held, instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def decisions_command(
    journal: Path, resource: str | None, action: str | None, starts: bool, as_json: bool
) -> None:
    """Decide a stored journal again: what policies saw, tried and chose.

    Exit code 1 when other decisions come out than the journal has.
    """
    others, lines = 0, list[str]()
    calibration = StartCalibration() if starts else None
    with one_line_errors():
        for decided in replay_journal(read_journal(journal), calibration):
            others += not decided.same
            for view in decided.arranged:
                if resource in (None, view.resource) and (
                    action is None or action in view.candidates
                ):
                    lines_of = (
                        [msgspec.json.encode(view).decode()] if as_json else decision_text(view)
                    )
                    lines += lines_of
    if calibration is not None:
        rates = calibration.hit_rates().items()
        lines = [f"{name}: {rate:.1%} of {count} ranges held" for name, (rate, count) in rates]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    if others:
        click.echo(f"tangram sim: {others} entries were decided otherwise then", err=True)
        sys.exit(1)


def main() -> None:
    """Run the command line."""
    end_on_signal()
    add_evaluation()
    verbs(prog_name="tangram sim")


def add_evaluation() -> None:
    """Add the verb ``report`` and the evaluation's baselines where the repository has them."""
    if find_spec("benchmarks") is not None:
        verbs.add_command(import_module(EVALUATION).report_command)


def prediction_table(predictions: Iterable[ReplayPrediction]) -> Table:
    """Return the predicted mean and p95 of the ACT with their intervals; one row for each policy."""
    table = Table(title="ACT of the replay, predicted seconds", title_justify="left")
    for name in ("policy", "mean", "from", "to", "p95", "from", "to"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for each in predictions:
        cells = (
            text
            for interval in (each.mean, each.p95)
            for text in (
                "-" if interval.value is None else seconds(interval.value),
                seconds(interval.least),
                seconds(interval.most),
            )
        )
        table.add_row(each.policy, *cells)
    return table


@contextmanager
def one_line_errors(program: str = "tangram sim") -> Iterator[None]:
    """End with exit code 2 when the input is bad, 1 when the simulation itself is."""
    try:
        yield
    except (InvalidRequest, TraceError, InvariantViolation) as error:
        click.echo(f"{program}: {error}", err=True)
        sys.exit(1 if isinstance(error, InvariantViolation) else 2)


def _simulate(
    policies: Sequence[str],
    *,
    as_json: bool,
    quiet: bool,
    journal: Path | None = None,
    **options: Any,
) -> None:
    with one_line_errors():
        check_policies(policies)
        scene = _scene(**options)
        shown = _shown(scene.workload.actions, quiet=quiet)
        with shown as progress, _journalled(journal) as watch:
            timed = list(compare(scene, policies, progress, watch))
    if as_json:
        sys.stdout.write(encode([each.result for each in timed]).decode())
    else:
        print_tables(*tables(timed))


@contextmanager
def _journalled(path: Path | None) -> Iterator[Watch | None]:
    """Write a journal that is there once it is whole."""
    if path is None:
        yield None
        return
    if path.is_dir():
        raise InvalidRequest(f"{path}: Is a directory")
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            yield JournalWriter(file)
        part.replace(path)
    except OSError as error:
        raise InvalidRequest(f"{part}: {error.strerror}") from None
    finally:  # whatever ends it, Ctrl-C and SIGTERM as well
        with suppress(OSError):
            part.unlink()


def _scene(workload: str, **options: Any) -> Scene:
    context = click.get_current_context()
    if (option := foreign(workload, _given(context, options))) is not None:
        raise InvalidRequest(f"--{option.replace('_', '-')} is no option of {workload}")
    scene = build(workload, **options)
    say_assumed(scene.assumed)
    return scene


def _given(context: click.Context, names: Iterable[str]) -> set[str]:
    """Return those of the options that stand on the command line."""
    none = {None, click.core.ParameterSource.DEFAULT}
    return {name for name in names if context.get_parameter_source(name) not in none}


def _without_replay(options: dict[str, Any]) -> dict[str, Any]:
    """Return the other options. Ends the program when one of a replay was given."""
    given = _given(click.get_current_context(), OWN)
    with one_line_errors():
        for name in sorted(given):
            raise InvalidRequest(f"--{name.replace('_', '-')} is an option of --as-replay")
    return {name: value for name, value in options.items() if name not in {*OWN, "as_replay"}}


def _predict(
    policies: Sequence[str], *, as_json: bool, quiet: bool, journal: Path | None = None,
    **options: Any,
) -> None:  # fmt: skip
    """Predict a replay under each policy, and print the predictions with the simulations behind them."""
    context = click.get_current_context()
    with one_line_errors():
        check_policies(policies)
        replay = build_replay(_given(context, (*options, "journal")), journal=journal, **options)
        check_replayed_policies(policies)
        if replay.policy and not _given(context, ("policy", "policies")):
            policies = (replay.policy,)
        say_assumed(replay.scene.assumed)
        say_calibration(replay.costs)
        with _shown(replay.scene.workload.actions, quiet=quiet) as progress:
            found = [predict(replay.scene, policy, replay.costs, progress) for policy in policies]
    if as_json:
        text = msgspec.json.format(msgspec.json.encode([each for each, _ in found]), indent=2)
        sys.stdout.write(text.decode() + "\n")
    else:
        print_tables(
            prediction_table([each for each, _ in found]), *tables([each for _, each in found])
        )


def say_calibration(costs: ReplayCosts) -> None:
    """Say on standard error how old the calibration is, and what is wrong with it."""
    if costs.age_seconds is not None:
        click.echo(f"tangram sim: calibrated {age_text(costs.age_seconds)} ago", err=True)
    for warning in costs.warnings:
        click.echo(f"tangram sim: {warning}", err=True)


def say_assumed(assumed: Iterable[str]) -> None:
    """Say on standard error what a trace lacks and what stands in its place."""
    for sentence in assumed:
        click.echo(f"tangram sim: assumed of the trace: {sentence}", err=True)


def print_tables(*parts: Table) -> None:
    """Print tables on standard output, uncut into a pipe."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    console.print(*parts, sep="\n")


@contextmanager
def _shown(actions: int, *, quiet: bool) -> Iterator[Progress | None]:
    """Show how many actions have finished under each policy, on standard error."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Bars(*columns, TimeRemainingColumn(), console=console) as bars:
        shown = {}

        def progress(policy: str, done: int) -> None:
            if policy not in shown:
                shown[policy] = bars.add_task(policy, total=actions)
            bars.update(shown[policy], completed=done)

        yield progress
