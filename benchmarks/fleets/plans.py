"""Plans of Heddle's figures: the cases that a figure needs, and its series and claims from their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.fleets.cases import FIXED, Compared, FleetCase
from simulator.figures import Claim, Figure, Interval, Series
from tangram_client.traces.recording import Recording

WORKLOADS: Final = ("coding", "search", "math")
MODELS: Final = ("8B", "14B", "32B")
#: Degrees of the baselines (Heddle §7.1).
BASELINE_DEGREES: Final = {"8B": FIXED["Fix-1"], "14B": FIXED["Fix-1"], "32B": FIXED["Fix-2"]}
#: The paper's baselines as policies.
BASELINES: Final = {"Verl": "rr+cache", "Verl*": "rr+hybrid", "Slime": "rr+least"}
#: Correlation of the modelled predictor in these figures; the paper's fine-tuned model is not available.
PREDICTOR: Final = "good"
#: Part of a batch that is left when ours folds; the generations that run go on at the wide worker.
FOLD: Final = 0.5
ASSUMED: Final = (
    "Simulated: engine, lengths and predictor are modelled; 8 GPUs instead of 64. Search and math are declared, coding"
    " follows the trace. Caches have 5 % of their bytes, so that slots bind and memory does not."
)


@dataclass(frozen=True)
class FleetScale:
    """The size of a report: seeds, and trajectories of a GPU (the paper's: 100)."""

    name: str
    seeds: int
    per_gpu: int

    def of(self, case: FleetCase) -> FleetCase:
        """Return a case at this size; slots shrink with the batch."""
        share = self.per_gpu / 100
        return replace(case, per_gpu=self.per_gpu, slots=max(2, round(case.slots * share)))


@dataclass(frozen=True)
class FleetContext:
    """What figures are made from."""

    scale: FleetScale
    recordings: Sequence[Recording]
    compared: Compared


Drawn = tuple[tuple[Series, ...], tuple[Claim, ...]]


def no_cases(scale: FleetScale) -> list[FleetCase]:
    """Need no simulation."""
    return []


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """A figure before its cases were simulated."""

    id: str
    title: str
    x: str
    y: str
    draw: Callable[[FleetContext], Drawn]
    cases: Callable[[FleetScale], Iterable[FleetCase]] = no_cases
    kind: str = "lines"
    log_y: bool = False
    notes: str = ASSUMED

    def figure(self, context: FleetContext) -> Figure:
        """Return the figure."""
        series, claims = self.draw(context)
        return Figure(
            id=self.id, title=self.title, x=self.x, y=self.y, series=series, claims=claims,
            notes=self.notes, kind=self.kind, log_y=self.log_y,
        )  # fmt: skip


def between(
    what: str, printed: tuple[str, str], found: Mapping[str, Interval], note: str = ""
) -> list[Claim]:
    """Claim the least and the greatest of several speedups, as the paper prints a range."""
    least = min(found, key=lambda name: found[name].mean)
    most = max(found, key=lambda name: found[name].mean)
    return [
        Claim(f"{what}, least", printed[0], found[least], f"{least}; {note}".strip("; "), "higher"),
        Claim(
            f"{what}, greatest", printed[1], found[most], f"{most}; {note}".strip("; "), "higher"
        ),
    ]
