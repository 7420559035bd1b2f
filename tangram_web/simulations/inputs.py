"""Where the input of a simulation comes from: a file, pasted text, or a window of the journal.

Kept deflated and within limits, and judged before it is kept: a bad line is named at once.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Set
from math import inf
from statistics import fmean
from time import time
from typing import Any, Final, NamedTuple, cast

import msgspec
import redis

from domain.action import Action
from domain.codec import JOURNAL_FIELD, JournalEntry, decode_entry
from domain.decisions import Decision, Finish, Grant
from domain.errors import InvalidRequest, Unavailable
from domain.events import NO_RESULT, ActionFinished, ActionSubmitted, Event
from domain.services import service_name
from simulator.llm_trace import parse_requests
from simulator.traces import parse_recordings
from tangram_client.traces.recording import TraceError
from tangram_web.lib import bus
from tangram_web.pools.selectors import current_config
from tangram_web.records.models import NodeRecord
from tangram_web.simulations.resident_services import Residents, ResidentServices

MOST_BYTES: Final = 8 * 2**20
#: Of a journal, before it is deflated.
MOST_JOURNAL_BYTES: Final = 64 * 2**20
#: Windows that the journal is asked for; it keeps 15 minutes unless told otherwise.
WINDOWS: Final = {60: "last minute", 300: "last 5 minutes", 900: "last 15 minutes"}
_PAGE: Final = 500
_PARSERS: Final = {"ai-coding": parse_recordings, "deep-search": parse_requests}

_encode = msgspec.json.Encoder().encode


class WindowTooLarge(InvalidRequest):
    """A window has more in it than one simulation may have."""


class JournalWindow(NamedTuple):
    """Some minutes of the journal, as the simulator reads them."""

    content: bytes
    actions: int
    #: Actions left out because they need what the simulated cluster does not have.
    foreign: int
    limits: dict[str, int]
    #: Service → mean seconds of its restores in the window.
    restores: dict[str, float] = {}
    #: Services that were called.
    services: frozenset[str] = frozenset()
    #: Of what lies before: from when on the window counts (journal time), and how many actions that
    #: lead up to it are there, over how many seconds.
    counts_from: float | None = None
    before: int = 0
    before_seconds: float = 0.0
    #: Cluster-wide resource → milli-units that were granted of it to all of these actions.
    granted: dict[str, int] = {}
    #: Services that lay in GPU memory when what is played began.
    residents: Residents = {}


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


def live_window(project: str, seconds: int) -> JournalWindow:
    """Return what the journal has of the last ``seconds``, of one project's actions.

    Raises InvalidRequest when nothing ran or it is too much, Unavailable without Redis.
    """
    config = current_config()
    known = {name: milli // 1000 for name, milli in config.resources.items() if milli >= 1000}
    reader = WindowReader(lambda action: action.project == project, {"cpu", *known})
    content = reader.read(seconds, f"no action of {project}")
    limits = {name: known[name] for name in sorted(reader.used) if name in known}
    return JournalWindow(content, reader.actions, reader.foreign, limits)


def present_cluster() -> tuple[int, int]:
    """Return how many nodes there are, and the most cores that one of them has; 1 and 1 of none."""
    cores = [
        int(node.resources.get("cpu", {}).get("capacity", 0)) // 1000
        for node in NodeRecord.objects.exclude(state="lost")
    ]
    return max(1, len(cores)), max([1, *cores])


def _entries(seconds: int) -> Iterator[tuple[float, JournalEntry]]:
    """Yield what was written in the last ``seconds``, with the wall clock of Redis at that moment."""
    client, after = bus.redis_client(), f"{int((time() - seconds) * 1000)}-0"
    try:
        while page := cast(
            "list[Any]", client.xrange(bus.keys().journal, min=f"({after}", count=_PAGE)
        ):
            for name, fields in page:
                yield int(name.partition(b"-")[0]) / 1000, decode_entry(fields[JOURNAL_FIELD])
            after = page[-1][0].decode()
    except redis.RedisError as error:
        raise Unavailable(f"redis does not answer: {error}") from error


class WindowReader:
    """Keeps of entries what a simulation reads: declarations, grants and ends, without results."""

    def __init__(self, ours: Callable[[Action], bool], known: Set[str]) -> None:
        """``ours``: which actions are kept; those that need more than ``known`` are left out."""
        self._ours = ours
        self._known = known
        self.ids: set[str] = set()
        self.used: set[str] = set()
        self.foreign = 0
        #: Actions of the window itself, and those that lead up to it.
        self.actions = self.before = 0
        #: Where the window begins, in journal time, and how much of the time before is known.
        self.counts_from, self.before_seconds = inf, 0.0
        self.granted: Counter[str] = Counter()
        self.in_memory = ResidentServices(self.ids)
        #: Wall clock at which the first of these actions came.
        self.began_at: float | None = None
        self._services: dict[str, str] = {}
        self._restored: dict[str, list[float]] = {}

    def read(self, seconds: int, nothing: str, before_seconds: int = 0) -> bytes:
        """Return the last ``seconds`` as lines, and what there is of the time before.

        Raises InvalidRequest, Unavailable.
        """
        lines, size, began = [], 0, time() - seconds
        first_at = None
        for written, entry in _entries(seconds + before_seconds):
            first_at = entry.at if first_at is None else first_at
            if self.counts_from == inf and (written >= began or not before_seconds):
                self.counts_from, self.before_seconds = entry.at, entry.at - first_at
            kept = self._kept(entry)
            self.in_memory.take(entry)
            if self.began_at is None and self.ids:
                self.began_at = written
            if kept is not None:
                lines.append(_encode(kept))
                size += len(lines[-1])
            if size > MOST_JOURNAL_BYTES:
                raise WindowTooLarge(
                    "the window is too large; choose a shorter one", pointer="/window"
                )
        if not self.actions:
            raise InvalidRequest(f"{nothing} was submitted in this window", pointer="/window")
        return b"\n".join(lines)

    @property
    def services(self) -> frozenset[str]:
        """Which services were called."""
        return frozenset(self._services.values()) - {""}

    @property
    def restores(self) -> dict[str, float]:
        """How long restores took in the window, by service."""
        return {name: fmean(seconds) for name, seconds in self._restored.items()}

    def _kept(self, entry: JournalEntry) -> JournalEntry | None:
        events: list[Event] = [each for each in entry.events if self._takes(each)]
        decisions: list[Decision] = []
        for each in entry.decisions:
            if isinstance(each, Grant) and each.action_id in self.ids:
                decisions.append(each)
                self.granted.update({held.resource: held.amount for held in each.allocations})
            elif isinstance(each, Finish) and each.action_id in self.ids:
                decisions.append(msgspec.structs.replace(each, result=NO_RESULT, detail=None))
        if not events and not decisions:
            return None
        return msgspec.structs.replace(entry, events=events, decisions=decisions)

    def _takes(self, event: Event) -> bool:
        if isinstance(event, ActionFinished):
            self._learn(event)
        if not isinstance(event, ActionSubmitted) or not self._ours(event.action):
            return False
        needs = set(event.action.cost)
        if not needs <= self._known:
            self.foreign += event.at >= self.counts_from
            return False
        self.ids.add(event.action.id)
        early = event.at < self.counts_from
        self.before += early
        self.actions += not early
        self.used |= needs
        if event.action.call is not None:
            self._services[event.action.id] = service_name(event.action.call.target) or ""
        return True

    def _learn(self, event: ActionFinished) -> None:
        name = self._services.get(event.action_id)
        if name and event.chunk is not None and event.chunk.restore_seconds:
            self._restored.setdefault(name, []).append(event.chunk.restore_seconds)
