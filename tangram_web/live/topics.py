"""Topics of the live page: their names, and the frames that carry their state.

A topic is about all projects (``overview``) or about one (``overview@lab``). Topics of one project
exist while a page follows them: consumers record what they follow every few seconds, and the
publisher looks once a second which projects are followed (`topic_store`).
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any, Final

import msgspec

OVERVIEW: Final = "overview"
NODES: Final = "nodes"
HOLDERS: Final = "holders"
#: Topics that are folded from the journal.
TOPICS: Final = (OVERVIEW, NODES, HOLDERS)
#: Topics that are judged once a second (`tangram_web.problems`).
PROBLEMS: Final = "problems"
RESOURCES: Final = "resources"
#: What cards of GPUs do (`tangram_web.live.gpu_use`), published with them.
GPUS: Final = "gpus"
_ALL: Final = (*TOPICS, PROBLEMS, RESOURCES, GPUS)

#: Message type on the channel layer; Channels calls the consumer's method of that name.
MESSAGE_TYPE = "topic.frame"
_PROJECT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")


class TopicFrame(msgspec.Struct, frozen=True):
    """The whole state of one topic at one moment; msgpack on the wire."""

    topic: str
    #: Grows from frame to frame, over restarts as well: journal milliseconds, at least one more.
    seq: int
    #: Changes when an event changed the state; the passing of time is no change.
    revision: int
    at: float
    #: Wall clock at ``at``, seconds since the epoch.
    wall: float
    body: dict[str, Any]
    #: Replaces parts of ``body`` in a snapshot; empty where the two are equal.
    backlog: dict[str, Any] = {}

    def encode(self) -> bytes:
        """Return the frame for readers that follow the topic."""
        return _encode(self._envelope(snapshot=False) | self.body)

    def encode_snapshot(self) -> bytes:
        """Return the frame for readers that begin to follow the topic."""
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


def project_of(topic: str) -> str:
    """Return the project that a topic is about; empty: all of them."""
    return topic.partition("@")[2]


def group_of(topic: str) -> str:
    """Return the channel-layer group that carries ``topic``."""
    base, at, project = topic.partition("@")
    # Group names are shorter than project names and allow fewer characters.
    return f"topic.{base}.{sha256(project.encode()).hexdigest()[:32]}" if at else f"topic.{base}"


def is_topic(name: str) -> bool:
    """Return whether ``name`` is the name of a topic."""
    base, at, project = name.partition("@")
    return base in _ALL and (not at or _PROJECT.fullmatch(project) is not None)
