"""Publication of live frames: one message per topic and moment, however many pages are open.

`LiveFeed` holds everything that is folded for pages and metrics, and the stores of its history.
`FramePublisher` sends its frames through the channel layer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from time import monotonic, time
from types import TracebackType
from typing import Any, Final, Protocol, Self

import redis
from django.conf import settings

from domain.codec import JournalEntry
from domain.redis_keys import Keys
from tangram_web.live.family_times import CommandFamilies, CommandFamilyStore
from tangram_web.live.frames import FrameFold
from tangram_web.live.gpu_history import GpuHistory, GpuHistoryStore
from tangram_web.live.project_frames import ProjectFrames
from tangram_web.live.rollups.projects import ProjectRollups
from tangram_web.live.rollups.rollup import RollupBuilder
from tangram_web.live.rollups.store import RollupStore
from tangram_web.live.topic_store import followed_projects, save_snapshots
from tangram_web.live.topics import MESSAGE_TYPE, TopicFrame, group_of
from tangram_web.metrics.totals import Totals

#: A topic without a change is sent this often, as a sign of life.
HEARTBEAT_SECONDS: Final = 2.0
#: The same while no page is open: the snapshot alone is read then, by the watch of problems.
UNHEARD_SECONDS: Final = 6.0
#: Durations of families are stored this often; the journal has what came since.
FAMILIES_SECONDS: Final = 60.0


class GroupSender(Protocol):
    """The part of a channel layer that sends."""

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        """Send ``message`` to all members of ``group``."""


class LiveFeed:
    """Frames of all projects and of followed ones, and the history that is stored for charts."""

    def __init__(self, client: redis.Redis, keys: Keys, totals: Totals) -> None:
        self._client = client
        self._prefix = keys.prefix
        self._rollup_store = RollupStore(client, keys)
        self._gpu_store = GpuHistoryStore(client, keys)
        self._fold = FrameFold(totals)
        self._family_store = CommandFamilyStore(client, keys)
        self._families_saved_at = monotonic()
        window = settings.TANGRAM_PROBLEMS.slow_window_seconds
        self._fold.family_times = CommandFamilies(window, self._family_store.load())
        self._fold.rollups = RollupBuilder(self._rollup_store.newest())
        self._fold.project_activity.rollups = ProjectRollups(self._rollup_store.projects())
        _, newest = self._gpu_store.span() or (-1, -1)
        self._fold.gpu_history = GpuHistory(newest)
        self._projects = ProjectFrames(self._fold)

    def fold(self, entry: JournalEntry, *, counted: bool) -> None:
        """Fold one journal entry; ``counted``: the metrics contain it already."""
        self._fold.fold(entry, counted=counted)
        self._projects.fold(entry)

    def follow_projects(self) -> None:
        """Fold the projects that pages follow now, and no others. Raises redis.RedisError."""
        self._projects.follow(followed_projects(self._client, self._prefix, time()))

    def frames(self, at: float) -> dict[str, TopicFrame]:
        """Return the frame of each topic at journal time ``at``."""
        return self._fold.frames(at) | self._projects.frames(at)

    def save_history(self) -> None:
        """Store complete rollups, GPU snapshots and durations of families, if any. Raises redis.RedisError."""
        if self._fold.rollups.due:
            self._rollup_store.save(self._fold.rollups.take_complete())
            self._rollup_store.save_projects(self._fold.project_activity.rollups.take_pending())
            self._gpu_store.save(self._fold.gpu_history.take())
        if monotonic() - self._families_saved_at >= FAMILIES_SECONDS:
            self._families_saved_at = monotonic()
            self._family_store.save(self._fold.family_times.state())


class FramePublisher:
    """Publishes frames from one thread, and skips topics without a change.

    The channel layer keeps its connection per event loop, so this object owns one loop and uses
    it for every call: make, use and close it in the same thread, outside of any running loop.
    """

    def __init__(self, layer: GroupSender, store: redis.Redis, prefix: str) -> None:
        self._layer = layer
        self._store = store
        self._prefix = prefix
        self._runner = asyncio.Runner()
        self._sent: dict[str, TopicFrame] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def publish(self, frames: Mapping[str, TopicFrame]) -> list[str]:
        """Publish the frames that changed or are due; return their topics."""
        due = [frame for frame in frames.values() if self._due(frame, HEARTBEAT_SECONDS)]
        if not any(map(self._changed, due)) and not self._heard():
            due = [frame for frame in due if self._due(frame, UNHEARD_SECONDS)]
        if due:
            # Stored before it is sent: a new page's snapshot is never older than its frames.
            save_snapshots(self._store, self._prefix, due)
            self._runner.run(self._send(due))
            self._sent |= {frame.topic: frame for frame in due}
        for topic in self._sent.keys() - frames.keys():
            del self._sent[topic]
        return [frame.topic for frame in due]

    def close(self) -> None:
        """Close the loop, and the channel layer's connection with it."""
        self._runner.close()

    def _due(self, frame: TopicFrame, heartbeat_seconds: float) -> bool:
        if self._changed(frame):
            return True
        return frame.at - self._sent[frame.topic].at >= heartbeat_seconds

    def _changed(self, frame: TopicFrame) -> bool:
        sent = self._sent.get(frame.topic)
        return sent is None or sent.revision != frame.revision

    def _heard(self) -> bool:
        """Whether a web process listens to a topic for a page; its channel layer names groups so."""
        return bool(self._store.pubsub_channels(f"{self._prefix}:live__group__*"))

    async def _send(self, frames: Iterable[TopicFrame]) -> None:
        for frame in frames:
            # A page that followed the topic before its first frame found no snapshot.
            known = frame.topic in self._sent
            encoded = frame.encode() if known else frame.encode_snapshot()
            message = {"type": MESSAGE_TYPE, "topic": frame.topic, "frame": encoded}
            await self._layer.group_send(group_of(frame.topic), message)
