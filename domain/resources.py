"""Amounts, unit sets and costs.

Ledgers count in whole numbers so that release restores exactly what was taken. Amounts in units
(cores, GPUs, API slots) are *milli-units*: 4 cores are 4000, a light
action's 0.1 core is 100. Memory is held in bytes. Names say which: ``_milli``, ``_bytes``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from domain.errors import InvalidRequest

MILLI = 1000
#: Largest declared count; keeps sums and JSON integers in range.
MAX_UNITS = 1_000_000
#: Longest unit set; the paper's nodes need 256.
MAX_CHOICES = 1024

#: Feasible unit counts of one resource in milli-units: sorted, distinct, not empty (paper §4.1).
UnitSet = tuple[int, ...]
#: Resource name as the trainer writes it (``cpu``, ``api:search``) to its feasible counts.
Cost = dict[str, UnitSet]


class UnitRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A contiguous range of feasible unit counts, both ends included."""

    min: int
    max: int


def parse_units(value: float | Sequence[float] | UnitRange, pointer: str) -> UnitSet:
    """Parse a count, a list or a range into a `UnitSet`.

    Raises InvalidRequest naming ``pointer`` when a count is not a positive number, is above
    MAX_UNITS, or is a fraction above 1.
    """
    counts: Sequence[float]
    if isinstance(value, UnitRange):
        if value.min > value.max:
            raise InvalidRequest("min is greater than max", pointer=pointer)
        if value.max - value.min >= MAX_CHOICES:
            raise InvalidRequest(f"at most {MAX_CHOICES} unit counts", pointer=pointer)
        counts = range(value.min, value.max + 1)
    elif isinstance(value, (int, float)):
        counts = (value,)
    else:
        counts = value
    if not 0 < len(counts) <= MAX_CHOICES:
        raise InvalidRequest(f"give 1 to {MAX_CHOICES} unit counts", pointer=pointer)
    return tuple(sorted({_milli(count, pointer) for count in counts}))


def _milli(count: float, pointer: str) -> int:
    if not 0 < count <= MAX_UNITS:
        raise InvalidRequest(
            f"{count!r} is not a unit count: give a number above 0 and up to {MAX_UNITS}",
            pointer=pointer,
        )
    milli = round(count * MILLI)
    if milli == 0:
        raise InvalidRequest(f"{count!r} is below the smallest count, 0.001", pointer=pointer)
    if milli > MILLI and milli % MILLI:
        raise InvalidRequest(
            f"{count!r} is not a whole number: only counts below 1 may be fractions",
            pointer=pointer,
        )
    return milli


def units(milli: int) -> float | int:
    """Return milli-units as units: 4000 is 4, 100 is 0.1."""
    return milli // MILLI if milli % MILLI == 0 else milli / MILLI


def units_of(vector: Mapping[str, int]) -> dict[str, float | int]:
    """Return a vector of milli-units as units."""
    return {name: units(milli) for name, milli in vector.items()}
