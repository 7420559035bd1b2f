"""Feeds: server-sent events, and the log of finished actions."""

from __future__ import annotations

import asyncio
import re
from time import monotonic

import redis

from domain.access import Principal
from domain.codec import JOURNAL_FIELD, JournalEntry, decode_entry
from domain.decisions import Finish, Grant
from domain.errors import CapacityError, InvalidRequest, Unavailable
from domain.events import ActionFinished, ActionSubmitted
from scheduler.runtime.connection import going_on
from scheduler.runtime.gateway.bodies import number, wait_seconds
from scheduler.runtime.gateway.context import Context
from scheduler.runtime.gateway.http import Request, Response, Send, encode_json
from scheduler.runtime.journal import START
from scheduler.runtime.lane import AsyncLane, read_stream_async
from scheduler.runtime.views import finished_view, granted_units, placement

HEARTBEAT_SECONDS = 15.0
READ_ENTRIES = 64
MAX_STREAMS = 128
BLOCK_SECONDS = 1.0
MAX_PAGE = 500
#: Completions are numbered by journal sequence and place in the entry.
PLACES = 65_536
#: Behind every event of an entry.
LAST_PLACE = 999_999_999
_CURSOR = re.compile(r"(\d{1,20}-\d{1,20})/(\d{1,9})")


class Feeds:
    """Handlers of ``/events`` and ``/completions``."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open = 0

    async def completions(self, request: Request, principal: Principal) -> Response:
        """GET /completions?after=CURSOR&limit=&wait=: finished actions in journal order.

        ``after`` empty: from the first; ``now``: from here on.
        """
        query = request.query()
        limit = int(number(query.get("limit", "100"), "limit", MAX_PAGE)) or 1
        after = query.get("after", "")
        if after == "now":
            cursor = str(self._context.tail.seq * PLACES + PLACES - 1)
            return Response(200, {"items": [], "next": cursor, "more": False})
        start = int(number(after or "0", "after", 2**62)) if after.isdigit() else -1
        if after and start < 0:
            raise InvalidRequest("after is a cursor from next, or now", pointer="?after")
        deadline = monotonic() + wait_seconds(query, request.header(b"prefer"))
        while True:
            page = await self._context.backing.completions(principal.project, max(start, 0), limit)
            left = deadline - monotonic()
            if page.items or left <= 0:
                return Response(200, page)
            await self._context.tail.next_move(min(left, 1.0))
            await asyncio.sleep(min(left, 0.1))  # rows follow the journal at their own pace

    async def events(self, request: Request, principal: Principal, send: Send) -> None:
        """GET /events: what happens to actions, as server-sent events.

        Resumes behind ``Last-Event-ID``. Filters: ``task``, ``trajectory``, ``types``.
        """
        if self._open >= MAX_STREAMS:
            raise CapacityError(f"{MAX_STREAMS} event streams are open here already")
        feed = _Feed(request, principal, self._context.tail.position)
        self._open += 1
        lane = AsyncLane(self._context.client)
        try:
            await send(_start(request))
            reading = asyncio.ensure_future(self._pump(feed, lane, send))
            gone = asyncio.ensure_future(request.disconnected())
            try:
                await asyncio.wait({reading, gone}, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    reading.result()
            except asyncio.CancelledError:  # the server ends: so does the stream, in good order
                await send({"type": "http.response.body", "body": b""})
            finally:
                for task in (reading, gone):
                    task.cancel()
                await asyncio.gather(reading, gone, return_exceptions=True)
        finally:
            self._open -= 1
            lane.close()

    async def _pump(self, feed: _Feed, lane: AsyncLane, send: Send) -> None:
        spoke_at = monotonic()
        # The first id is where this stream begins: whoever loses it at once can resume there.
        await send(_chunk(f"retry: 1000\nid: {feed.cursor}\n\n".encode()))
        while going_on():
            try:
                entries = await read_stream_async(
                    lane, self._context.keys.journal, feed.position, READ_ENTRIES, BLOCK_SECONDS
                )
            except redis.RedisError as error:
                raise Unavailable(str(error)) from None
            lines = b"".join(
                feed.lines(key, decode_entry(fields[JOURNAL_FIELD])) for key, fields in entries
            )
            if lines:
                await send(_chunk(lines))
                spoke_at = monotonic()
            elif monotonic() - spoke_at >= HEARTBEAT_SECONDS - BLOCK_SECONDS:
                await send(_chunk(b": still here\n\n"))
                spoke_at = monotonic()


class _Feed:
    """One client's place in the journal, and what it wants to see."""

    def __init__(self, request: Request, principal: Principal, newest: str) -> None:
        query = request.query()
        last = request.header(b"last-event-id") or query.get("after", "")
        self.position, self._skip = newest, -1
        if last:
            match = _CURSOR.fullmatch(last)
            if match is None:
                raise InvalidRequest("Last-Event-ID is not one of ours", pointer="?after")
            milliseconds, _, sequence = match[1].partition("-")
            if match[1] == START:
                milliseconds, sequence = "1", "0"
            # Read the cursor's own entry again: the client may have seen only part of it.
            before = int(sequence) - 1
            self.position = (
                f"{milliseconds}-{before}" if before >= 0 else f"{int(milliseconds) - 1}-{2**63}"
            )
            self._resume_in, self._skip = match[1], int(match[2])
        else:
            self._resume_in = ""
        self.cursor = last or f"{newest}/{LAST_PLACE}"
        self._project = principal.project
        self._task = query.get("task")
        self._trajectory = query.get("trajectory")
        self._types = set(filter(None, query.get("types", "").split(",")))

    def lines(self, stream_id: str, entry: JournalEntry) -> bytes:
        """Return one entry's events for this client."""
        self.position = stream_id
        skip = self._skip if stream_id == self._resume_in else -1
        found = []
        for place, (kind, body) in enumerate(_happenings(entry)):
            if place > skip and self._wanted(kind, body):
                data = encode_json(body)
                head = f"event: {kind}\nid: {stream_id}/{place}\ndata: ".encode()
                found.append(head + data + b"\n\n")
        return b"".join(found)

    def _wanted(self, kind: str, body: dict[str, object]) -> bool:
        return (
            (self._project is None or body.get("project") == self._project)
            and (not self._types or kind in self._types)
            and (self._task is None or body.get("task") in (self._task, None))
            and (self._trajectory is None or body.get("trajectory") in (self._trajectory, None))
        )


def _happenings(entry: JournalEntry) -> list[tuple[str, dict[str, object]]]:
    found: list[tuple[str, dict[str, object]]] = []
    reports: dict[str, ActionFinished] = {}
    for event in entry.events:
        if isinstance(event, ActionSubmitted):
            action = event.action
            found.append(
                (
                    "submitted",
                    {
                        "id": action.id,
                        "state": "queued",
                        "project": action.project,
                        "task": action.task,
                        "trajectory": action.trajectory,
                        "kind": action.kind,
                    },
                )
            )
        elif isinstance(event, ActionFinished):
            reports[event.action_id] = event
    for decision in entry.decisions:
        if isinstance(decision, Grant):
            body: dict[str, object] = {
                "id": decision.action_id,
                "state": "granted",
                "project": decision.project,
                "units": granted_units(decision.node, decision.allocations),
                "placement": placement(decision.node, decision.allocations),
                "attempt": decision.attempt,
            }
            found.append(("granted", body))
        elif isinstance(decision, Finish):
            report = reports.get(decision.action_id)
            view = finished_view(decision, report, entry.at, entry.wall_offset_seconds)
            found.append(("finished", {name: getattr(view, name) for name in _fields(view)}))
    return found


def _fields(view: object) -> tuple[str, ...]:
    return view.__struct_fields__  # type: ignore[attr-defined,no-any-return]


def _start(request: Request) -> dict[str, object]:
    return {
        "type": "http.response.start",
        "status": 200,
        "headers": [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            (b"x-request-id", request.id.encode("latin-1")),
        ],
    }


def _chunk(data: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": True}
