"""One websocket per page: topics in, newest frames out.

The client speaks JSON: ``{"sub": ["overview", "nodes"], "hz": 4}`` says all it wants from now on
(an empty list: nothing), ``{"resync": "overview"}`` asks for a snapshot. The server answers with
binary frames (`tangram_web.live.frames.Frame`), a snapshot first, and with JSON ``{"error": …}``.

Each topic has one slot and the newest frame wins it: a client that reads slowly, or asked for a
low rate, gets fewer frames and never old ones.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import msgspec
from asgiref.sync import sync_to_async
from channels.auth import get_user
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.sessions.backends.base import SessionBase
from msgspec import Meta

from tangram_web.live.access import may_watch
from tangram_web.live.snapshots import newest_snapshot
from tangram_web.live.topics import group_of, is_topic

CLOSE_UNAUTHORISED: Final = 4401
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
    ) -> None:
        super().__init__()
        self._pause = pause
        self._snapshot = snapshot
        self._recheck_seconds = recheck_seconds
        self._hz = 4.0
        self._topics: set[str] = set()
        self._slots: dict[str, bytes] = {}
        self._filled = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._checked_at = 0.0

    async def connect(self) -> None:
        """Let staff in; tell everybody else why not."""
        # Browsers see the close code only of a socket that was accepted.
        await self.accept()
        if not await sync_to_async(may_watch)(self.scope.get("user")):
            await self.close(CLOSE_UNAUTHORISED)
            return
        self._checked_at = asyncio.get_running_loop().time()
        self._sender = asyncio.create_task(self._serve())

    async def disconnect(self, code: int) -> None:
        """Stop sending and leave all topics."""
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait([self._sender])
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
        unknown = [name for name in self._named(message) if not is_topic(name)]
        if unknown:
            await self._complain(f"there is no topic {unknown[0][:64]!r}")
        else:
            await self._obey(message)

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

    async def _follow(self, wanted: set[str]) -> None:
        for topic in self._topics - wanted:
            await self.channel_layer.group_discard(group_of(topic), self.channel_name)
            self._slots.pop(topic, None)
        for topic in wanted - self._topics:
            await self.channel_layer.group_add(group_of(topic), self.channel_name)
        self._topics = wanted

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
        return await sync_to_async(may_watch)(await get_user({"session": stored}))
