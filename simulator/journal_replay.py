"""Decide a stored journal again, away from everything: why was it decided so?

The core is a function of its events, so a journal from its first entry on (a simulated one, or that
of a Tangram whose stream was not trimmed yet) gives the same decisions again, and with them what
the journal does not hold: which candidates a policy saw, what it tried, and what it estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from domain.advice import PolicyDecision
from domain.codec import JournalEntry
from domain.errors import InvalidRequest, TangramError
from managers.registry import load
from scheduler.core.advice.calibration import StartCalibration
from scheduler.core.machine import Machine
from scheduler.core.state.model import ARRANGED_KEPT


class ReplayedEntry(NamedTuple):
    """One entry, decided again."""

    entry: JournalEntry
    #: What policies decided, in that order.
    arranged: list[PolicyDecision]
    #: The decisions are those of the journal.
    same: bool


def replay_journal(
    entries: Iterable[JournalEntry], calibration: StartCalibration | None = None
) -> Iterator[ReplayedEntry]:
    """Yield each entry with what policies decided in it; ``calibration`` compares predicted starts.

    Raises InvalidRequest for a journal that does not begin at the beginning.
    """
    machine = Machine(load(()).make_ledger)
    for entry in entries:
        arranged = machine.state.arranged
        last = arranged[-1] if arranged else None
        try:
            decisions = machine.handle(*entry.events)
        except (TangramError, KeyError) as error:
            raise InvalidRequest(
                f"entry {entry.seq} cannot follow what is above it ({error!r}): a journal is decided "
                "again from its first entry on"
            ) from None
        if calibration is not None:
            calibration.observe(machine.state, decisions)
        fresh = 0
        for each in reversed(arranged):
            if each is last or fresh == ARRANGED_KEPT:
                break
            fresh += 1
        yield ReplayedEntry(entry, machine.decisions(fresh)[::-1], decisions == entry.decisions)
