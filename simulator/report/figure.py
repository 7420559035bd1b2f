"""What a report is made of: plans of figures, and figures as values that become JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from simulator.report.cases import Case, Inputs, Scale
from simulator.report.runs import Results
from simulator.result import Result

Measure = Callable[[Result], float]


class Interval(msgspec.Struct, frozen=True):
    """A mean over seeds, with the smallest and the largest."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.mean:.3g}"
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


class Series(msgspec.Struct, frozen=True):
    """One line, or one colour of bars."""

    name: str
    points: tuple[tuple[float | str, Interval], ...]


class Claim(msgspec.Struct, frozen=True):
    """What the paper says, and what came out here."""

    what: str
    #: As the paper prints it; None where it prints no number, or says nothing.
    paper: str | None
    ours: Interval
    note: str = ""
    #: ``higher`` or ``lower``: which way is better than the paper; empty where neither is.
    better: str = ""

    @property
    def verdict(self) -> str:
        """Say how ours stands to the number that the paper prints; empty where that says nothing."""
        return self.against(self.paper)

    def against(self, paper: str | None) -> str:
        """Say how ours stands to what the paper prints of its own policy."""
        found = re.search(r"\d+(\.\d+)?", paper or "")
        if found is None or not self.better:
            return ""
        wanted = float(found[0])
        short = wanted - self.ours.mean if self.better == "higher" else self.ours.mean - wanted
        if short <= 0:
            return "reached"
        return f"falls short: {self.ours.mean / wanted:.2f} times the paper's"


#: Our policies; what is claimed of the first one is what the paper claims.
OURS: Final = ("paper", "balanced", "malleable")


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure or table of the paper, simulated again."""

    id: str
    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    claims: tuple[Claim, ...] = ()
    notes: str = ""
    kind: str = "lines"
    log_y: bool = False


#: One line of a figure: its name, and the cases of each of its points.
Grid = dict[str, list[tuple[float | str, list[Case]]]]


@dataclass(frozen=True)
class Context:
    """What a figure is made from."""

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
            series=tuple(
                Series(name, tuple((x, context.measured(some, self.measure)) for x, some in line))
                for name, line in grid.items()
            ),
            claims=tuple(self.claims(context, grid)),
            notes=self.notes,
            kind=self.kind,
            log_y=self.log_y,
        )


def point(grid: Grid, name: str, x: float | str) -> list[Case]:
    """Return the cases of one point."""
    return next(cases for at, cases in grid[name] if at == x)


def interval(values: Iterable[float]) -> Interval:
    """Return the mean of ``values`` and their bounds."""
    known = list(values)
    return Interval(sum(known) / len(known), min(known), max(known))


def act(result: Result) -> float:
    """Return the mean ACT of all actions."""
    return result.whole.act.mean


def trajectory_act(result: Result) -> float:
    """Return the mean sum of ACTs of a trajectory, which ARL-Tangram §6.3 reports."""
    return result.trajectory_act.mean


def step(result: Result) -> float:
    """Return the mean step duration."""
    return sum(result.step_seconds) / len(result.step_seconds)
