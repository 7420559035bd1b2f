"""Where the input of a simulation comes from: a file, pasted text, or a window of the journal.

Kept deflated and within limits, and judged before it is kept: a bad line is named at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from time import time
from typing import Any, Final, NamedTuple, cast

import msgspec
import redis

from domain.codec import JOURNAL_FIELD, JournalEntry, decode_entry
from domain.decisions import Decision, Finish, Grant
from domain.errors import InvalidRequest, Unavailable
from domain.events import NO_RESULT, ActionSubmitted, Event
from simulator.llm_trace import parse_requests
from simulator.traces import parse_recordings
from tangram_client.replay.trace import TraceError
from tangram_web.lib import bus
from tangram_web.pools.selectors import current_config
from tangram_web.records.models import NodeRecord

MOST_BYTES: Final = 8 * 2**20
#: Of a journal, before it is deflated.
MOST_JOURNAL_BYTES: Final = 64 * 2**20
#: Windows that the journal is asked for; it keeps 15 minutes unless told otherwise.
WINDOWS: Final = {60: "last minute", 300: "last 5 minutes", 900: "last 15 minutes"}
_PAGE: Final = 500
_PARSERS: Final = {"ai-coding": parse_recordings, "deep-search": parse_requests}

_encode = msgspec.json.Encoder().encode


class Window(NamedTuple):
    """Some minutes of the journal, as the simulator reads them."""

    content: bytes
    actions: int
    #: Actions left out because they need what the simulated cluster does not have.
    foreign: int
    limits: dict[str, int]


def check_trace(workload: str, content: bytes) -> None:
    """Raise InvalidRequest that names the line and what is wrong with it."""
    if len(content) > MOST_BYTES:
        raise InvalidRequest(
            f"the trace has {len(content) / 2**20:.1f} MiB; at most {MOST_BYTES // 2**20} MiB",
            pointer="/trace",
        )
    try:
        _PARSERS[workload](content, "line")
    except TraceError as error:
        raise InvalidRequest(str(error).replace("line:", "line ", 1), pointer="/trace") from None


def deflated(content: bytes) -> bytes:
    """Return ``content`` as it is kept."""
    return zlib.compress(content, 6)


def inflated(content: bytes) -> bytes:
    """Return what was kept."""
    return zlib.decompress(content)


def live_window(project: str, seconds: int) -> Window:
    """Return what the journal has of the last ``seconds``, of one project's actions.

    Raises InvalidRequest when nothing ran or it is too much, Unavailable without Redis.
    """
    config = current_config()
    known = {name: milli // 1000 for name, milli in config.resources.items() if milli >= 1000}
    reader = _WindowReader(project, {"cpu", *known})
    lines, size = [], 0
    for entry in _entries(seconds):
        kept = reader.kept(entry)
        if kept is not None:
            lines.append(_encode(kept))
            size += len(lines[-1])
        if size > MOST_JOURNAL_BYTES:
            raise InvalidRequest("the window is too large; choose a shorter one", pointer="/window")
    if not reader.ids:
        raise InvalidRequest(
            f"no action of {project} was submitted in this window", pointer="/window"
        )
    limits = {name: known[name] for name in sorted(reader.used) if name in known}
    return Window(b"\n".join(lines), len(reader.ids), reader.foreign, limits)


def present_cluster() -> tuple[int, int]:
    """Return how many nodes there are, and the most cores that one of them has; 1 and 1 of none."""
    cores = [
        int(node.resources.get("cpu", {}).get("capacity", 0)) // 1000
        for node in NodeRecord.objects.exclude(state="lost")
    ]
    return max(1, len(cores)), max([1, *cores])


def _entries(seconds: int) -> Iterator[JournalEntry]:
    client, after = bus.redis_client(), f"{int((time() - seconds) * 1000)}-0"
    try:
        while page := cast(
            "list[Any]", client.xrange(bus.keys().journal, min=f"({after}", count=_PAGE)
        ):
            for _, fields in page:
                yield decode_entry(fields[JOURNAL_FIELD])
            after = page[-1][0].decode()
    except redis.RedisError as error:
        raise Unavailable(f"redis does not answer: {error}") from error


class _WindowReader:
    """Keeps of entries what a simulation reads, and nothing of other projects or of results."""

    def __init__(self, project: str, known: set[str]) -> None:
        self._project = project
        self._known = known
        self.ids: set[str] = set()
        self.used: set[str] = set()
        self.foreign = 0

    def kept(self, entry: JournalEntry) -> JournalEntry | None:
        """Return the part of ``entry`` that is kept, if any."""
        events: list[Event] = [each for each in entry.events if self._takes(each)]
        decisions: list[Decision] = []
        for each in entry.decisions:
            if isinstance(each, Grant) and each.action_id in self.ids:
                decisions.append(each)
            elif isinstance(each, Finish) and each.action_id in self.ids:
                decisions.append(msgspec.structs.replace(each, result=NO_RESULT, detail=None))
        if not events and not decisions:
            return None
        return msgspec.structs.replace(entry, events=events, decisions=decisions)

    def _takes(self, event: Event) -> bool:
        if not isinstance(event, ActionSubmitted) or event.action.project != self._project:
            return False
        needs = set(event.action.cost)
        if not needs <= self._known:
            self.foreign += 1
            return False
        self.ids.add(event.action.id)
        self.used |= needs
        return True
