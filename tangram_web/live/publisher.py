"""Send frames out: one message per topic and moment, however many pages are open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Protocol, Self

import redis

from tangram_web.live.frames import Frame
from tangram_web.live.topics import MESSAGE_TYPE, group_of, project_of, snapshot_key

#: A topic that has nothing new still shows life this often.
HEARTBEAT_SECONDS: Final = 2.0
#: A snapshot that nobody renewed for this long is no answer to a newcomer.
SNAPSHOT_TTL_SECONDS: Final = 3600
#: The same of single projects, which nobody folds when nobody watches.
PART_TTL_SECONDS: Final = 10


class GroupSender(Protocol):
    """The part of a channel layer that sends."""

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        """Send ``message`` to everybody in ``group``."""


class FramePublisher:
    """Publishes frames from one thread, skipping topics that have nothing new to say.

    The channel layer keeps its connection per event loop, so this object owns one loop and uses
    it for every call: make, use and close it in the same thread, outside of any running loop.
    """

    def __init__(self, layer: GroupSender, store: redis.Redis, prefix: str) -> None:
        self._layer = layer
        self._store = store
        self._prefix = prefix
        self._runner = asyncio.Runner()
        self._sent: dict[str, Frame] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def publish(self, frames: Mapping[str, Frame]) -> list[str]:
        """Publish what is new or due; return the topics that were sent."""
        due = [frame for frame in frames.values() if self._due(frame)]
        if due:
            self._keep(due)
            self._runner.run(self._send(due))
            self._sent |= {frame.topic: frame for frame in due}
        for topic in self._sent.keys() - frames.keys():
            del self._sent[topic]
        return [frame.topic for frame in due]

    def close(self) -> None:
        """Close the loop, and the channel layer's connection with it."""
        self._runner.close()

    def _due(self, frame: Frame) -> bool:
        sent = self._sent.get(frame.topic)
        return (
            sent is None
            or sent.revision != frame.revision
            or frame.at - sent.at >= HEARTBEAT_SECONDS
        )

    def _keep(self, frames: Iterable[Frame]) -> None:
        """Store snapshots before sending, so that a newcomer's is never older than its frames."""
        with self._store.pipeline(transaction=False) as pipeline:
            for frame in frames:
                key = snapshot_key(self._prefix, frame.topic)
                lasts = PART_TTL_SECONDS if project_of(frame.topic) else SNAPSHOT_TTL_SECONDS
                pipeline.set(key, frame.encode_snapshot(), ex=lasts)
            pipeline.execute()

    async def _send(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            # Who followed a topic before its first frame had no snapshot of it.
            known = frame.topic in self._sent
            encoded = frame.encode() if known else frame.encode_snapshot()
            message = {"type": MESSAGE_TYPE, "topic": frame.topic, "frame": encoded}
            await self._layer.group_send(group_of(frame.topic), message)
