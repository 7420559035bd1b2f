"""Rows of finished rollouts, read from their logs: what each row has, and its bytes.

Rules
1. A row is a segment of the last generation, by its number. A finished rollout gets no further turn, so a row never changes;
   a log whose segments have other lengths than the manifest states is an error, not another row.
2. The facts of rows need the heads of records alone. A row is read turn by turn, never the whole log: in memory is one row.
3. All functions block.
"""

from __future__ import annotations

from typing import NamedTuple

from contract.batch_views import BatchRow
from domain.errors import Gone, NotFound, TangramError, Unavailable, Unreadable
from rollout.tokens.row_frames import (
    TURN,
    RowFacts,
    chains_of,
    row_facts,
    row_frame,
    turn_lengths,
)
from scheduler.runtime.rollouts.log_frames import RecordHead, RolloutLogDamaged
from scheduler.runtime.rollouts.log_store import RolloutLogs
from scheduler.runtime.rollouts.result_documents import last_generation


class RowGone(Gone):
    """The tokens of a row are deleted, or cannot be read; names the rollout and the cure."""

    def __init__(self, rollout: str, detail: str, code: str) -> None:
        super().__init__(detail)
        self.rollout = rollout
        self.code = code


class SegmentHeads(NamedTuple):
    """A segment: its facts, and the heads of its turns."""

    facts: RowFacts
    turns: list[RecordHead]


class RowReader:
    """Reads rows from the logs of one folder."""

    def __init__(self, logs: RolloutLogs) -> None:
        self._logs = logs
        #: The rollout that was read last: rows of one follow each other.
        self._last: tuple[str, list[SegmentHeads]] = ("", [])

    def segments(self, rollout: str) -> list[SegmentHeads]:
        """Return the segments of a rollout. Raises RowGone, Unavailable."""
        try:
            heads = last_generation(self._logs.heads(rollout))
            turns = [head for head in heads if head.kind == TURN]
            facts = [turn_lengths(head.header, head.sizes) for head in turns]
            chains = chains_of(each.follows for each in facts)
        except (TangramError, ValueError) as error:
            raise _gone(rollout, error) from error
        return [
            SegmentHeads(row_facts([facts[at] for at in chain]), [turns[at] for at in chain])
            for chain in chains
        ]

    def frame(self, row: BatchRow) -> list[bytes]:
        """Return the pieces of a row's frame. Raises RowGone, Unavailable."""
        name, segments = self._last
        if name != row.rollout:
            segments = self.segments(row.rollout)
            self._last = row.rollout, segments
        segment = segments[row.segment] if row.segment < len(segments) else None
        if segment is None or segment.facts.frame_bytes != row.bytes:
            raise _gone(row.rollout, Unreadable("its log has other segments than the batch"))
        try:
            return row_frame(row.row, self._logs.records(row.rollout, segment.turns))
        except TangramError as error:
            raise _gone(row.rollout, error) from error


def _gone(rollout: str, error: Exception) -> TangramError:
    """Return the error of a log that cannot be read."""
    if isinstance(error, (Unavailable, RowGone)):
        return error
    if isinstance(error, NotFound):
        return RowGone(
            rollout,
            f"the tokens of {rollout} are deleted: it was acknowledged, or TANGRAM_ROLLOUT_LOG_SECONDS are over."
            " Submit its instance again; acknowledge rollouts after the update that they train is stored",
            "rollout_acknowledged",
        )
    detail = str(error) if isinstance(error, RolloutLogDamaged) else f"{rollout}: {error}"
    return RowGone(rollout, f"{detail}: submit its instance again", "rollout_log_damaged")
