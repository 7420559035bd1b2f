"""Estimates of when workers end what is left of given trajectories: what `fold` and the comparison of assignments decide from.

An estimate answers for a worker, by its times, how long trajectories take that each have tokens to sample, seconds of tools between
them, and a context. It is finer than L_max · t[|g|]: the batch thins as trajectories end, and one in a tool is not in the batch.

Rules
1. A trajectory that takes T seconds of which U are tools is in the batch for the share 1 − U/T of them. The batch at any time is the sum of
   those shares over the trajectories that are left; its tokens take t(batch, mean context). T follows from the shares, exactly, and the
   shares from T: one round without tools, a few with.
2. Slots and room for caches bound the batch. The longest trajectories are served first, so they end as if they were alone in it, and
   the worker not before all its tokens are made at its full rate: the estimate is the greater of both. It is a lower bound: within 5 % of
   the modelled engine (`managers/llm/fake`), up to 20 % low where few slots serve trajectories that differ much. Estimates are compared with
   each other, not with clocks.
3. A context grows until the end: its mean is what it has now and half of the tokens to sample.
4. Of more than 64 trajectories on a worker the longest 32 are estimated one by one, and the others in 32 classes of alike ones.
5. With predictions whose log error has the deviation sigma, the mean over a few sets of errors is estimated, the same sets for every
   assignment. The sets are fixed sequences, so equal input gives equal answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from domain.errors import InvalidRequest
from placement.arrange import checked_lengths, checked_sigma
from placement.facts import WorkerFacts
from placement.policies.protocol import WorkerTimes
from placement.profiles import FloatArray, IntArray, TimeGrid, grid_of

#: Rounds after which shares and ends agree (rule 1).
_ROUNDS: Final = 6
#: Classes of the longest, and of the others (rule 4).
_ALONE, _TOGETHER = 32, 32
#: Sets of errors that an estimate is the mean of.
_DRAWS: Final = 4


class Work:
    """What is left of some trajectories, as arrays in one order."""

    __slots__ = ("contexts", "tokens", "tool_seconds")

    def __init__(
        self, tokens: Sequence[float], tool_seconds: Sequence[float], contexts: Sequence[float]
    ) -> None:
        """Take tokens to sample, seconds in tools and tokens of context of each; raise InvalidRequest."""
        self.tokens = checked_lengths(tokens, "/tokens")
        self.tool_seconds = checked_lengths(tool_seconds, "/tool_seconds")
        self.contexts = checked_lengths(contexts, "/contexts")
        if not len(self.tokens) == len(self.tool_seconds) == len(self.contexts):
            wrong = "tokens, tool seconds and contexts differ in number: give one of each per trajectory"
            raise InvalidRequest(wrong, pointer="/tokens")

    def __len__(self) -> int:
        return len(self.tokens)


def drain_seconds(times: WorkerTimes, worker: WorkerFacts, work: Work) -> float:
    """Return the seconds until a worker has ended ``work``, with trajectories of its own only."""
    return assignment_seconds(times, [worker], [0] * len(work), work)


def assignment_seconds(
    times: WorkerTimes,
    workers: Sequence[WorkerFacts],
    assigned: Sequence[int],
    work: Work,
    sigma: float = 0.0,
) -> float:
    """Return the seconds until all workers have ended ``work``; ``assigned`` has the index in ``workers`` of each trajectory."""
    checked_sigma(sigma)
    places = np.asarray(assigned, dtype=np.intp)
    if len(places) != len(work):
        wrong = f"{len(places)} workers for {len(work)} trajectories: give one for each"
        raise InvalidRequest(wrong, pointer="/assigned")
    if not len(work):
        return 0.0
    order = np.argsort(places, kind="stable")
    groups = np.split(order, np.searchsorted(places[order], np.arange(1, len(workers))))
    kinds: dict[tuple[int, int], list[int]] = {}
    for number, worker in enumerate(workers):
        if groups[number].size:
            kinds.setdefault((worker.degree, worker.slots), []).append(number)
    draws = [_errors(len(work), sigma, draw) for draw in range(_DRAWS)] if sigma else [None]
    ends = np.zeros(len(draws))
    for (degree, slots), numbers in kinds.items():
        engine = _Engine(times, degree, slots, work)
        rows = [
            engine.classes(work, groups[number], factors) for number in numbers for factors in draws
        ]
        found = engine.drains(rows).reshape(len(numbers), len(draws))
        ends = np.maximum(ends, found.max(axis=0))
    return float(ends.mean())


def worthwhile(kept_seconds: float, arranged_seconds: float, least_share: float = 0.05) -> bool:
    """Say whether an arrangement replaces the assignment that routing keeps: only if it ends sooner by ``least_share`` of its time."""
    return arranged_seconds < (1 - least_share) * kept_seconds


class _Classes(NamedTuple):
    """Trajectories of one worker, those that are alike together; or several workers, as rows."""

    tokens: FloatArray
    tools: FloatArray
    contexts: FloatArray
    #: Trajectories in each class.
    counts: FloatArray

    def sorted_by(self, order: IntArray) -> _Classes:
        """Return every row in its order."""
        tokens, tools, contexts, counts = (np.take_along_axis(each, order, axis=1) for each in self)
        return _Classes(tokens, tools, contexts, counts)


class _Engine:
    """Workers of one degree and as many slots."""

    def __init__(self, times: WorkerTimes, degree: int, slots: int, work: Work) -> None:
        if slots < 1:
            raise InvalidRequest(f"{slots} slots: give at least 1", pointer="/slots")
        most_context = float(np.max(work.contexts + work.tokens))
        self._grid: TimeGrid = grid_of(times, degree, min(slots, len(work)), most_context)
        self._slots, self._kv_tokens = float(slots), max(times.kv_tokens(degree), 1.0)

    def classes(self, work: Work, group: IntArray, factors: FloatArray | None) -> _Classes:
        """Return the classes of a group (rule 4), its lengths times ``factors``."""
        tokens, tools = work.tokens[group], work.tool_seconds[group]
        if factors is not None:
            tokens, tools = tokens * factors[group], tools * factors[group]
        contexts = work.contexts[group] + tokens / 2
        count = len(tokens)
        if count <= _ALONE + _TOGETHER:
            return _Classes(tokens, tools, contexts, np.ones(count))
        batch, context = self._at_once(np.array([contexts.mean()])), contexts.mean()
        order = np.argsort(tokens * self._grid.over(batch, context) + tools, kind="stable")
        together = np.linspace(0, count - _ALONE, _TOGETHER, endpoint=False).astype(np.intp)
        starts = np.concatenate([together, np.arange(count - _ALONE, count)])
        counts = np.diff(starts, append=count).astype(float)
        tokens, tools, contexts = (
            np.add.reduceat(each[order], starts) / counts for each in (tokens, tools, contexts)
        )
        return _Classes(tokens, tools, contexts, counts)

    def drains(self, rows: Sequence[_Classes]) -> FloatArray:
        """Return the seconds until each row has ended."""
        width = max(len(row.tokens) for row in rows)
        cells = np.zeros((len(_Classes._fields), len(rows), width))
        for number, row in enumerate(rows):
            cells[:, number, : len(row.tokens)] = row
        table = _Classes(cells[0], cells[1], cells[2], cells[3])
        return np.maximum(self._longest(table), self._at_full_rate(table))

    def _at_once(self, contexts: FloatArray) -> FloatArray:
        """Return the sequences that run at once at most."""
        room = self._kv_tokens / np.maximum(contexts, 1.0)
        return np.maximum(np.minimum(room, self._slots), 1.0)

    def _longest(self, table: _Classes) -> FloatArray:
        """Return when the last trajectory of each row ends if none waits for a slot (rule 1)."""
        contexts = _share((table.counts * table.contexts).sum(axis=1), table.counts.sum(axis=1))
        batches = np.minimum(table.counts.sum(axis=1), self._at_once(contexts))
        generating = table.tokens * self._grid.over(batches, contexts)[:, None]
        for _ in range(_ROUNDS if table.tools.any() else 1):
            generating = self._round(table, generating)
        return np.asarray((generating + table.tools).max(axis=1), dtype=float)

    def _round(self, table: _Classes, generating: FloatArray) -> FloatArray:
        """Return the seconds of generations that follow from the batches that follow from ``generating``."""
        shares = _share(generating, generating + table.tools)
        # Tokens that a sequence which never leaves the batch makes until this one ends: a clock.
        made = _share(table.tokens, shares)
        order = np.argsort(made, axis=1, kind="stable")
        row, shares, made = (
            table.sorted_by(order),
            np.take_along_axis(shares, order, axis=1),
            np.take_along_axis(made, order, axis=1),
        )
        present = row.counts * shares
        batches = _left(present)
        contexts = _share(_left(present * row.contexts), batches)
        at_once = np.minimum(np.maximum(batches, 1.0), self._at_once(contexts))
        spans = np.diff(made, axis=1, prepend=0.0)
        ends = np.cumsum(spans * self._grid.over(at_once, contexts), axis=1)
        found = np.empty_like(ends)
        np.put_along_axis(found, order, ends * shares, axis=1)
        return found

    def _at_full_rate(self, table: _Classes) -> FloatArray:
        """Return the seconds of all tokens of each row with every slot busy (rule 2)."""
        tokens = table.counts * table.tokens
        contexts = _share((tokens * table.contexts).sum(axis=1), tokens.sum(axis=1))
        at_once = self._at_once(contexts)
        paces: FloatArray = self._grid.over(at_once, contexts) / at_once
        return np.asarray(tokens.sum(axis=1) * paces, dtype=float)


def _share(some: FloatArray, whole: FloatArray) -> FloatArray:
    """Return the quotient, 0 where there is nothing."""
    return np.divide(some, whole, out=np.zeros_like(some), where=whole > 0)


def _left(values: FloatArray) -> FloatArray:
    """Return the sum of each and those after it, in every row."""
    return np.cumsum(values[:, ::-1], axis=1)[:, ::-1]


def _errors(count: int, sigma: float, draw: int) -> FloatArray:
    """Return true / predicted of each trajectory in one set of errors, with mean 1."""
    size = 1 << max(count - 1, 0).bit_length()
    # A stride that is odd visits every place of a power of two once.
    places = (np.arange(count) * (2 * draw + 1) + draw * size // _DRAWS) % size
    return np.asarray(np.exp(sigma * _normals(size)[places] - sigma * sigma / 2), dtype=float)


@lru_cache(maxsize=32)
def _normals(size: int) -> FloatArray:
    """Return ``size`` standard normal numbers that are spread evenly, neighbours far apart."""
    golden = (math.sqrt(5) - 1) / 2
    quantile = NormalDist().inv_cdf
    places = np.argsort([(number + 1) * golden % 1.0 for number in range(size)])
    spread = np.empty(size)
    spread[places] = [quantile((rank + 0.5) / size) for rank in range(size)]
    return spread
