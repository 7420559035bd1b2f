"""Websocket of the live pages: topics in, newest frames out.

The client sends JSON: ``{"sub": ["overview", "nodes"], "hz": 4}`` replaces its subscriptions (an
empty list: none), ``{"resync": "overview"}`` requests a snapshot. The server sends binary frames
(`tangram_web.live.topics.TopicFrame`), a snapshot first, and JSON ``{"error": …}``.

A user that may not see all projects follows topics of single ones (``overview@lab``); for a topic
that the user may not follow, the error is that of an unknown topic. While a topic of a project is
followed, the consumer records this (`topic_store.record_followed`): only followed projects are
folded.

When Redis does not answer in time, the socket is closed with `CLOSE_TRY_AGAIN` and the page
reconnects: half a subscription would look like an idle system.

Each topic has one slot that holds its newest frame: a client that reads slowly, or set a low rate,
gets fewer frames and never old ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import msgspec
from asgiref.sync import sync_to_async
from channels.auth import get_user
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.sessions.backends.base import SessionBase
from django.urls import URLPattern, path
from msgspec import Meta

from domain.errors import Unavailable
from tangram_web.lib.bus import PATIENCE_SECONDS, with_timeout
from tangram_web.live.access import Sight, sight_of
from tangram_web.live.topic_store import FOLLOW_SECONDS, newest_snapshot, record_followed
from tangram_web.live.topics import group_of, is_topic, project_of

log = logging.getLogger(__name__)

CLOSE_UNAUTHORISED: Final = 4401
#: "Try again later" in the registry of RFC 6455.
CLOSE_TRY_AGAIN: Final = 1013
#: A page whose session ended receives frames for at most this long.
RECHECK_SECONDS: Final = 60.0
MAX_MESSAGE_BYTES: Final = 4096


class ClientMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message from a page."""

    sub: Annotated[list[str], Meta(max_length=64)] | None = None
    #: Frames per second, at most.
    hz: Annotated[float, Meta(ge=0.2, le=10)] | None = None
    resync: str | None = None


_decode = msgspec.json.Decoder(ClientMessage).decode


class LiveConsumer(AsyncWebsocketConsumer):
    """Sends frames to one page."""

    def __init__(
        self,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        snapshot: Callable[[str], Awaitable[bytes | None]] = newest_snapshot,
        recheck_seconds: float = RECHECK_SECONDS,
        follow: Callable[[set[str]], Awaitable[None]] = record_followed,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        super().__init__()
        self._pause = pause
        self._snapshot = snapshot
        self._recheck_seconds = recheck_seconds
        self._record_followed = follow
        self._patience_seconds = patience_seconds
        self._recorder: asyncio.Task[None] | None = None
        self._sight: Sight | None = None
        self._hz = 4.0
        self._topics: set[str] = set()
        self._slots: dict[str, bytes] = {}
        self._filled = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._checked_at = 0.0
        self._ended = False

    async def connect(self) -> None:
        """Accept the socket; close it with a code if the user may not see any project."""
        # Browsers see the close code of accepted sockets only.
        await self.accept()
        self._sight = await sync_to_async(sight_of)(self.scope.get("user"))
        if self._sight is None:
            await self.close(CLOSE_UNAUTHORISED)
            return
        self._checked_at = asyncio.get_running_loop().time()
        self._sender = asyncio.create_task(self._serve())

    async def disconnect(self, code: int) -> None:
        """Stop sending and leave all topics."""
        self._ended = True
        for task in (self._sender, self._recorder):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        with contextlib.suppress(Unavailable):
            await self._follow(set())

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Apply a message of the page, or send what is wrong with it."""
        if self._sender is None:
            return
        if text_data is None or len(text_data) > MAX_MESSAGE_BYTES:
            await self._send_error(f"send JSON text of at most {MAX_MESSAGE_BYTES} characters")
            return
        try:
            message = _decode(text_data)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            await self._send_error(str(error))
            return
        unknown = [name for name in self._named(message) if not self._may_follow(name)]
        if unknown:
            await self._send_error(f"there is no topic {unknown[0][:64]!r}")
            return
        try:
            await self._apply(message)
        except Unavailable as error:
            log.warning("closing the socket of a live page: %s", error)
            await self.close(CLOSE_TRY_AGAIN)

    async def topic_frame(self, event: dict[str, Any]) -> None:
        """Replace the frame in its topic's slot."""
        if event["topic"] in self._topics:
            self._slots[event["topic"]] = event["frame"]
            self._filled.set()

    @staticmethod
    def _named(message: ClientMessage) -> list[str]:
        return (message.sub or []) + ([message.resync] if message.resync is not None else [])

    async def _apply(self, message: ClientMessage) -> None:
        if message.hz is not None:
            self._hz = message.hz
        if message.sub is not None:
            wanted = set(message.sub)
            fresh = wanted - self._topics
            await self._follow(wanted)
            for topic in sorted(fresh):
                await self._send_snapshot(topic)
        if message.resync is not None and message.resync in self._topics:
            await self._send_snapshot(message.resync)

    def _may_follow(self, topic: str) -> bool:
        if self._sight is None or not is_topic(topic):
            return False
        project = project_of(topic)
        return self._sight.sees(project) if project else self._sight.everything

    async def _follow(self, wanted: set[str]) -> None:
        for topic in self._topics - wanted:
            await self._in_time(self.channel_layer.group_discard, topic)
            self._topics.discard(topic)
            self._slots.pop(topic, None)
        for topic in wanted - self._topics:
            self._topics.add(topic)  # first, so that a partial change is undone at the end
            await self._in_time(self.channel_layer.group_add, topic)
        if self._recorder is None and any(map(project_of, wanted)):
            self._recorder = asyncio.create_task(self._keep_recording())

    async def _in_time(self, change: Callable[[str, str], Awaitable[None]], topic: str) -> None:
        await with_timeout(change(group_of(topic), self.channel_name), self._patience_seconds)

    async def _keep_recording(self) -> None:
        """Record the followed projects while there are any."""
        # The Redis client can lose a cancellation that meets a reply, so the flag is checked too.
        while not self._ended and (projects := set(filter(None, map(project_of, self._topics)))):
            await self._record_followed(projects)
            await asyncio.sleep(FOLLOW_SECONDS * (not self._ended))
        self._recorder = None

    async def _send_snapshot(self, topic: str) -> None:
        snapshot = await self._snapshot(topic)
        if snapshot is not None:
            await self.send(bytes_data=snapshot)

    async def _send_error(self, error: str) -> None:
        await self.send(text_data=msgspec.json.encode({"error": error}).decode())

    async def _serve(self) -> None:
        # A closed connection raises OSError here, before its disconnect arrives.
        with contextlib.suppress(OSError):
            await self._send_slots()

    async def _send_slots(self) -> None:
        """Send the frames in the slots at the client's rate until the connection ends."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            if not await self._still_allowed():
                await self.close(CLOSE_UNAUTHORISED)
                return
            # Waits for the client to read, while newer frames replace those still in the slots.
            while self._slots:
                _, frame = self._slots.popitem()
                await self.send(bytes_data=frame)
            await self._pause(1 / self._hz)

    async def _still_allowed(self) -> bool:
        """Check again from time to time: the session or the user's access may have ended."""
        now = asyncio.get_running_loop().time()
        if now - self._checked_at < self._recheck_seconds:
            return True
        self._checked_at = now
        session: SessionBase | None = self.scope.get("session")
        if session is None:
            return False
        # The scope holds the session as it was when the socket opened.
        stored = session.__class__(session.session_key)
        self._sight = await sync_to_async(sight_of)(await get_user({"session": stored}))
        return all(map(self._may_follow, self._topics)) and self._sight is not None


websocket_urlpatterns: list[URLPattern] = [path("ws/live/", LiveConsumer.as_asgi())]
