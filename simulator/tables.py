"""Results as tables on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.table import Table

from domain.advice import PolicyDecision
from simulator.capacity import CapacityAnswer, CapacityTrial
from simulator.compare import Timed
from simulator.result import Result, ResultPart

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
    for name in ("actions", "mean", "p50", "p95", "p99", "queue", "overhead", "execution"):
        table.add_column(name, justify="right")
    for each in timed:
        part = part_of(each.result)
        if part is not None:
            act = part.act
            numbers = (
                act.mean, act.p50, act.p95, act.p99,
                part.queue.mean, part.overhead.mean, part.execution.mean,
            )  # fmt: skip
            table.add_row(each.result.policy, f"{part.actions:,}", *map(seconds, numbers))
    return table


def _runs(timed: Sequence[Timed]) -> Table:
    table = Table(title="runs, simulated", title_justify="left")
    table.add_column("policy")
    for name in (
        "ACT of a trajectory", "step", "granted", "efficiency", "restores", "not completed",
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
            seconds(sum(steps) / len(steps)) if steps else "-",
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
