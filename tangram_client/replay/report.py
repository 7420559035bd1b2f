"""Report of a replay: completion times and their parts, throughput, use of the cores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from rich.console import RenderableType
from rich.table import Table

from tangram_client.replay.tally import ReplayTally

PARTS: Final = ("act", "queue", "overhead", "execution")


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, linearly between the two nearest ones.

    Raises ValueError for an empty sequence.
    """
    if not ordered:
        raise ValueError("there is no quantile of nothing")
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The spread of one part of the completion time, in seconds."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        ordered = sorted(values)
        if not ordered:
            return None
        mean = sum(ordered) / len(ordered)
        return cls(mean, *(quantile(ordered, share) for share in (0.5, 0.95, 0.99)))


@dataclass(frozen=True, slots=True)
class Report:
    """The end of a replay. A share is of all core-seconds there were: cores × wall time."""

    trajectories_done: int
    trajectories_failed: int
    failures: dict[str, int]
    actions: int
    outcomes: dict[str, int]
    nonzero_exits: int
    seconds: dict[str, Quantiles | None]
    wall_seconds: float
    actions_per_second: float
    cores: float
    granted_core_seconds: float
    used_core_seconds: float
    granted_share: float | None
    used_share: float | None
    #: It was stopped before its end.
    stopped: bool = False
    #: Actions that were under way then; finishing their trajectories cancelled them.
    abandoned: int = 0

    @classmethod
    def of(
        cls, tally: ReplayTally, *, wall_seconds: float, cores: float, stopped: bool = False
    ) -> Self:
        """Sum a replay up."""
        granted, used = tally.granted_core_seconds, tally.used_core_seconds
        there = cores * wall_seconds
        parts = {
            part: Quantiles.of(getattr(timing, f"{part}_seconds") for timing in tally.samples)
            for part in PARTS
        }
        return cls(
            trajectories_done=tally.trajectories_done,
            trajectories_failed=tally.failures.total(),
            failures=dict(tally.failures.most_common()),
            actions=tally.finished,
            outcomes=dict(tally.outcomes.most_common()),
            nonzero_exits=tally.nonzero_exits,
            seconds=parts,
            wall_seconds=wall_seconds,
            actions_per_second=tally.finished / wall_seconds if wall_seconds > 0 else 0.0,
            cores=cores,
            granted_core_seconds=granted,
            used_core_seconds=used,
            granted_share=granted / there if there > 0 else None,
            used_share=used / there if there > 0 else None,
            stopped=stopped,
            abandoned=tally.submitted - tally.finished,
        )

    @property
    def clean(self) -> bool:
        """Everything was played, and everything completed."""
        return not (self.stopped or self.failures or set(self.outcomes) - {"completed"})

    def body(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    def tables(self) -> list[RenderableType]:
        """Return the report as tables."""
        return [self._spread(), self._sums()]

    def _spread(self) -> Table:
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("seconds", no_wrap=True)
        for name in ("mean", "p50", "p95", "p99"):
            table.add_column(name, justify="right")
        for part in PARTS:
            spread = self.seconds[part]
            values = ["–"] * 4 if spread is None else [f"{v:.4f}" for v in asdict(spread).values()]
            table.add_row("ACT" if part == "act" else f"  {part}", *values)
        return table

    def _sums(self) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        counts = ", ".join(f"{count} {name}" for name, count in self.outcomes.items())
        exits = (
            f" ({self.nonzero_exits} with another exit code than 0)" if self.nonzero_exits else ""
        )
        left = f", {self.abandoned} not awaited" if self.abandoned else ""
        table.add_row("actions", f"{self.actions}: {counts or 'none'}{exits}{left}")
        failed = f", {self.trajectories_failed} failed" if self.trajectories_failed else ""
        stopped = ", stopped early" if self.stopped else ""
        table.add_row("trajectories", f"{self.trajectories_done} played{failed}{stopped}")
        for text, count in self.failures.items():
            table.add_row("", f"{count} × {text}", style="red")
        table.add_row("wall time", f"{self.wall_seconds:.1f} s")
        table.add_row("throughput", f"{self.actions_per_second:.1f} actions/s")
        table.add_row("cores", f"{self.cores:g}")
        table.add_row("granted", _share(self.granted_core_seconds, self.granted_share))
        table.add_row("used", _share(self.used_core_seconds, self.used_share))
        return table


def _share(core_seconds: float, share: float | None) -> str:
    percent = "" if share is None else f" = {share:.1%} of all"
    return f"{core_seconds:.1f} core-seconds{percent}"
