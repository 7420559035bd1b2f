"""A trace that was read: its kind, its content, what was assumed about it, and what was left out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

from simulator.llm_trace import LlmRequest
from tangram_client.traces.recording import Recording, TraceError

#: Messages about bad lines that are kept; the others are only counted.
_MOST_EXAMPLES: Final = 3


class TraceKind(StrEnum):
    """What a trace holds."""

    RECORDINGS = "recordings"
    REQUESTS = "requests"

    @property
    def plural(self) -> str:
        """Return the kind for people."""
        return "recorded trajectories" if self is TraceKind.RECORDINGS else "LLM requests"


@dataclass(frozen=True)
class Trace:
    """The content of one or several files of one format; either recordings or requests are empty."""

    source: str
    #: Name of the format, as ``--format`` has it.
    format: str
    recordings: tuple[Recording, ...] = ()
    #: By rising time, the first at 0 s unless the trace is our own.
    requests: tuple[LlmRequest, ...] = ()
    #: What the source lacks or is not read from it, and what stands in its place: sentences.
    assumed: tuple[str, ...] = ()
    #: Lines or files that were bad and are left out, with the first messages.
    skipped: int = 0
    complaints: tuple[str, ...] = ()

    @property
    def kind(self) -> TraceKind:
        """Return what it holds."""
        return TraceKind.RECORDINGS if self.recordings else TraceKind.REQUESTS

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of any result from this trace should know, as sentences."""
        if not self.skipped:
            return self.assumed
        plural = "line was" if self.skipped == 1 else "lines were"
        examples = "; ".join(self.complaints)
        return (*self.assumed, f"{self.skipped} bad {plural} skipped, as {examples}")


class BadLines:
    """Decides about lines that cannot be read: the first one is an error, or all are skipped and counted."""

    def __init__(self, *, skip: bool = False) -> None:
        self.skip = skip
        self.count = 0
        self.examples: list[str] = []

    def take(self, error: TraceError) -> None:
        """Count ``error``; raises it when bad lines are not skipped."""
        if not self.skip:
            raise error
        self.count += 1
        if len(self.examples) < _MOST_EXAMPLES:
            self.examples.append(str(error))


def in_order(requests: list[LlmRequest]) -> tuple[tuple[LlmRequest, ...], tuple[str, ...]]:
    """Return the requests by rising time with the first at 0 s, and a note when they had another order."""
    unordered = sum(after.at_seconds < before.at_seconds for before, after in pairwise(requests))
    by_time = sorted(requests, key=lambda each: each.at_seconds)
    first = by_time[0].at_seconds if by_time else 0.0
    moved = tuple(
        LlmRequest(each.at_seconds - first, each.input_tokens, each.output_tokens)
        for each in by_time
    )
    note = f"{unordered} requests came before the line above them; requests are sorted by time"
    return moved, (note,) if unordered else ()
