"""What travels to pages: one topic's whole state at one moment, in msgpack."""

from __future__ import annotations

from typing import Any

import msgspec


class Frame(msgspec.Struct, frozen=True):
    """What one topic says at one moment."""

    topic: str
    #: Grows from frame to frame, over restarts as well: journal milliseconds, at least one more.
    seq: int
    #: Changes when an event changed what the topic says; the passing of time is no change.
    revision: int
    at: float
    #: Wall clock at ``at``, seconds since the epoch.
    wall: float
    body: dict[str, Any]
    #: What a newcomer needs in place of parts of ``body``; empty when a frame says everything.
    backlog: dict[str, Any] = {}

    def encode(self) -> bytes:
        """Return the frame for readers who follow the topic."""
        return _encode(self._envelope(snapshot=False) | self.body)

    def encode_snapshot(self) -> bytes:
        """Return the frame for readers who come anew."""
        return _encode(self._envelope(snapshot=True) | self.body | self.backlog)

    def _envelope(self, *, snapshot: bool) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "seq": self.seq,
            "at": self.at,
            "wall": self.wall,
            "snapshot": snapshot,
        }


_encode = msgspec.msgpack.Encoder().encode
