"""Plans of figures: the cases that a figure needs, and the claims that follow from their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.evaluation.cases import Case, Inputs, Scale
from benchmarks.evaluation.runs import Results
from simulator.figures import Claim, Figure, Interval, Series, interval
from simulator.result import Result

Measure = Callable[[Result], float]
#: None where a result has no such number.
OptionalMeasure = Callable[[Result], float | None]

#: One line of a figure: its name, and the cases of each of its points.
Grid = dict[str, list[tuple[float | str, list[Case]]]]


@dataclass(frozen=True)
class Context:
    """Inputs and results that a figure is made from."""

    scale: Scale
    inputs: Inputs
    results: Results

    def measured(self, cases: Sequence[Case], measure: Measure) -> Interval:
        """Return ``measure`` over the seeds of one case."""
        return interval(measure(self.results[case]) for case in cases)

    def ratio(self, above: Sequence[Case], below: Sequence[Case], measure: Measure) -> Interval:
        """Return how many times ``measure`` is larger ``above`` than ``below``, seed by seed."""
        return interval(
            measure(self.results[a]) / measure(self.results[b])
            for a, b in zip(above, below, strict=True)
        )


def no_claims(context: Context, grid: Grid) -> list[Claim]:
    """Claim nothing."""
    return []


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A figure before its cases were simulated: a measure over a grid of cases, and claims."""

    id: str
    title: str
    x: str
    y: str
    grid: Callable[[Scale], Grid]
    measure: Measure
    claims: Callable[[Context, Grid], list[Claim]] = no_claims
    notes: str = ""
    kind: str = "lines"
    log_y: bool = False
    #: In place of ``measure``: what a table shows of the cases of each line.
    columns: Mapping[str, OptionalMeasure] = field(default_factory=dict)
    #: Returns what is drawn, where a point is not one measure of its cases.
    drawn: Callable[[Context, Grid], tuple[Series, ...]] | None = None

    def cases(self, scale: Scale) -> list[Case]:
        """Return what must be simulated."""
        return [case for line in self.grid(scale).values() for _, some in line for case in some]

    def figure(self, context: Context) -> Figure:
        """Return the figure, from the results of its cases."""
        grid = self.grid(context.scale)
        return Figure(
            id=self.id,
            title=self.title,
            x=self.x,
            y=self.y,
            series=(self.drawn or self._measured)(context, grid),
            claims=tuple(self.claims(context, grid)),
            notes=self.notes,
            kind=self.kind,
            log_y=self.log_y,
        )

    def _measured(self, context: Context, grid: Grid) -> tuple[Series, ...]:
        return tuple(
            Series(name, tuple(self._points(context, line))) for name, line in grid.items()
        )

    def _points(
        self, context: Context, line: list[tuple[float | str, list[Case]]]
    ) -> Iterator[tuple[float | str, Interval]]:
        if not self.columns:
            yield from ((x, context.measured(cases, self.measure)) for x, cases in line)
            return
        cases = [case for _, some in line for case in some]
        for name, measure in self.columns.items():
            values = [measure(context.results[case]) for case in cases]
            known = [value for value in values if value is not None]
            if known:
                yield name, interval(known)


def point(grid: Grid, name: str, x: float | str) -> list[Case]:
    """Return the cases of one point."""
    return next(cases for at, cases in grid[name] if at == x)


def act(result: Result) -> float:
    """Return the mean ACT of all actions."""
    return result.whole.act.mean


def trajectory_act(result: Result) -> float:
    """Return the mean sum of ACTs of a trajectory, which ARL-Tangram §6.3 reports."""
    return result.trajectory_act.mean


def step(result: Result) -> float:
    """Return the mean step duration."""
    return sum(result.step_seconds) / len(result.step_seconds)
