"""Inputs of simulations: an uploaded or pasted trace, or a window of the journal.

Inputs are limited in size, checked before they are stored (errors name the line) and compressed.
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
#: Size of a journal window before compression.
MOST_JOURNAL_BYTES: Final = 64 * 2**20
#: Seconds → label; the journal retains 15 minutes by default.
WINDOWS: Final = {60: "last minute", 300: "last 5 minutes", 900: "last 15 minutes"}
_PAGE: Final = 500
_PARSERS: Final = {"ai-coding": parse_recordings, "deep-search": parse_requests}

_encode = msgspec.json.Encoder().encode


class WindowTooLarge(InvalidRequest):
    """The window exceeds the limit of one simulation."""


class JournalWindow(NamedTuple):
    """Some minutes of the journal in the form that the simulator reads."""

    content: bytes
    actions: int
    #: Actions left out because the simulated cluster lacks a resource that they need.
    foreign: int
    limits: dict[str, int]
    #: Service → mean duration of its restores in the window, in seconds.
    restores: dict[str, float] = {}
    #: Services that were called.
    services: frozenset[str] = frozenset()
    #: The lead-in before the window: its end in journal time, its number of actions and its length.
    counts_from: float | None = None
    before: int = 0
    before_seconds: float = 0.0
    #: Cluster-wide resource → milli-units granted to all of these actions together.
    granted: dict[str, int] = {}
    #: Services in GPU memory at the start.
    residents: Residents = {}


def check_trace(workload: str, content: bytes) -> None:
    """Raise InvalidRequest with the line and the error in it."""
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
    """Return ``content`` compressed, as it is stored."""
    return zlib.compress(content, 6)


def inflated(content: bytes) -> bytes:
    """Return the stored content decompressed."""
    return zlib.decompress(content)


def live_window(project: str, seconds: int) -> JournalWindow:
    """Return the journal's last ``seconds`` with the actions of one project.

    Raises InvalidRequest for an empty window, WindowTooLarge, Unavailable without Redis.
    """
    config = current_config()
    known = {name: milli // 1000 for name, milli in config.resources.items() if milli >= 1000}
    reader = WindowReader(lambda action: action.project == project, {"cpu", *known})
    content = reader.read(seconds, f"no action of {project}")
    limits = {name: known[name] for name in sorted(reader.used) if name in known}
    return JournalWindow(content, reader.actions, reader.foreign, limits)


def present_cluster() -> tuple[int, int]:
    """Return the number of nodes and the most cores of one node; 1 and 1 without nodes."""
    cores = [
        int(node.resources.get("cpu", {}).get("capacity", 0)) // 1000
        for node in NodeRecord.objects.exclude(state="lost")
    ]
    return max(1, len(cores)), max([1, *cores])


def _entries(seconds: int) -> Iterator[tuple[float, JournalEntry]]:
    """Yield the entries of the last ``seconds``, each with the wall clock of Redis at its writing."""
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
    """Reduces journal entries to what a simulation reads: submissions, grants and ends, without results."""

    def __init__(self, ours: Callable[[Action], bool], known: Set[str]) -> None:
        """``ours`` selects actions; those that need other resources than ``known`` are left out."""
        self._ours = ours
        self._known = known
        self.ids: set[str] = set()
        self.used: set[str] = set()
        self.foreign = 0
        #: Actions in the window and in its lead-in.
        self.actions = self.before = 0
        #: Start of the window in journal time, and the known length of the lead-in.
        self.counts_from, self.before_seconds = inf, 0.0
        self.granted: Counter[str] = Counter()
        self.in_memory = ResidentServices(self.ids)
        #: Wall clock of the first of these actions.
        self.began_at: float | None = None
        self._services: dict[str, str] = {}
        self._restored: dict[str, list[float]] = {}

    def read(
        self, seconds: int, nothing: str, before_seconds: int = 0,
        most_bytes: int | None = None,
    ) -> bytes:  # fmt: skip
        """Return the last ``seconds`` and the lead-in before them, one entry a line.

        Raises InvalidRequest, Unavailable.
        """
        lines, size, began = [], 0, time() - seconds
        most_bytes = MOST_JOURNAL_BYTES if most_bytes is None else most_bytes
        first_at = None
        for written, entry in _entries(seconds + before_seconds):
            first_at = entry.at if first_at is None else first_at
            if self.counts_from == inf and (written >= began or not before_seconds):
                self.counts_from, self.before_seconds = entry.at, entry.at - first_at
            kept = self._kept(entry)
            self.in_memory.reduce(entry)
            if self.began_at is None and self.ids:
                self.began_at = written
            if kept is not None:
                lines.append(_encode(kept))
                size += len(lines[-1])
            if size > most_bytes:
                raise WindowTooLarge(
                    "the window is too large; choose a shorter one", pointer="/window"
                )
        if not self.actions:
            raise InvalidRequest(f"{nothing} was submitted in this window", pointer="/window")
        return b"\n".join(lines)

    @property
    def services(self) -> frozenset[str]:
        """The services that were called."""
        return frozenset(self._services.values()) - {""}

    @property
    def restores(self) -> dict[str, float]:
        """Service → mean duration of its restores in the window."""
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
            self._record_restore(event)
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

    def _record_restore(self, event: ActionFinished) -> None:
        name = self._services.get(event.action_id)
        if name and event.chunk is not None and event.chunk.restore_seconds:
            self._restored.setdefault(name, []).append(event.chunk.restore_seconds)
