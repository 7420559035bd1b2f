"""Degrees: how many GPUs each worker of a fleet has, for the lengths that are expected (heddle, §6).

N GPUs are divided into workers of 1, 2, 4 or 8. Workers are sorted by descending degree and the arrangement of `arrange` is the cost of an
allocation; so an allocation is a multiset of degrees with sum N, and the number of workers is free (split and merge of Algorithm 2
change it).

`least_seconds` is exact without an enumeration. For a bound B each worker takes the most trajectories within B, so where a worker ends
depends on where it begins and on its degree alone. need(d, s), the GPUs that the trajectories from s on need when no degree is above d, is

    need(d, s) = min(need(next lower degree, s), d + need(d, end of a worker of degree d from s))

and B can be met if need(8, 0) ≤ N: n steps for each degree, whatever N is. GPUs that are not needed become workers of the lowest degree.
B is bisected between costs that exist, as in `arrange`. `anneal` is the paper's Algorithm 2: m free, ε = 10⁻³ · C₀, α = 0.97, a generator that
the caller seeds. `plan_degrees` takes the exact answer up to a budget of work, and Algorithm 2 above.

Exact means: for workers in descending order of degree (see `arrange`, rule 3). Lengths are tokens, tables seconds per token by degree; errors are
`InvalidRequest` with the pointer of the member.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from domain.errors import InvalidRequest
from placement.arrange import Presorted, SizeTable, check_tables
from placement.facts import DEGREES
from placement.profiles import FloatArray, IntArray

#: Threshold and cooling of Algorithm 2; the paper names neither.
EPSILON: Final = 1e-3
ALPHA: Final = 0.97
#: Trajectories × degrees up to which the exact answer is found.
BUDGET: Final = 200_000

Degrees = tuple[int, ...]


class DegreePlan(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Degrees for a batch, and whether they are worth a restart."""

    #: Descending.
    degrees: Degrees
    #: Estimated cost of the batch on them, in seconds.
    seconds: float
    #: False: of Algorithm 2.
    exact: bool
    #: Cost of the batch on the present degrees; None: there are none.
    current_seconds: float | None = None
    #: Seconds that a change takes.
    restart_seconds: float = 0.0

    @property
    def gain_seconds(self) -> float:
        """Return by how much the batch ends sooner, without the restart; inf where nothing runs."""
        return math.inf if self.current_seconds is None else self.current_seconds - self.seconds

    @property
    def worthwhile(self) -> bool:
        """Say whether the gain exceeds the restart."""
        return self.gain_seconds > self.restart_seconds


def plan_degrees(
    lengths: Sequence[float], gpus: int, tables: Mapping[int, SizeTable], generator: np.random.Generator, *,
    contexts: Sequence[float] | None = None, current: Degrees = (), restart_seconds: float = 0.0,
    budget: int = BUDGET,
) -> DegreePlan:  # fmt: skip
    """Return the degrees for a batch of these expected lengths; ``tables`` has those that workers may have.

    Raise InvalidRequest if ``gpus`` cannot be divided into them. ``current`` stays where nothing is better.
    """
    if not (math.isfinite(restart_seconds) and restart_seconds >= 0):
        wrong = (
            f"{restart_seconds!r} is no time of a restart: give the measured seconds, at least 0"
        )
        raise InvalidRequest(wrong, pointer="/restart_seconds")
    usable = usable_tables(gpus, tables, len(lengths))
    trajectories = Presorted(lengths, contexts)
    exact = trajectories.count * len(usable) <= budget
    if exact:
        degrees, seconds = least_seconds(trajectories, gpus, usable)
    else:
        degrees, seconds = anneal(trajectories, gpus, usable, generator)
    now = _current_seconds(trajectories, current, tables)
    if now is not None and now <= seconds and sum(current) == gpus:
        degrees, seconds = descending(current), now
    return DegreePlan(degrees, seconds, exact, now, restart_seconds)


def _current_seconds(
    trajectories: Presorted, current: Degrees, tables: Mapping[int, SizeTable]
) -> float | None:
    if not current:
        return None
    if unknown := sorted(set(current) - set(tables)):
        wrong = f"no table for the present degree {unknown[0]}: measure it"
        raise InvalidRequest(wrong, pointer="/current")
    return trajectories.least_bound([tables[degree] for degree in descending(current)])


def usable_tables(gpus: int, tables: Mapping[int, SizeTable], count: int) -> dict[int, SizeTable]:
    """Return the tables of degrees up to ``gpus``, by rising degree; raise InvalidRequest if no workers of them have that sum."""
    for degree in tables:
        if degree not in DEGREES:
            wrong = f"{degree} is no degree: give one of {', '.join(map(str, DEGREES))}"
            raise InvalidRequest(wrong, pointer="/degrees")
    usable = {degree: tables[degree] for degree in sorted(tables) if degree <= gpus}
    # Each degree divides the next: a sum can be reached if the lowest one divides it.
    if not usable or gpus % min(usable):
        allowed = ", ".join(map(str, sorted(tables))) or "none"
        wrong = f"{gpus} GPUs cannot be divided into workers of the allowed degrees ({allowed}): allow a lower degree, or give other GPUs"
        raise InvalidRequest(wrong, pointer="/gpus", code="unreachable_sum")
    for degree, table in usable.items():
        try:
            check_tables([table], count)
        except InvalidRequest as error:
            raise InvalidRequest(str(error), pointer=f"/tables/{degree}") from None
    return usable


def descending(degrees: Sequence[int]) -> Degrees:
    """Return degrees in the order of the mapping."""
    return tuple(sorted(degrees, reverse=True))


def least_seconds(
    trajectories: Presorted, gpus: int, tables: Mapping[int, SizeTable]
) -> tuple[Degrees, float]:
    """Return the allocation of least cost, and its cost; ``tables`` by rising degree, as `usable_tables` returns them."""
    lowest = min(tables)
    best: Degrees = (lowest,) * (gpus // lowest)
    if not trajectories.count:
        return best, 0.0
    high = trajectories.least_bound([tables[lowest]] * len(best))
    low = trajectories.lengths[0] * min(table.seconds[0] for table in tables.values())
    cover = _Cover(trajectories, tables)
    while low < high:
        middle = (low + high) / 2
        if not low < middle < high:  # neighbours among floats
            middle = low
        degrees, growth = cover.within(middle)
        if degrees is None or sum(degrees) > gpus:
            low = growth
            continue
        left = gpus - sum(degrees)
        best = descending((*degrees, *[lowest] * (left // lowest)))
        high = trajectories.fill([tables[degree] for degree in best], middle)[1]
    return best, high


class _Cover:
    """The fewest GPUs whose workers hold all trajectories within a bound."""

    def __init__(self, trajectories: Presorted, tables: Mapping[int, SizeTable]) -> None:
        self._count = trajectories.count
        self._runs = [(degree, _Runs(trajectories, table)) for degree, table in tables.items()]

    def within(self, bound: float) -> tuple[Degrees | None, float]:
        """Return the degrees of fewest GPUs, descending, and the least cost above at which any worker could take more.

        None: a trajectory is too long for every degree.
        """
        need: list[float] = [math.inf] * self._count + [0.0]
        growth, steps = math.inf, []
        for degree, runs in self._runs:
            ends, more = runs.within(bound)
            growth = min(growth, more)
            need, used = _cheaper(need, degree, ends)
            steps.append((degree, ends, used))
        if need[0] == math.inf:
            return None, growth
        found, start = [], 0
        for degree, ends, used in reversed(steps):
            while used[start]:
                found.append(degree)
                start = ends[start]
        return tuple(found), growth


def _cheaper(need: list[float], degree: int, ends: list[int]) -> tuple[list[float], list[bool]]:
    """Return need(d, ·) from that of the next lower degree, and where it begins with a worker of degree d."""
    found, used = need.copy(), [False] * len(need)
    for start in range(len(ends) - 1, -1, -1):
        end = ends[start]
        if end > start and degree + found[end] < found[start]:
            found[start], used[start] = degree + found[end], True
    return found, used


class _Runs:
    """What `Presorted.most` returns for one table, for all starts at once."""

    def __init__(self, trajectories: Presorted, table: SizeTable) -> None:
        count = trajectories.count
        self._lengths = np.array(trajectories.lengths)
        self._starts = np.arange(count)
        self._left = count - self._starts
        self._seconds = np.asarray(table.seconds[:count])
        self._running = np.asarray(table.running[:count])
        self._kv_tokens = table.kv_tokens
        self._before = None if trajectories.before is None else np.array(trajectories.before)

    def within(self, bound: float) -> tuple[list[int], float]:
        """Return the end of the longest run from each start, and the least cost of one more in any."""
        taken = self._by_size(bound)
        if self._before is not None:
            taken = self._by_room(taken, bound)
        open_runs = np.flatnonzero(taken < self._left)
        more = (
            self._costs(open_runs, taken[open_runs] + 1) if open_runs.size else np.full(1, np.inf)
        )
        ends: list[int] = (self._starts + taken).tolist()
        return ends, float(more.min())

    def _by_size(self, bound: float) -> IntArray:
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            quotients = np.where(self._lengths > 0, bound / self._lengths, np.inf)
        taken = np.minimum(np.searchsorted(self._seconds, quotients, side="right"), self._left)
        # A quotient is rounded, and the product is the cost: see `Presorted.most`.
        while (high := np.flatnonzero(self._over(taken, bound))).size:
            taken[high] = np.searchsorted(
                self._seconds, self._seconds[taken[high] - 1], side="left"
            )
        while (low := np.flatnonzero(self._under(taken, bound))).size:
            after = np.searchsorted(self._seconds, self._seconds[taken[low]], side="right")
            taken[low] = np.minimum(after, self._left[low])
        return taken

    def _over(self, taken: IntArray, bound: float) -> npt.NDArray[np.bool_]:
        costs = self._lengths * self._seconds[np.maximum(taken, 1) - 1]
        return np.asarray((taken > 0) & (costs > bound), dtype=np.bool_)

    def _under(self, taken: IntArray, bound: float) -> npt.NDArray[np.bool_]:
        following = self._seconds[np.minimum(taken, len(self._seconds) - 1)]
        return np.asarray(
            (taken < self._left) & (self._lengths * following <= bound), dtype=np.bool_
        )

    def _by_room(self, taken: IntArray, bound: float) -> IntArray:
        """Return the most trajectories of ``taken`` whose caches fit within the bound, by bisection."""
        low, high = np.zeros_like(taken), taken.copy()
        while (low < high).any():
            middle = (low + high + 1) // 2
            fits = self._turns(self._starts, middle) <= bound
            low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
        return low

    def _costs(self, starts: IntArray, sizes: IntArray) -> FloatArray:
        costs: FloatArray = self._lengths[starts] * self._seconds[sizes - 1]
        return costs if self._before is None else np.maximum(costs, self._turns(starts, sizes))

    def _turns(self, starts: IntArray, sizes: IntArray) -> FloatArray:
        assert self._before is not None
        context = self._before[starts + sizes] - self._before[starts]
        # In the order of `Presorted`: another one rounds otherwise, and a bound that is met here would not be met there.
        alone = self._lengths[starts] * self._running[np.maximum(sizes, 1) - 1]
        return np.asarray(alone * (context / self._kv_tokens), dtype=float)


def anneal(
    trajectories: Presorted, gpus: int, tables: Mapping[int, SizeTable], generator: np.random.Generator,
) -> tuple[Degrees, float]:  # fmt: skip
    """Return what Algorithm 2 finds: sorted allocations, perturbed by redistribution, split and merge."""
    allowed = tuple(tables)
    costs: dict[Degrees, float] = {}

    def cost_of(degrees: Degrees) -> float:
        if degrees not in costs:
            costs[degrees] = trajectories.least_bound([tables[degree] for degree in degrees])
        return costs[degrees]

    degrees = descending(filled(gpus, allowed, lambda fitting: int(generator.choice(fitting))))
    cost = cost_of(degrees)
    best, least = degrees, cost
    temperature, threshold = cost, EPSILON * cost
    while temperature > threshold:
        proposed = perturbed(degrees, allowed, generator)
        rise = cost_of(proposed) - cost
        if rise < 0 or generator.random() < math.exp(-rise / temperature):
            degrees, cost = proposed, cost + rise
            if cost < least:
                best, least = degrees, cost
        temperature *= ALPHA
    return best, costs[best]


def filled(gpus: int, allowed: Degrees, choose: Callable[[list[int]], int] = max) -> list[int]:
    """Return degrees with the sum ``gpus``, each chosen among those that fit what is left; by default the largest."""
    found = []
    while gpus:
        found.append(choose([degree for degree in allowed if degree <= gpus]))
        gpus -= found[-1]
    return found


def perturbed(degrees: Degrees, allowed: Degrees, generator: np.random.Generator) -> Degrees:
    """Return a neighbour of an allocation by one of the three transitions, chosen at random; the same if none applies."""
    for number in generator.permutation(len(_TRANSITIONS)):
        if (found := _TRANSITIONS[number](degrees, allowed, generator)) is not None:
            return descending(found)
    return degrees


def _chosen(values: Sequence[int], generator: np.random.Generator) -> int:
    return values[int(generator.integers(len(values)))]


def _without(degrees: Sequence[int], *removed: int) -> list[int]:
    left = list(degrees)
    for degree in removed:
        left.remove(degree)
    return left


def _split(degrees: Degrees, allowed: Degrees, generator: np.random.Generator) -> list[int] | None:
    """Return the degrees with one worker as two of half its degree."""
    if not (some := [degree for degree in degrees if degree // 2 in allowed]):
        return None
    degree = _chosen(some, generator)
    return [*_without(degrees, degree), degree // 2, degree // 2]


def _merge(degrees: Degrees, allowed: Degrees, generator: np.random.Generator) -> list[int] | None:
    """Return the degrees with two workers of one degree as one of twice that."""
    some = [each for each in degrees if 2 * each in allowed and degrees.count(each) > 1]
    if not some:
        return None
    degree = _chosen(some, generator)
    return [*_without(degrees, degree, degree), 2 * degree]


def _redistribute(
    degrees: Degrees, allowed: Degrees, generator: np.random.Generator
) -> list[int] | None:
    """Return the degrees with one worker halved and another doubled by what that frees; the rest becomes the largest workers that fit."""
    pairs = [
        (given, taken)
        for given in sorted(set(degrees))
        for taken in sorted(set(degrees))
        if given // 2 in allowed and 2 * taken in allowed and taken <= given // 2
    ]
    if not pairs:
        return None
    given, taken = pairs[int(generator.integers(len(pairs)))]
    rest = filled(given // 2 - taken, allowed)
    return [*_without(degrees, given, taken), given // 2, 2 * taken, *rest]


_TRANSITIONS: Final = (_redistribute, _split, _merge)
