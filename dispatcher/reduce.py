"""Aggregated tensors: sums of rewards by group travel, advantages are made where they are used.

A group is the samples of one prompt. Each rank sums the rewards that it has (`GroupSums.of`), the sums of all ranks are exchanged (`sums_layouts`: a few bytes
for each group) and added, and each rank computes the advantages of its own samples. No rank collects rewards and scatters advantages.

Rules
1. A missing reward is NaN: its sample is in no sum, and its advantage is 0, so that it has no gradient. Infinite rewards are an error.
2. Sums are pairs of floats, of about 32 digits. So how samples are divided among ranks, and in which order sums are added, does not show in the advantages.
3. A group in which one reward or none is known has nothing to compare with: its advantages are 0, except against the baseline of the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dispatcher.errors import LayoutError
from dispatcher.layout import Layout, Mesh, Shard, TensorSpec
from dispatcher.placements import Integers, integers

Floats: TypeAlias = NDArray[np.float64]
#: The value and what it lacks: their exact sum is the number.
Pair: TypeAlias = tuple[Floats, Floats]
Kind: TypeAlias = Literal["grpo", "grpo-centred", "rloo", "reinforce"]
SUMS: Final = "group_sums"
_LARGEST: Final = 1e100
_SPLIT: Final = 134_217_729.0


@dataclass(frozen=True)
class GroupSums:
    """For each group: how many rewards are known, their sum, and the sum of their squares (both as pairs)."""

    count: Floats
    total: Pair
    squares: Pair

    @classmethod
    def of(cls, rewards: ArrayLike, groups: ArrayLike, count: int) -> GroupSums:
        """Sum the rewards of samples. ``groups[i]`` is the group of sample i, from 0 up to ``count``; NaN is left out."""
        values, numbers = _checked(rewards, groups, count)
        known = np.flatnonzero(~np.isnan(values))
        values, numbers = values[known], numbers[known]
        order = np.argsort(numbers, kind="stable")
        values, numbers = values[order], numbers[order]
        zeros = np.zeros(len(values))
        return cls(
            np.bincount(numbers, minlength=count).astype(np.float64),
            _sums((values, zeros), numbers, count),
            _sums(_product(values, values), numbers, count),
        )

    @classmethod
    def from_array(cls, array: ArrayLike) -> GroupSums:
        """Return the sums of an array of shape (groups, 5), as `array` gives it."""
        given = np.asarray(array, np.float64)
        if given.ndim != 2 or given.shape[1] != 5:
            raise LayoutError(SUMS, f"has shape {given.shape}; give (groups, 5)")
        count, total, rest, squares, more = given.T
        return cls(count, (total, rest), (squares, more))

    @classmethod
    def merge(cls, sums: Iterable[GroupSums]) -> GroupSums:
        """Return the sums of all ranks together; there is at least one."""
        return reduce(lambda a, b: a + b, sums)

    def array(self) -> Floats:
        """Return shape (groups, 5), float64: what travels."""
        return np.stack([self.count, *self.total, *self.squares], axis=1)

    def __add__(self, other: GroupSums) -> GroupSums:
        if self.count.shape != other.count.shape:
            raise LayoutError(
                SUMS, f"of {len(self.count)} groups and of {len(other.count)}; number groups alike"
            )
        return GroupSums(
            self.count + other.count,
            _add(self.total, other.total),
            _add(self.squares, other.squares),
        )

    def whole(self) -> GroupSums:
        """Return the sums of all groups as one group."""
        one = np.zeros(len(self.count), np.int64)
        return GroupSums(
            self.count.sum(keepdims=True), _sums(self.total, one, 1), _sums(self.squares, one, 1)
        )

    @property
    def mean(self) -> Floats:
        """Mean of the known rewards; 0 where none is known."""
        return (self.total[0] + self.total[1]) / np.maximum(self.count, 1)

    def deviation(self, ddof: int = 1) -> Floats:
        """Return the standard deviation; 0 where ``ddof`` rewards or fewer are known."""
        # n·Σr² − (Σr)², so that nothing is rounded before the two are compared.
        spread = _add(_times(self.squares, self.count), _negative(_square(self.total)))
        known = np.maximum(self.count, 1) * np.maximum(self.count - ddof, 1)
        variance = np.where(self.count > ddof, np.maximum(spread[0] + spread[1], 0) / known, 0)
        return np.sqrt(variance)


def advantages(
    rewards: ArrayLike,
    groups: ArrayLike,
    sums: GroupSums,
    kind: Kind = "grpo",
    *,
    epsilon: float = 1e-6,
) -> Floats:
    """Return the advantages of the samples at hand, from the sums of all ranks.

    - ``grpo``: (reward - mean of the group) / (standard deviation of the group, n - 1, + ``epsilon``)
    - ``grpo-centred``: reward - mean of the group
    - ``rloo``: reward - mean of the others of the group
    - ``reinforce``: reward - mean of the whole batch
    """
    values, numbers = _checked(rewards, groups, len(sums.count))
    count = sums.count[numbers]
    centred = values - sums.mean[numbers]
    if kind == "grpo":
        result = centred / (sums.deviation()[numbers] + epsilon)
    elif kind == "grpo-centred":
        result = centred
    elif kind == "rloo":
        result = centred * count / np.maximum(count - 1, 1)
    elif kind == "reinforce":
        result = values - sums.whole().mean[0]
    else:
        raise LayoutError("kind", f"is {kind!r}; give grpo, grpo-centred, rloo or reinforce")
    alone = (count <= 1) & (kind != "reinforce")
    return np.where(np.isnan(values) | alone, 0.0, result)


def sums_layouts(mesh: Mesh, groups: int) -> tuple[Layout, Layout]:
    """Return how the sums of each dp coordinate come to all ranks: tensor ``group_sums``, float64.

    In the source each rank has shape (1, groups, 5), its ``GroupSums.array()[None]``; in the target (dp, groups, 5): one `GroupSums.from_array` each, to be merged.
    """
    shape = (mesh.axes["dp"], groups, 5)
    source = Layout(mesh, [TensorSpec(SUMS, "float64", shape, dp=Shard(0))])
    return source, Layout(mesh, [TensorSpec(SUMS, "float64", shape)])


def _checked(rewards: ArrayLike, groups: ArrayLike, count: int) -> tuple[Floats, Integers]:
    values = np.asarray(rewards, np.float64)
    numbers = integers(np.asarray(groups), "groups", 0)
    if values.shape != numbers.shape:
        raise LayoutError("rewards", f"has shape {values.shape}; groups has {numbers.shape}")
    large = np.flatnonzero(np.abs(values) > _LARGEST)
    if large.size:
        first = int(large[0])
        raise LayoutError(
            f"rewards[{first}]", f"is {values[first]}; give finite rewards, NaN for a missing one"
        )
    beyond = np.flatnonzero(numbers >= count)
    if beyond.size:
        first = int(beyond[0])
        raise LayoutError(f"groups[{first}]", f"is {numbers[first]}; there are {count}, from 0")
    return values, numbers


def _sums(values: Pair, groups: Integers, count: int) -> Pair:
    """Sum pairs by group, ``groups`` ascending: neighbours within a group are added until one is left."""
    high, low = values
    while len(groups):
        first = np.concatenate([[True], groups[1:] != groups[:-1]])
        place = np.arange(len(groups)) - np.flatnonzero(first)[np.cumsum(first) - 1]
        even = np.flatnonzero(place % 2 == 0)
        paired = np.flatnonzero((place % 2 == 0) & np.append(~first[1:], False))
        if not paired.size:
            break
        total = _add((high[paired], low[paired]), (high[paired + 1], low[paired + 1]))
        high, low = high.copy(), low.copy()
        high[paired], low[paired] = total
        high, low, groups = high[even], low[even], groups[even]
    result = np.zeros(count), np.zeros(count)
    result[0][groups], result[1][groups] = high, low
    return result


def _two_sum(a: Floats, b: Floats) -> Pair:
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def _add(a: Pair, b: Pair) -> Pair:
    high, error = _two_sum(a[0], b[0])
    low, rest = _two_sum(a[1], b[1])
    high, error = _two_sum(high, error + low)
    return _two_sum(high, error + rest)


def _product(a: Floats, b: Any) -> Pair:
    """Return a · b exactly (Dekker)."""
    product = a * b
    a_high = _SPLIT * a - (_SPLIT * a - a)
    b_high = _SPLIT * b - (_SPLIT * b - b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _times(a: Pair, factor: Floats) -> Pair:
    high, error = _product(a[0], factor)
    return _two_sum(high, error + a[1] * factor)


def _square(a: Pair) -> Pair:
    high, error = _product(a[0], a[0])
    return _two_sum(high, error + 2 * a[0] * a[1])


def _negative(a: Pair) -> Pair:
    return -a[0], -a[1]
