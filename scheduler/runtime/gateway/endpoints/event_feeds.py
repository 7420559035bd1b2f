"""Endpoints of feeds: changes of actions as server-sent events, and the log of finished actions."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from time import monotonic

import redis
from msgspec import UNSET
from msgspec.structs import asdict

from contract.routes import MAX_COMPLETIONS
from domain.codec import JournalEntry, read_entry
from domain.decisions import Finish, Grant
from domain.errors import CapacityError, InvalidRequest, Unavailable, Unreadable
from domain.events import ActionFinished, ActionSubmitted
from domain.journal_reducer import JournalReducer, on
from domain.principals import Principal, Scope
from scheduler.runtime.action_views import finished_view, granted_units, placement
from scheduler.runtime.gateway.authentication import REVOCATION_SECONDS
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.http import (
    HttpError,
    HttpRequest,
    HttpResponse,
    Send,
    encode_json,
    send_at_shutdown,
)
from scheduler.runtime.gateway.request_parsing import number, wait_seconds
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.connection import AsyncRedisConnection, read_stream_async
from scheduler.runtime.redis.journal import START

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 15.0
READ_ENTRIES = 64
BLOCK_SECONDS = 1.0
#: A stream outlives the revocation of its token by about this time.
RECHECK_SECONDS = REVOCATION_SECONDS
#: Completions are numbered by the sequence of their entry times this, plus their place in it.
PLACES = 65_536
#: A place behind every event of an entry.
LAST_PLACE = 999_999_999
_END = {"type": "http.response.body", "body": b""}
_CURSOR = re.compile(r"([0-9]{1,20})-([0-9]{1,20})/([0-9]{1,9})")
#: Both parts of a stream id are below this.
_END_OF_IDS = 2**64
#: Cursor of what follows from here on.
NOW = "now"
#: Types of events.
TYPES = ("submitted", "granted", "finished")


def completions_cursor(after: str, seq: int) -> int:
    """Return the cursor of a log of ends; ``seq``: number of the newest entry. Raises InvalidRequest."""
    if after == NOW:
        return seq * PLACES + PLACES - 1
    if after and not after.isdigit():
        raise InvalidRequest("after is a cursor from next, or now", pointer="?after")
    return int(number(after or "0", "after", 2**62))


class EventFeeds:
    """Handlers of ``/events`` and ``/completions``."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._open = 0

    async def completions(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """GET /completions?after=CURSOR&limit=&wait=: finished actions in journal order.

        ``after`` empty: from the first; ``now``: from here on.
        """
        query = request.query()
        limit = int(number(query.get("limit", "100"), "limit", MAX_COMPLETIONS)) or 1
        start = completions_cursor(query.get("after", ""), self._context.tail.seq)
        if query.get("after") == NOW:
            return HttpResponse(200, {"items": [], "next": str(start), "more": False})
        deadline = monotonic() + wait_seconds(query, request.header(b"prefer"))
        seen = ""
        while True:
            page = await self._context.backend.completions(principal.project, start, limit)
            left = deadline - monotonic()
            if page.items or left <= 0:
                return HttpResponse(200, page)
            seen = await self._context.newer_rows(seen, left)

    async def events(self, request: HttpRequest, principal: Principal, send: Send) -> None:
        """GET /events: changes of actions, as server-sent events.

        Resumes behind ``Last-Event-ID``. Filters: ``task``, ``trajectory``, ``types``; each exact,
        within the caller's projects. No filter applies to ``gap``.
        """
        if self._open >= (most := self._context.streams):
            raise CapacityError(
                f"{most} event streams are open here already: TANGRAM_WEB_STREAMS is the limit"
            )

        async def is_valid() -> bool:
            return await self._is_valid(request, principal)

        feed = _EventFeed(request, principal, self._context.tail.position)
        self._open += 1
        connection = AsyncRedisConnection(self._context.client)
        try:
            await send(_start(request))
            reading = asyncio.ensure_future(self._pump(feed, connection, send, is_valid))
            gone = asyncio.ensure_future(request.disconnected())
            try:
                # A cancellation is the shutdown of the server: the stream ends in order.
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({reading, gone}, return_when=asyncio.FIRST_COMPLETED)
                left = gone.done()
            finally:
                for task in (reading, gone):
                    task.cancel()
                ended, _ = await asyncio.gather(reading, gone, return_exceptions=True)
            if isinstance(ended, Exception):
                log.warning("a stream of events ends, its client reconnects: %s", ended)
            if not left:
                await send_at_shutdown(send(_END))
        finally:
            self._open -= 1
            connection.close()

    async def _is_valid(self, request: HttpRequest, principal: Principal) -> bool:
        """Whether the token still has its project: it may have been revoked or moved."""
        try:
            found = await self._context.tokens.principal(request, Scope.READ)
        except Unavailable:
            return True  # the database is away: the stream continues
        except HttpError:
            return False
        return found.project == principal.project

    async def _pump(
        self,
        feed: _EventFeed,
        connection: AsyncRedisConnection,
        send: Send,
        is_valid: Callable[[], Awaitable[bool]],
    ) -> None:
        """Send events to the client; return when its token is not valid any more."""
        sent_at = checked_at = monotonic()
        # The first id is where this stream begins: a client that disconnects at once resumes there.
        await send(_chunk(f"retry: 1000\nid: {feed.cursor}\n\n".encode()))
        while keep_running():
            try:
                entries = await read_stream_async(
                    connection,
                    self._context.keys.journal,
                    feed.position,
                    READ_ENTRIES,
                    BLOCK_SECONDS,
                )
            except redis.RedisError as error:
                raise Unavailable(str(error)) from None
            lines = b"".join(feed.lines(key, fields) for key, fields in entries)
            if monotonic() - checked_at >= RECHECK_SECONDS:
                if not await is_valid():
                    return
                checked_at = monotonic()
            if lines:
                await send(_chunk(lines))
                sent_at = monotonic()
            elif monotonic() - sent_at >= HEARTBEAT_SECONDS - BLOCK_SECONDS:
                await send(_chunk(b": still here\n\n"))
                sent_at = monotonic()


class _EventFeed:
    """Position of one client in the journal, and its filters."""

    def __init__(self, request: HttpRequest, principal: Principal, newest: str) -> None:
        self._bodies = _EventBodies()
        query = request.query()
        last = request.header(b"last-event-id") or query.get("after", "")
        self.position, self._skip = newest, -1
        if last:
            self._resume_in, self._skip = _place(last)
            self.position = _just_before(self._resume_in)
        else:
            self._resume_in = ""
        self.cursor = last or f"{newest}/{LAST_PLACE}"
        self._project = principal.project
        self._task = query.get("task")
        self._trajectory = query.get("trajectory")
        self._types = set(filter(None, query.get("types", "").split(",")))
        if not self._types <= {*TYPES}:
            raise InvalidRequest(f"types are {', '.join(TYPES)}", pointer="?types")

    def lines(self, stream_id: str, fields: Mapping[bytes, bytes]) -> bytes:
        """Return the events of one entry for this client; a ``gap`` for one that cannot be read."""
        self.position = stream_id
        skip = self._skip if stream_id == self._resume_in else -1
        try:
            entry = read_entry(stream_id, fields)
        except Unreadable as error:
            return b"" if skip >= LAST_PLACE else _gap(stream_id, error)
        found = []
        for place, (kind, body) in enumerate(self._bodies.of(entry)):
            if place > skip and self._wanted(kind, body):
                data = encode_json(body)
                head = f"event: {kind}\nid: {stream_id}/{place}\ndata: ".encode()
                found.append(head + data + b"\n\n")
        return b"".join(found)

    def _wanted(self, kind: str, body: dict[str, object]) -> bool:
        return (
            (self._project is None or body["project"] == self._project)
            and (not self._types or kind in self._types)
            and (self._task is None or body["task"] == self._task)
            and (self._trajectory is None or body["trajectory"] == self._trajectory)
        )


def _place(cursor: str) -> tuple[str, int]:
    """Return the entry of a cursor, and the place in it. Raises InvalidRequest."""
    match = _CURSOR.fullmatch(cursor)
    if match is None or max(int(match[1]), int(match[2])) >= _END_OF_IDS:
        raise InvalidRequest("Last-Event-ID is not one of ours", pointer="?after")
    return f"{int(match[1])}-{int(match[2])}", int(match[3])


def _just_before(stream_id: str) -> str:
    """Return the position before an entry, to read it again: the client may have seen a part."""
    milliseconds, sequence = map(int, stream_id.split("-"))
    if sequence:
        return f"{milliseconds}-{sequence - 1}"
    return f"{milliseconds - 1}-{_END_OF_IDS - 1}" if milliseconds else START


def _gap(stream_id: str, error: Unreadable) -> bytes:
    """Return the event of a missing entry, which no filter drops: its content is unknown."""
    log.error("an entry is skipped in a stream of events: %s", error)
    said = "an event that this web process cannot read is missing; query your actions"
    data = encode_json({"id": "", "state": "unknown", "entry": stream_id, "detail": said})
    return f"event: gap\nid: {stream_id}/{LAST_PLACE}\ndata: ".encode() + data + b"\n\n"


class _EventBodies(JournalReducer):
    """Type and body of each event that a stream shows of one entry, in the order of their places."""

    def __init__(self) -> None:
        super().__init__()
        self._entry: JournalEntry
        self._reports: dict[str, ActionFinished] = {}
        self.found: list[tuple[str, dict[str, object]]] = []

    def of(self, entry: JournalEntry) -> list[tuple[str, dict[str, object]]]:
        """Return the events of ``entry``."""
        self.reduce(entry)
        return self.found

    def begin(self, entry: JournalEntry) -> None:
        self._entry, self.found = entry, []
        self._reports.clear()

    @on(ActionSubmitted)
    def _submitted(self, event: ActionSubmitted) -> None:
        action = event.action
        body: dict[str, object] = {
            "id": action.id,
            "state": "queued",
            "project": action.project,
            "task": action.task,
            "trajectory": action.trajectory,
            "kind": action.kind,
        }
        self.found.append(("submitted", body))

    @on(ActionFinished)
    def _reported(self, report: ActionFinished) -> None:
        self._reports[report.action_id] = report

    @on(Grant)
    def _granted(self, grant: Grant) -> None:
        body: dict[str, object] = {
            "id": grant.action_id,
            "state": "granted",
            "project": grant.project,
            "task": grant.task,
            "trajectory": grant.trajectory,
            "units": granted_units(grant.node, grant.allocations),
            "placement": placement(grant.node, grant.allocations),
            "attempt": grant.attempt,
        }
        self.found.append(("granted", body))

    @on(Finish)
    def _finished(self, finish: Finish) -> None:
        entry, report = self._entry, self._reports.get(finish.action_id)
        view = finished_view(finish, report, entry.at, entry.wall_offset_seconds)
        members = {name: value for name, value in asdict(view).items() if value is not UNSET}
        self.found.append(("finished", members))


def _start(request: HttpRequest) -> dict[str, object]:
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
