"""One websocket per page: topics in, newest frames out.

The client speaks JSON: ``{"sub": ["overview", "nodes"], "hz": 4}`` says all it wants from now on
(an empty list: nothing), ``{"resync": "overview"}`` asks for a snapshot. The server answers with
binary frames (`tangram_web.live.frames.Frame`), a snapshot first, and with JSON ``{"error": …}``.

Who may not see all projects follows topics of single ones (``overview@lab``); a topic that he may
not follow is answered as one that does not exist. While a topic of a project is followed, the
consumer says so (`tangram_web.live.watching`), since only what is watched is folded.

Where Redis does not answer in time, the socket is closed with `CLOSE_TRY_AGAIN`, and the page comes
again: half a subscription would look like a system in which nothing happens.

Each topic has one slot and the newest frame wins it: a client that reads slowly, or asked for a
low rate, gets fewer frames and never old ones.
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
from msgspec import Meta

from domain.errors import Unavailable
from tangram_web.lib.bus import PATIENCE_SECONDS, in_time
from tangram_web.live.access import Sight, sight_of
from tangram_web.live.snapshots import newest_snapshot
from tangram_web.live.topics import WATCH_EVERY_SECONDS, group_of, is_topic, project_of
from tangram_web.live.watching import say_watched

log = logging.getLogger(__name__)

CLOSE_UNAUTHORISED: Final = 4401
#: Of RFC 6455's registry: the server cannot, now.
CLOSE_TRY_AGAIN: Final = 1013
#: A page whose session ended keeps receiving for at most this long.
RECHECK_SECONDS: Final = 60.0
MAX_MESSAGE_BYTES: Final = 4096


class ClientMessage(msgspec.Struct, forbid_unknown_fields=True):
    """What a page may say."""

    sub: Annotated[list[str], Meta(max_length=64)] | None = None
    #: Frames a second, at most.
    hz: Annotated[float, Meta(ge=0.2, le=10)] | None = None
    resync: str | None = None


_decode = msgspec.json.Decoder(ClientMessage).decode


class LiveConsumer(AsyncWebsocketConsumer):
    """Serves frames to one page."""

    def __init__(
        self,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        snapshot: Callable[[str], Awaitable[bytes | None]] = newest_snapshot,
        recheck_seconds: float = RECHECK_SECONDS,
        watch: Callable[[set[str]], Awaitable[None]] = say_watched,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        super().__init__()
        self._pause = pause
        self._snapshot = snapshot
        self._recheck_seconds = recheck_seconds
        self._watch = watch
        self._patience_seconds = patience_seconds
        self._watcher: asyncio.Task[None] | None = None
        self._sight: Sight | None = None
        self._hz = 4.0
        self._topics: set[str] = set()
        self._slots: dict[str, bytes] = {}
        self._filled = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._checked_at = 0.0
        self._ended = False

    async def connect(self) -> None:
        """Let in who may see something; tell everybody else why not."""
        # Browsers see the close code only of a socket that was accepted.
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
        for task in (self._sender, self._watcher):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        with contextlib.suppress(Unavailable):
            await self._follow(set())

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Do what the page asks, or say what is wrong with it."""
        if self._sender is None:
            return
        if text_data is None or len(text_data) > MAX_MESSAGE_BYTES:
            await self._complain(f"send JSON text of at most {MAX_MESSAGE_BYTES} characters")
            return
        try:
            message = _decode(text_data)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            await self._complain(str(error))
            return
        unknown = [name for name in self._named(message) if not self._may_follow(name)]
        if unknown:
            await self._complain(f"there is no topic {unknown[0][:64]!r}")
            return
        try:
            await self._obey(message)
        except Unavailable as error:
            log.warning("a live page is sent away: %s", error)
            await self.close(CLOSE_TRY_AGAIN)

    async def topic_frame(self, event: dict[str, Any]) -> None:
        """Put a frame into its topic's slot, over the one before it."""
        if event["topic"] in self._topics:
            self._slots[event["topic"]] = event["frame"]
            self._filled.set()

    @staticmethod
    def _named(message: ClientMessage) -> list[str]:
        return (message.sub or []) + ([message.resync] if message.resync is not None else [])

    async def _obey(self, message: ClientMessage) -> None:
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
            self._topics.add(topic)  # first: what was half done is left again at the end
            await self._in_time(self.channel_layer.group_add, topic)
        if self._watcher is None and any(map(project_of, wanted)):
            self._watcher = asyncio.create_task(self._keep_watching())

    async def _in_time(self, change: Callable[[str, str], Awaitable[None]], topic: str) -> None:
        await in_time(change(group_of(topic), self.channel_name), self._patience_seconds)

    async def _keep_watching(self) -> None:
        """Say which projects are followed, for as long as some are."""
        # Redis' client can lose a cancellation that meets a reply: the flag is looked at as well.
        while not self._ended and (projects := set(filter(None, map(project_of, self._topics)))):
            await self._watch(projects)
            await asyncio.sleep(WATCH_EVERY_SECONDS * (not self._ended))
        self._watcher = None

    async def _send_snapshot(self, topic: str) -> None:
        snapshot = await self._snapshot(topic)
        if snapshot is not None:
            await self.send(bytes_data=snapshot)

    async def _complain(self, error: str) -> None:
        await self.send(text_data=msgspec.json.encode({"error": error}).decode())

    async def _serve(self) -> None:
        # A client that is gone shows here as an OSError, before its disconnect arrives.
        with contextlib.suppress(OSError):
            await self._send_slots()

    async def _send_slots(self) -> None:
        """Send what is in the slots, at the client's pace, until the connection ends."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            if not await self._still_welcome():
                await self.close(CLOSE_UNAUTHORISED)
                return
            # Waits for the client to read, while newer frames replace those still in the slots.
            while self._slots:
                _, frame = self._slots.popitem()
                await self.send(bytes_data=frame)
            await self._pause(1 / self._hz)

    async def _still_welcome(self) -> bool:
        """Ask again now and then: the session may have ended, the person may have left."""
        now = asyncio.get_running_loop().time()
        if now - self._checked_at < self._recheck_seconds:
            return True
        self._checked_at = now
        session: SessionBase | None = self.scope.get("session")
        if session is None:
            return False
        # What the scope carries was read when the socket opened.
        stored = session.__class__(session.session_key)
        self._sight = await sync_to_async(sight_of)(await get_user({"session": stored}))
        return all(map(self._may_follow, self._topics)) and self._sight is not None
