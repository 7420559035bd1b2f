"""Chrome trace of actions (the Trace Event Format), for Perfetto, speedscope and chrome://tracing.

A task is a process, a trajectory is a thread; actions without a trajectory share lanes in which
none overlap. An action is a slice from its submission to its end that contains its phases.
Times are microseconds from the first submission of the trace, which `otherData` holds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain, islice
from typing import Any, Final

import msgspec

from tangram_web.records.models import ActionRecord

#: Actions in one trace; viewers load more than ten times as many events.
MOST_ACTIONS: Final = 50_000
_PHASES: Final = (
    ("queue", "queue_seconds"), ("overhead", "overhead_seconds"),
    ("execution", "execution_seconds"),
)  # fmt: skip
_encode = msgspec.json.Encoder().encode


def chrome_trace(records: Iterable[ActionRecord], now: datetime) -> Iterator[str]:
    """Yield the trace as JSON text, an action at a time; ``records`` are in order of submission."""
    rest = iter(records)
    first = next(rest, None)
    if first is None:
        yield '{"traceEvents":[]}\n'
        return
    slices, start = _Slices(), first.submitted_at
    yield '{"displayTimeUnit":"ms","traceEvents":['
    before = ""
    for record in islice(chain([first], rest), MOST_ACTIONS):
        for event in slices.events_of(record, start, now):
            yield before + _encode(event).decode()
            before = ",\n"
    cut = next(rest, None) is not None
    other = {"start": start.isoformat(), "most_actions": MOST_ACTIONS, "cut": cut}
    yield f'],"otherData":{_encode(other).decode()}}}\n'


class TracePlaces:
    """A place for each action: its task is a process, its trajectory a thread of it, or a lane in which none overlap."""

    def __init__(self) -> None:
        #: Project and task of each process, and process and name of each thread, in the order of their first actions.
        self.processes: list[str] = []
        self.threads: list[tuple[int, str]] = []
        self._tasks: dict[tuple[str, str], int] = {}
        self._threads: dict[tuple[int, str], int] = {}
        #: By process: when each lane of actions without a trajectory is free again.
        self._free: dict[int, list[tuple[datetime, int]]] = {}

    def of(
        self, project: str, task: str, trajectory: str | None, begin: datetime, end: datetime
    ) -> int:
        """Return the index of an action's thread."""
        process = self._tasks.get((project, task))
        if process is None:
            process = self._tasks[project, task] = len(self.processes)
            self.processes.append(f"{project}/{task}")
        name = trajectory or self._lane(process, begin, end)
        thread = self._threads.get((process, name))
        if thread is None:
            thread = self._threads[process, name] = len(self.threads)
            self.threads.append((process, name))
        return thread

    def _lane(self, process: int, begin: datetime, end: datetime) -> str:
        free = self._free.setdefault(process, [])
        number = heapq.heappop(free)[1] if free and free[0][0] <= begin else len(free) + 1
        heapq.heappush(free, (end, number))
        return f"lane {number}"


class _Slices:
    """The slices of actions, with the names of processes and threads before their first use."""

    def __init__(self) -> None:
        self._places = TracePlaces()
        #: How many processes and threads have their names.
        self._processes = self._threads = 0

    def events_of(
        self, record: ActionRecord, start: datetime, now: datetime
    ) -> Iterator[dict[str, Any]]:
        """Yield an action's slices, after names that the trace does not have yet."""
        end = record.finished_at or now
        begin, places = record.submitted_at, self._places
        thread = places.of(record.project, record.task, record.trajectory, begin, end)
        process, name = places.threads[thread]
        pid, tid = process + 1, thread + 1
        if process == self._processes:
            self._processes += 1
            yield _named("process_name", pid, 0, places.processes[process])
        if thread == self._threads:
            self._threads += 1
            yield _named("thread_name", pid, tid, name)
        at = (record.submitted_at - start).total_seconds()
        whole = {"id": record.id, "state": record.state, "outcome": record.outcome,
                 "units": record.units, "node": record.node}  # fmt: skip
        title = record.family or record.kind
        yield _slice(title, at, (end - record.submitted_at).total_seconds(), pid, tid, whole)
        for phase, column in _PHASES:
            seconds = getattr(record, column)
            if seconds:
                yield _slice(phase, at, seconds, pid, tid)
                at += seconds


def _slice(
    name: str, at: float, seconds: float, pid: int, tid: int, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    event = {"ph": "X", "name": name, "cat": "action" if args else "phase", "ts": at * 1e6,
             "dur": max(0.0, seconds) * 1e6, "pid": pid, "tid": tid}  # fmt: skip
    return event | ({"args": args} if args else {})


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
