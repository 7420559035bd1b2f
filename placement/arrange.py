"""Arrangement: which trajectories of a batch share a worker, so that the longest group ends earliest (heddle, §5.1, §5.2).

A group costs L_max · t_j[|g|]: the tokens of its longest trajectory times the seconds per token of worker j with that many sequences; the
arrangement costs as much as its worst group (formula 2). Trajectories are sorted by descending length, and a group is a run of them
(Lemma 5.1); worker j takes the j-th run, which may be empty, so fewer trajectories than workers are no special case.

Rules
1. t_j is non-decreasing and may differ by worker. Then a run never costs less than a part of it, so for a bound B it is best that each
   worker in turn takes the most trajectories that stay within B. `arrange` bisects B between costs that exist, and ends at the exact optimum:
   a bound that is met falls to the cost reached, one that is not rises to the least cost at which a group could grow.
2. Of the arrangements of that cost it returns the evenest from the front: no group is larger than an even share of what is left, unless the
   bound needs it. (The greedy fill alone would put trajectories that are predicted to be over, or plateaus of t, on the first worker.)
3. Exact for workers in the order given. The paper orders them by descending degree (§6.2), as `by_degree` does. That order is not always the
   best: of 600 small random cases none with modelled tables, but 6 (by ≤ 1.12×) to 56 (≤ 1.53×) with tables of any rising form had a
   better one (`benchmarks/placement/arrangements.py`).
4. Where caches do not fit, a group of X context tokens on a worker with room for K runs in X/K turns: with ``contexts`` a group costs the
   greater of L_max · t[|g|] and L_max · t_running[|g|] · X/K. It is monotone in runs too, so rule 1 holds; Lemma 5.1 does not, as the members of
   a group then matter beyond their number, and the result is the best over runs.

`formula_three` is the paper's dynamic program as printed, to compare with. Lengths are tokens, contexts tokens, tables seconds per
token; errors are `InvalidRequest` with the pointer of the member.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from domain.engine_profiles import MOST_SECONDS
from domain.errors import InvalidRequest
from placement.facts import WorkerFacts
from placement.policies.protocol import WorkerTimes
from placement.profiles import FloatArray, grid_of

#: Tokens above which a length is a mistake.
MOST_TOKENS: Final = 1e15
#: Deviation of a log error at which a prediction says nothing.
MOST_SIGMA: Final = 5.0


class SizeTable:
    """Seconds per token of each of s trajectories that share a worker, for s = 1, 2, …"""

    __slots__ = ("kv_tokens", "running", "seconds")

    def __init__(
        self,
        seconds: npt.ArrayLike,
        *,
        running: npt.ArrayLike | None = None,
        kv_tokens: float = math.inf,
        pointer: str = "/tables",
    ) -> None:
        """Check that ``seconds`` are finite, above 0 and non-decreasing.

        ``running`` are those of the sequences that have a slot, without the wait for one (default: the same), ``kv_tokens`` the
        tokens of cache that fit: both are used where `arrange` has contexts.
        """
        self.seconds = _checked_table(seconds, pointer)
        self.running = self.seconds if running is None else _checked_table(running, pointer)
        self.kv_tokens = kv_tokens
        if not kv_tokens >= 1:
            wrong = f"{kv_tokens!r} is no capacity: give the tokens of cache that fit, at least 1"
            raise InvalidRequest(wrong, pointer=pointer)
        if len(self.running) < len(self.seconds):
            wrong = f"`running` has {len(self.running)} sizes, `seconds` {len(self.seconds)}: give as many"
            raise InvalidRequest(wrong, pointer=pointer)

    def hedged(self, sigma: float) -> SizeTable:
        """Return the table for predictions whose log error has the standard deviation ``sigma``.

        Of s log-normal errors the greatest is about exp(sigma · z(1 − 1/(s+1))): a large group has a member that is much longer
        than predicted.
        """
        checked_sigma(sigma)
        factors = np.exp(sigma * _scores(len(self.running)))
        seconds = np.asarray(self.seconds) * factors[: len(self.seconds)]
        return SizeTable(
            seconds, running=np.asarray(self.running) * factors, kv_tokens=self.kv_tokens
        )


class Partition(msgspec.Struct, frozen=True, gc=False):
    """Trajectories by worker, both as indices of what `arrange` got."""

    #: Trajectories by descending length; ties as they were given.
    order: list[int]
    #: Worker j has ``order[ends[j - 1]:ends[j]]``.
    ends: list[int]
    #: Length of the longest of each group; 0 for an empty one.
    longest: list[float]
    #: Cost of the worst group, in seconds.
    seconds: float

    @property
    def groups(self) -> list[list[int]]:
        """Return the trajectories of each worker."""
        starts = [0, *self.ends[:-1]]
        return [self.order[start:end] for start, end in zip(starts, self.ends, strict=True)]

    @property
    def workers(self) -> list[int]:
        """Return the worker of each trajectory."""
        found = [0] * len(self.order)
        for worker, group in enumerate(self.groups):
            for each in group:
                found[each] = worker
        return found

    def worker_for(self, length: float) -> int:
        """Return the worker of a late trajectory: that of the shortest group with a member as long; at the ends the first or the last group."""
        starts = [0, *self.ends[:-1]]
        found = None
        for worker, (start, end) in enumerate(zip(starts, self.ends, strict=True)):
            if start < end and (found is None or self.longest[worker] >= length):
                found = worker
        return found or 0


def arrange(
    lengths: Sequence[float], tables: Sequence[SizeTable], contexts: Sequence[float] | None = None
) -> Partition:
    """Return the partition of least cost; ``tables`` has one for each worker, in the order of the groups."""
    trajectories = Presorted(lengths, contexts)
    bound = trajectories.least_bound(tables)
    return trajectories.partition(trajectories.evenest(tables, bound), bound)


class Presorted:
    """Trajectories by descending length, and what runs of them cost."""

    def __init__(self, lengths: Sequence[float], contexts: Sequence[float] | None = None) -> None:
        """Check and sort; raise InvalidRequest."""
        values = checked_lengths(lengths, "/lengths")
        self.count = len(values)
        order = np.argsort(-values, kind="stable")
        self.order: list[int] = order.tolist()
        self.lengths: list[float] = values[order].tolist()
        #: Context tokens before each trajectory; None: caches always fit.
        self.before: list[float] | None = None
        if contexts is not None:
            tokens = checked_lengths(contexts, "/contexts")
            if len(tokens) != self.count:
                wrong = f"{len(tokens)} contexts for {self.count} lengths: give one for each"
                raise InvalidRequest(wrong, pointer="/contexts")
            self.before = list(accumulate(tokens[order].tolist(), initial=0.0))

    def cost(self, table: SizeTable, start: int, count: int) -> float:
        """Return the cost of ``count`` trajectories from ``start`` on a worker."""
        if not count:
            return 0.0
        cost = self.lengths[start] * table.seconds[count - 1]
        return cost if self.before is None else max(cost, self._turns(table, start, count))

    def _turns(self, table: SizeTable, start: int, count: int) -> float:
        """Return the cost where caches wait for room (rule 4)."""
        assert self.before is not None
        context = self.before[start + count] - self.before[start]
        return self.lengths[start] * table.running[count - 1] * (context / table.kv_tokens)

    def most(self, table: SizeTable, start: int, bound: float) -> int:
        """Return how many trajectories from ``start`` a worker takes within ``bound``."""
        length, left = self.lengths[start], self.count - start
        if not length:
            return left
        seconds = table.seconds
        count = bisect_right(seconds, bound / length, 0, left)
        # A quotient is rounded, and the product is the cost: a plateau may be on the wrong side.
        while count and length * seconds[count - 1] > bound:
            count = bisect_left(seconds, seconds[count - 1], 0, count)
        while count < left and length * seconds[count] <= bound:
            count = bisect_right(seconds, seconds[count], count, left)
        if self.before is None or not count or self._turns(table, start, count) <= bound:
            return count
        sizes = range(1, count)
        return bisect_right(sizes, bound, key=lambda size: self._turns(table, start, size))

    def fill(self, tables: Sequence[SizeTable], bound: float) -> tuple[int, float, float]:
        """Let each worker take the most within ``bound``.

        Return how many trajectories are taken, the highest cost, and the least cost at which a worker takes one more.
        """
        start, highest, growth = 0, 0.0, math.inf
        for table in tables:
            if start == self.count:
                break
            count = self.most(table, start, bound)
            highest = max(highest, self.cost(table, start, count))
            if start + count < self.count:
                growth = min(growth, self.cost(table, start, count + 1))
            start += count
        return start, highest, growth

    def least_bound(self, tables: Sequence[SizeTable]) -> float:
        """Return the least cost of an arrangement on workers in this order; raise InvalidRequest."""
        check_tables(tables, self.count)
        if not self.count:
            return 0.0
        high = self._even_cost(tables)
        low = self.lengths[0] * min(table.seconds[0] for table in tables)
        while low < high:
            middle = (low + high) / 2
            if not low < middle < high:  # neighbours among floats
                middle = low
            taken, reached, growth = self.fill(tables, middle)
            if taken == self.count:
                high = reached
            else:
                low = growth
        return high

    def evenest(self, tables: Sequence[SizeTable], bound: float) -> list[int]:
        """Return the ends of groups within ``bound`` that are as even from the front as it allows (rule 2)."""
        earliest = self._earliest(tables, bound)
        ends, start = [], 0
        for worker, table in enumerate(tables):
            if start < self.count:
                share = -(-(self.count - start) // (len(tables) - worker))
                share = min(share, self.most(table, start, bound))
                start = max(start + share, earliest[worker])
            ends.append(start)
        return ends

    def _earliest(self, tables: Sequence[SizeTable], bound: float) -> list[int]:
        """Return the least end of each worker from which the later ones still reach the last trajectory."""
        ends, end = [], self.count
        for table in reversed(tables):
            ends.append(end)
            low, high = 0, end
            while low < high:
                start = (low + high) // 2
                if self.cost(table, start, end - start) <= bound:
                    high = start
                else:
                    low = start + 1
            end = low
        return ends[::-1]

    def _even_cost(self, tables: Sequence[SizeTable]) -> float:
        """Return the cost of groups of equal size: a bound that is met."""
        ends = [self.count * worker // len(tables) for worker in range(len(tables) + 1)]
        runs = zip(tables, ends, ends[1:], strict=False)
        return max(self.cost(table, start, end - start) for table, start, end in runs)

    def partition(self, ends: list[int], seconds: float) -> Partition:
        """Return the partition with these ends."""
        runs = zip([0, *ends[:-1]], ends, strict=True)
        longest = [self.lengths[start] if start < end else 0.0 for start, end in runs]
        return Partition(self.order, ends, longest, seconds)


def assigned_seconds(
    lengths: Sequence[float], workers: Sequence[int], tables: Sequence[SizeTable],
    contexts: Sequence[float] | None = None,
) -> float:  # fmt: skip
    """Return the cost of any assignment, runs or not: ``workers`` has the index in ``tables`` of each trajectory."""
    check_tables(tables, 0)
    groups: list[list[int]] = [[] for _ in tables]
    for index, worker in enumerate(workers):
        groups[worker].append(index)
    highest = 0.0
    for table, group in zip(tables, groups, strict=True):
        tokens = None if contexts is None else [contexts[index] for index in group]
        trajectories = Presorted([lengths[index] for index in group], tokens)
        check_tables([table], len(group))
        highest = max(highest, trajectories.cost(table, 0, len(group)))
    return highest


def formula_three(
    lengths: Sequence[float], tables: Sequence[SizeTable], *, empty_groups: bool = False
) -> Partition:
    """Return what the paper's dynamic program finds, as printed: O(n²m), exactly as many groups as workers.

    ``empty_groups``: k runs from 0 to i, so that any group may be empty; as printed fewer trajectories than workers have no answer.
    """
    trajectories = Presorted(lengths)
    count, workers = trajectories.count, len(tables)
    check_tables(tables, count)
    if count < workers and not empty_groups:
        wrong = f"{count} trajectories for {workers} groups: formula 3 as printed has no empty groups; use `arrange`"
        raise InvalidRequest(wrong, pointer="/lengths")
    descending = np.array(trajectories.lengths)
    best = np.zeros(count + 1)
    if count:
        best[1:] = descending[0] * np.asarray(tables[0].seconds[:count])
    splits = []
    for table in tables[1:]:
        best, split = _next_group(best, descending, table, empty_groups=empty_groups)
        splits.append(split)
    ends = [count]
    for split in reversed(splits):
        ends.append(int(split[ends[-1]]))
    return trajectories.partition(ends[::-1], float(best[count]))


def _next_group(
    best: FloatArray, descending: FloatArray, table: SizeTable, *, empty_groups: bool
) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Return dp[·][j] of formula 3 from dp[·][j − 1], and the k of each; of equal ones the least."""
    count, first = len(descending), 0 if empty_groups else 1
    seconds = np.asarray(table.seconds[:count])[::-1]
    following = np.full(count + 1, math.inf)
    split = np.zeros(count + 1, dtype=np.int64)
    if empty_groups:
        following[0] = best[0]
    for end in range(1, count + 1):
        # The first k to earlier workers, those from k + 1 to `end` to this one.
        costs = np.maximum(best[first:end], descending[first:end] * seconds[count - end + first :])
        if costs.size:
            least = int(np.argmin(costs))
            following[end], split[end] = costs[least], first + least
        if empty_groups and best[end] < following[end]:
            following[end], split[end] = best[end], end
    return following, split


def by_degree(workers: Iterable[WorkerFacts]) -> list[WorkerFacts]:
    """Return workers in the order of the paper's mapping: the longest group to the highest degree; ties by number."""
    return sorted(workers, key=lambda worker: (-worker.degree, worker.number))


def size_table(
    times: WorkerTimes, degree: int, slots: int, sizes: int, context_tokens: float
) -> SizeTable:
    """Return the table of a worker for groups up to ``sizes``, whose members have ``context_tokens`` on average.

    Above its slots a worker runs the group in turns, so the seconds of one token grow with the turns.
    """
    if slots < 1:
        raise InvalidRequest(f"{slots} slots: give at least 1", pointer="/slots")
    groups = np.arange(1, max(sizes, 1) + 1)
    at_once = np.minimum(groups, slots)
    running = grid_of(times, degree, int(at_once[-1]), context_tokens).over(at_once, context_tokens)
    return SizeTable(
        running * (groups / at_once), running=running, kv_tokens=max(times.kv_tokens(degree), 1.0)
    )


def size_tables(
    times: WorkerTimes,
    workers: Iterable[WorkerFacts],
    sizes: int,
    context_tokens: float,
    sigma: float = 0.0,
) -> list[SizeTable]:
    """Return the table of each worker; workers of one degree and as many slots share theirs."""
    made: dict[tuple[int, int], SizeTable] = {}
    found = []
    for worker in workers:
        kind = worker.degree, worker.slots
        if kind not in made:
            table = size_table(times, *kind, sizes, context_tokens)
            made[kind] = table.hedged(sigma) if sigma else table
        found.append(made[kind])
    return found


def checked_lengths(values: Sequence[float], pointer: str) -> FloatArray:
    """Return token counts as an array; raise InvalidRequest at the first that is NaN, negative or too large."""
    found = np.asarray(values, dtype=float)
    usable = (found >= 0) & (found <= MOST_TOKENS)
    if not usable.all():
        number = int(np.argmin(usable))
        wrong = f"{values[number]!r} is no number of tokens: give one in [0, {MOST_TOKENS:g}], or leave the trajectory out"
        raise InvalidRequest(wrong, pointer=f"{pointer}/{number}")
    return found


def checked_sigma(sigma: float) -> None:
    """Raise InvalidRequest unless ``sigma`` can be the standard deviation of a log error."""
    if not (math.isfinite(sigma) and 0 <= sigma <= MOST_SIGMA):
        wrong = f"{sigma!r} is no deviation of a log error: give a number in [0, {MOST_SIGMA:g}]"
        raise InvalidRequest(wrong, pointer="/sigma")


def check_tables(tables: Sequence[SizeTable], count: int) -> None:
    """Raise InvalidRequest unless there is a worker, and every table has an entry for ``count`` trajectories."""
    if not tables:
        raise InvalidRequest("no worker: give the table of at least one", pointer="/tables")
    for number, table in enumerate(tables):
        if len(table.seconds) < count:
            wrong = (
                f"{len(table.seconds)} sizes for {count} trajectories: give an entry for every size of a group, "
                "from 1 to the number of trajectories"
            )
            raise InvalidRequest(wrong, pointer=f"/tables/{number}")


def _checked_table(seconds: npt.ArrayLike, pointer: str) -> list[float]:
    found = np.asarray(seconds, dtype=float)
    if found.ndim != 1 or not found.size:
        raise InvalidRequest("give seconds per token for groups of 1, 2, …", pointer=pointer)
    usable = (found > 0) & (found <= MOST_SECONDS)
    if not usable.all():
        number = int(np.argmin(usable))
        wrong = f"{float(found[number])!r} is no time per token: give seconds above 0, at most {MOST_SECONDS:g}"
        raise InvalidRequest(wrong, pointer=f"{pointer}/{number}")
    falls = found[1:] < found[:-1]
    if falls.any():
        number = int(np.argmax(falls)) + 1
        wrong = "seconds fall with the size of the group: raise them to the greatest before, as `ProfiledTimes` does"
        raise InvalidRequest(wrong, pointer=f"{pointer}/{number}")
    as_list: list[float] = found.tolist()
    return as_list


@lru_cache(maxsize=32)
def _scores_up_to(most: int) -> FloatArray:
    quantile = NormalDist().inv_cdf
    return np.array([quantile(1 - 1 / (size + 1)) for size in range(1, most + 1)])


def _scores(sizes: int) -> FloatArray:
    """Return z(1 − 1/(s+1)) for s = 1 … ``sizes``; 0 for a group of one."""
    return _scores_up_to(1 << max(sizes - 1, 0).bit_length())[:sizes]
