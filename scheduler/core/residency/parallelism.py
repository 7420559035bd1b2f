"""Choice of a degree of parallelism: a profile and the load of a stage in, a degree and its reason out. Pure.

Rules
1. *Memory.* A degree survives a context and a number of responses if a measured cell with at least both ran, and no cell with at
   most both ran out of memory. What lies beyond all measured cells does not survive. So nothing is guessed about memory.
2. *Reach.* The longest context of the next step is the longest one so far times `SelectorSpec.growth`, at most the declared limit. A
   degree that does not survive the reach is never chosen. If none survives it, the present one stays, and the choice says so.
3. *Speed.* Tokens per GPU and second between measured cells are linear in log2 of the context and of the responses; outside of
   the measured range the nearest cell counts.
4. *Hysteresis.* A faster degree is taken only if it is faster from context / (1 + hysteresis) to context · (1 + hysteresis), and
   survives a reach that is as much longer. That context is a mean over some steps (`smoothed`). Noise of a context about the border
   of two ranges changes nothing.
5. *Cost.* The gain of the next stage, with what staying has lost since the faster degree was found, exceeds the cost of a
   switch: at once for a large gain, later for a small one that lasts. So waiting never loses more than a switch costs.
6. A degree that does not survive is left at once, whatever that costs. The first choice is free: nothing runs yet.
7. A pinned degree is used; one that would run out of memory is set aside until it survives, unless the pin is forced.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

import msgspec

from domain.errors import InvalidRequest, NeverFits
from domain.selectors import (
    Parallelism,
    ParallelismProfile,
    ProfileCell,
    SelectorSpec,
    SelectorStage,
    StageLoad,
)

#: Codes of choices: nothing is measured, none survives, pinned, pinned without regard to memory.
UNMEASURED, NONE_SURVIVES, PINNED, FORCED = "unmeasured", "none_survives", "pinned", "forced"
#: The first one, left for memory, faster by more than a switch costs, the fastest already, within the hysteresis, or gains too little.
FIRST, MEMORY, FASTER, FASTEST, HYSTERESIS, TOO_DEAR = (
    "first", "memory", "faster", "fastest", "hysteresis", "too_dear",
)  # fmt: skip
#: Weight of a step in the mean context, and the factor beyond which a step is no noise but a new range.
_WEIGHT, _NEW_RANGE = 0.25, 2.0
#: Choices that leave the present degree because of the load.
MOVES = frozenset({FIRST, MEMORY, FASTER})


class Pin(msgspec.Struct, frozen=True, omit_defaults=True):
    """A degree that is to be used."""

    parallelism: Parallelism
    #: Although it would run out of memory.
    forced: bool = False


class ParallelismStanding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a choice needs to know of those before it."""

    #: Degree in force; None: nothing was chosen yet.
    current: Parallelism | None = None
    #: Longest context so far.
    longest: float = 0.0
    #: Seconds that staying has lost since a faster degree was found.
    lost_seconds: float = 0.0
    #: Mean context over the latest steps; 0.0: none was seen.
    context: float = 0.0


class ParallelismChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A choice with its reason; ``parallelism`` None: there is none, and none was in force."""

    parallelism: Parallelism | None
    code: str
    why: str
    #: Degree that was in force before.
    former: Parallelism | None = None
    #: Speed of ``parallelism`` over that of ``former``, less 1; 0.0 where it stays or one is unknown.
    gain: float = 0.0
    #: Seconds of the next stage that it saves.
    gain_seconds: float = 0.0
    #: Of a switch to ``parallelism``; 0.0 where it stays.
    switch_seconds: float = 0.0
    #: Longest context that the next step may reach.
    reach: float = 0.0
    #: What the next choice needs to know.
    standing: ParallelismStanding = ParallelismStanding()

    @property
    def switched(self) -> bool:
        """Whether another degree is in force than before."""
        return self.parallelism != self.former


class ProfileTable:
    """The cells of one stage, by degree."""

    def __init__(self, profile: ParallelismProfile, stage: SelectorStage) -> None:
        self._ran: dict[Parallelism, list[ProfileCell]] = {}
        self._failed: dict[Parallelism, list[ProfileCell]] = {}
        self.revision = profile.revision
        for cell in profile.cells:
            if cell.stage is stage:
                side = self._failed if cell.oom else self._ran
                side.setdefault(cell.parallelism, []).append(cell)
        self._switches = {(each.origin, each.to): each.seconds for each in profile.switches}

    def __bool__(self) -> bool:
        """Whether anything ran."""
        return bool(self._ran)

    def survives(self, degree: Parallelism, context: float, responses: int) -> bool:
        """Return whether ``degree`` is known to have the memory (rule 1)."""
        return not any(
            cell.context <= context and cell.responses <= responses
            for cell in self._failed.get(degree, ())
        ) and any(
            cell.context >= context and cell.responses >= responses
            for cell in self._ran.get(degree, ())
        )

    def rate(self, degree: Parallelism, context: float, responses: int) -> float | None:
        """Return tokens per GPU and second (rule 3); None: the degree was not measured."""
        rows: dict[int, list[tuple[float, float]]] = {}
        for cell in self._ran.get(degree, ()):
            assert cell.tokens_per_gpu_second is not None
            row = rows.setdefault(cell.responses, [])
            row.append((log2(cell.context), cell.tokens_per_gpu_second))
        if not rows:
            return None
        at = log2(max(1.0, context))
        across = [(log2(count), _between(sorted(row), at)) for count, row in sorted(rows.items())]
        return _between(across, log2(max(1, responses)))

    def contexts(self, low: float, high: float) -> list[float]:
        """Return the measured contexts between ``low`` and ``high``, rising."""
        found = {cell.context for cells in self._ran.values() for cell in cells}
        return sorted(float(each) for each in found if low < each < high)

    def switch_seconds(self, former: Parallelism | None, to: Parallelism) -> float | None:
        """Return the measured seconds of a switch; None: it was not measured."""
        exact = self._switches.get((former, to))
        return self._switches.get((None, to)) if exact is None else exact


def _between(points: Sequence[tuple[float, float]], at: float) -> float:
    """Return the value at ``at`` on straight lines between rising points, and the nearest value outside."""
    below = points[0]
    for point in points:
        if point[0] >= at:
            if point[0] == below[0] or at <= below[0]:
                return point[1] if at >= point[0] else below[1]
            part = (at - below[0]) / (point[0] - below[0])
            return below[1] + part * (point[1] - below[1])
        below = point
    return below[1]


def reach_of(spec: SelectorSpec, load: StageLoad, longest: float) -> float:
    """Return the longest context that the next step may reach (rule 2)."""
    seen = max(load.longest, longest)
    grown = seen * spec.growth
    return (
        grown if spec.context_limit is None else max(load.longest, min(grown, spec.context_limit))
    )


def smoothed(former: float, context: float) -> float:
    """Return the mean context with one more step: a geometric mean, in which older steps fade; a leap begins it again."""
    if former <= 0.0 or not 1.0 / _NEW_RANGE < context / former < _NEW_RANGE:
        return context
    return float(former * (context / former) ** _WEIGHT)


def survivors(
    spec: SelectorSpec, table: ProfileTable, reach: float, responses: int
) -> list[Parallelism]:
    """Return the degrees of ``spec`` that have the memory."""
    return [each for each in spec.degrees if table.survives(each, reach, responses)]


def choose(
    spec: SelectorSpec,
    table: ProfileTable,
    load: StageLoad,
    standing: ParallelismStanding,
    *,
    pin: Pin | None = None,
    restore_seconds: float | None = None,
) -> ParallelismChoice:
    """Return the degree of the next stage. ``restore_seconds`` of the service, as measured, where the profile has no cost of a switch."""
    reach = reach_of(spec, load, standing.longest)
    seen = msgspec.structs.replace(
        standing,
        longest=max(load.longest, standing.longest),
        context=smoothed(standing.context, load.context),
    )
    chooser = _Chooser(spec, table, load, seen, reach, restore_seconds)
    return chooser.choose(pin)


class _Chooser:
    """One choice."""

    def __init__(
        self,
        spec: SelectorSpec,
        table: ProfileTable,
        load: StageLoad,
        standing: ParallelismStanding,
        reach: float,
        restore_seconds: float | None,
    ) -> None:
        self._spec, self._table, self._load = spec, table, load
        self._standing, self._reach, self._restore = standing, reach, restore_seconds
        self._current = standing.current
        self._alive = survivors(spec, table, reach, load.responses)
        self._context = standing.context
        self._at = f"{self._context:,.0f} tokens × {load.responses:,} responses"
        self._far = (
            f"{reach:,.0f} tokens × {load.responses:,} responses, which the next step may reach"
        )

    def choose(self, pin: Pin | None) -> ParallelismChoice:
        current = self._current
        if pin is not None and (pin.forced or pin.parallelism in self._alive or not self._table):
            code = FORCED if pin.forced else PINNED
            return self._take(pin.parallelism, code, f"it is pinned to {pin.parallelism}")
        beside = f"the pinned {pin.parallelism} would run out of memory; " if pin else ""
        if not self._table:
            return self._keep(UNMEASURED, "no cell of this stage is measured")
        if not self._alive:
            return self._keep(NONE_SURVIVES, f"{beside}no degree is known to survive {self._far}")
        best = self._best(self._alive)
        if current is None:
            why = f"{beside}{best} is the fastest of those that survive {self._far}"
            return self._take(best, FIRST, why)
        if current not in self._alive:
            why = f"{beside}{current} is not known to survive {self._far}; {best} is"
            return self._take(best, MEMORY, why)
        return self._compare(current, best, beside)

    def _compare(self, current: Parallelism, best: Parallelism, beside: str) -> ParallelismChoice:
        if best == current or self._gain(current, best) <= 0.0:
            why = f"{beside}{current} is the fastest of those that survive, at {self._at}"
            return self._keep(FASTEST, why)
        beyond = [
            each for each in self._alive if each != current and self._is_beyond(current, each)
        ]
        if not beyond:
            why = (
                f"{beside}{best} is {self._gain(current, best):.1%} faster at {self._at}, but not over"
                f" the whole hysteresis of {self._spec.hysteresis:.0%} about it"
            )
            return self._keep(HYSTERESIS, why, lost=self._standing.lost_seconds)
        best = self._best(beyond)
        saved, cost = self._saved(current, best), self._cost(best)
        lost = self._standing.lost_seconds
        found = f"{best} is {self._gain(current, best):.1%} faster than {current} at {self._at}"
        if saved + lost > cost:
            since = f" with {lost:.1f} s lost so far" if lost else ""
            why = f"{beside}{found}: {saved:.1f} s of the next stage{since}, a switch costs {cost:.1f} s"
            return self._take(best, FASTER, why)
        why = f"{beside}{found}, but saves {saved:.1f} s of a stage and a switch costs {cost:.1f} s"
        return self._keep(TOO_DEAR, why, lost=lost + saved)

    def _best(self, degrees: Sequence[Parallelism]) -> Parallelism:
        """Return the fastest of ``degrees`` at the load; of equal ones the first."""
        return max(degrees, key=lambda each: self._rate(each) or 0.0)

    def _rate(self, degree: Parallelism, context: float = 0.0) -> float | None:
        return self._table.rate(degree, context or self._context, self._load.responses)

    def _gain(self, former: Parallelism | None, to: Parallelism) -> float:
        """Return by how much ``to`` is faster (Equation 1 of EARL, as a fraction)."""
        before = None if former is None else self._rate(former)
        after = self._rate(to)
        return 0.0 if before is None or after is None else after / before - 1.0

    def _saved(self, former: Parallelism | None, to: Parallelism) -> float:
        """Return the seconds of the next stage that ``to`` saves, on the GPUs of the largest degree."""
        before = None if former is None else self._rate(former)
        after = self._rate(to)
        if before is None or after is None:
            return 0.0
        gpus = max(each.gpus for each in self._spec.degrees)
        return self._load.work_tokens / gpus * (1.0 / before - 1.0 / after)

    def _cost(self, to: Parallelism) -> float:
        measured = self._table.switch_seconds(self._current, to)
        if measured is None:
            measured = self._restore
        return self._spec.switch_seconds if measured is None else measured

    def _is_beyond(self, current: Parallelism, other: Parallelism) -> bool:
        """Return whether ``other`` is faster over the whole hysteresis, and survives beyond it (rule 4)."""
        wide = 1.0 + self._spec.hysteresis
        low, high = self._context / wide, self._context * wide
        far = self._reach * wide
        limit = self._spec.context_limit
        if limit is not None:
            far = min(far, max(limit, self._reach))
        if not self._table.survives(other, far, self._load.responses):
            return False
        for context in (low, *self._table.contexts(low, high), self._context, high):
            before, after = self._rate(current, context), self._rate(other, context)
            if before is None or after is None or after <= before:
                return False
        return True

    def _keep(self, code: str, why: str, *, lost: float = 0.0) -> ParallelismChoice:
        standing = msgspec.structs.replace(self._standing, lost_seconds=lost)
        current = self._current
        return ParallelismChoice(current, code, why, current, reach=self._reach, standing=standing)

    def _take(self, to: Parallelism, code: str, why: str) -> ParallelismChoice:
        former = self._current
        if to == former:
            return self._keep(code, why)
        standing = msgspec.structs.replace(self._standing, current=to, lost_seconds=0.0)
        return ParallelismChoice(
            to, code, why, former,
            gain=self._gain(former, to),
            gain_seconds=self._saved(former, to),
            switch_seconds=0.0 if former is None else self._cost(to),
            reach=self._reach,
            standing=standing,
        )  # fmt: skip


def check_pin(
    spec: SelectorSpec,
    table: ProfileTable | None,
    load: StageLoad | None,
    longest: float,
    pin: Pin,
) -> None:
    """Raise InvalidRequest for a degree that is no candidate, NeverFits for one that would run out of memory and is not forced."""
    if pin.parallelism not in spec.degrees:
        known = ", ".join(map(str, spec.degrees))
        raise InvalidRequest(
            f"{pin.parallelism} is not among its degrees {known}", pointer="/parallelism"
        )
    if pin.forced or load is None or not table:
        return
    reach = reach_of(spec, load, longest)
    if not table.survives(pin.parallelism, reach, load.responses):
        raise NeverFits(
            f"{pin.parallelism} is not known to survive {reach:,.0f} tokens × {load.responses:,} responses, which the"
            " next step may reach: give force to pin it nevertheless",
            pointer="/parallelism",
        )
