"""Engine profiles: the measured times of one engine and model, as a fleet declares them.

A profile has for each degree a table of seconds per token over batch × context, points of the prefill, and the tokens of cache that
fit. `placement.profiles` answers from it. A batch of 1 is always measured, because the last trajectory of a batch is alone. What is not
measured is None or absent, never 0.

`check_profile` raises InvalidRequest with the pointer of the member and the cure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from domain.errors import InvalidRequest

#: Parallelism degrees that may be measured.
_DEGREES: Final = (1, 2, 4, 8)
#: Models with modelled times, for fleets whose engine is not measured yet.
MODELLED: Final = ("8b", "14b", "32b")
#: Entries that a table may have, so that a configuration stays small.
MOST_ENTRIES: Final = 10_000
#: Seconds above which a time is a mistake of units.
MOST_SECONDS: Final = 1e9


class DegreeProfile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What was measured of workers of one degree."""

    #: GPUs of a worker: 1, 2, 4 or 8.
    degree: int
    #: Sequences that generate at once, rising from 1.
    batches: tuple[int, ...]
    #: Tokens of context of each of them, rising.
    contexts: tuple[int, ...]
    #: A row for each batch, in it an entry for each context: seconds per token of each sequence.
    token_seconds: tuple[tuple[float, ...], ...]
    #: (uncached tokens of a prompt, seconds), rising in both.
    prefill: tuple[tuple[int, float], ...]
    #: Tokens of cache that fit on a worker.
    kv_tokens: float
    #: Seconds until a worker of another degree, on the same GPUs, serves with this one.
    restart_seconds: float | None = None
    #: Seconds until a sleeping worker serves again.
    wake_seconds: float | None = None


class EngineProfile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The times of one engine and model."""

    degrees: tuple[DegreeProfile, ...]
    #: How the numbers were found: ``measured …`` or ``modelled …``.
    source: str = ""
    #: Tokens of cache that a transfer between two workers moves per second; None: there is no transfer.
    transfer_tokens_per_second: float | None = None
    #: Seconds of a transfer before its first token.
    transfer_latency_seconds: float = 0.0


def check_profile(profile: EngineProfile, pointer: str = "/profile") -> None:
    """Raise InvalidRequest at the first member that is no measurement."""
    if not profile.degrees:
        raise InvalidRequest("measure at least one degree", pointer=f"{pointer}/degrees")
    seen: set[int] = set()
    for number, measured in enumerate(profile.degrees):
        _check_degree(measured, f"{pointer}/degrees/{number}")
        if measured.degree in seen:
            wrong = f"degree {measured.degree} has two tables: leave one out"
            raise InvalidRequest(wrong, pointer=f"{pointer}/degrees/{number}/degree")
        seen.add(measured.degree)
    rate = profile.transfer_tokens_per_second
    if rate is not None and not _within(rate, least=1e-9):
        wrong = f"{rate!r} is no rate: give tokens per second above 0, or leave it out"
        raise InvalidRequest(wrong, pointer=f"{pointer}/transfer_tokens_per_second")
    latency = [profile.transfer_latency_seconds]
    check_seconds(latency, f"{pointer}/transfer_latency_seconds", single=True)


def check_seconds(
    values: Iterable[float], pointer: str, *, least: float = 0.0, single: bool = False
) -> None:
    """Raise InvalidRequest at the first of ``values`` that is NaN, infinite or out of range."""
    for number, value in enumerate(values):
        if not _within(value, least):
            sign = "above" if least else "at least"
            wrong = f"{value!r} is no time: give seconds, {sign} 0 and at most {MOST_SECONDS:g}"
            raise InvalidRequest(wrong, pointer=pointer if single else f"{pointer}/{number}")


def _within(value: float, least: float, most: float = MOST_SECONDS) -> bool:
    return math.isfinite(value) and least <= value <= most


def _check_degree(measured: DegreeProfile, pointer: str) -> None:
    if measured.degree not in _DEGREES:
        wrong = f"{measured.degree} is no degree: give one of {', '.join(map(str, _DEGREES))}"
        raise InvalidRequest(wrong, pointer=f"{pointer}/degree")
    _check_rising(measured.batches, f"{pointer}/batches", first=1)
    _check_rising(measured.contexts, f"{pointer}/contexts")
    _check_table(measured, f"{pointer}/token_seconds")
    if not measured.prefill:
        wrong = "give at least one point (tokens of a prompt, seconds)"
        raise InvalidRequest(wrong, pointer=f"{pointer}/prefill")
    _check_rising([tokens for tokens, _ in measured.prefill], f"{pointer}/prefill", least=1)
    check_seconds([each for _, each in measured.prefill], f"{pointer}/prefill", least=1e-12)
    if not _within(measured.kv_tokens, least=1.0, most=1e15):
        wrong = f"{measured.kv_tokens!r} is no capacity: give the tokens of cache of a worker, at least 1"
        raise InvalidRequest(wrong, pointer=f"{pointer}/kv_tokens")
    for name in ("restart_seconds", "wake_seconds"):
        if (value := getattr(measured, name)) is not None:
            check_seconds([value], f"{pointer}/{name}", single=True)


def _check_table(measured: DegreeProfile, pointer: str) -> None:
    rows, columns = len(measured.batches), len(measured.contexts)
    if rows * columns > MOST_ENTRIES:
        wrong = f"{rows} × {columns} entries: measure at most {MOST_ENTRIES}"
        raise InvalidRequest(wrong, pointer=pointer)
    if len(measured.token_seconds) != rows:
        wrong = f"{len(measured.token_seconds)} rows for {rows} batches: give one for each"
        raise InvalidRequest(wrong, pointer=pointer)
    for number, row in enumerate(measured.token_seconds):
        if len(row) != columns:
            wrong = f"{len(row)} entries for {columns} contexts: give one for each"
            raise InvalidRequest(wrong, pointer=f"{pointer}/{number}")
        check_seconds(row, f"{pointer}/{number}", least=1e-12)


def _check_rising(
    values: Sequence[int], pointer: str, *, first: int | None = None, least: int = 0
) -> None:
    if not values:
        raise InvalidRequest("give at least one value", pointer=pointer)
    if first is not None and values[0] != first:
        wrong = f"it begins with {values[0]}: measure {first} first"
        raise InvalidRequest(wrong, pointer=f"{pointer}/0")
    previous = least - 1
    for number, value in enumerate(values):
        if not value > previous:  # NaN, too
            wrong = (
                f"{value} does not rise, or is below {least}: sort the values and give each once"
            )
            raise InvalidRequest(wrong, pointer=f"{pointer}/{number}")
        previous = value
