"""Actions as a Chrome trace (the Trace Event Format): for Perfetto, speedscope, chrome://tracing.

A process is a task, a thread is a trajectory; actions without one share lanes in which none
overlap. An action is a slice from its submission to its end, with its phases as slices inside it.
Times are microseconds from the first submission of the trace, which `otherData` names.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain, islice
from time import time
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from domain.ids import action_id
from tangram_web.dashboard import selectors
from tangram_web.dashboard.exports import as_file
from tangram_web.dashboard.guards import for_viewers, refuse
from tangram_web.dashboard.past import RANGES, span_of
from tangram_web.live.access import Sight
from tangram_web.records.models import ActionRecord

#: Actions of one trace; viewers take more than ten times as many events.
MOST: Final = 50_000
_PHASES: Final = (
    ("queue", "queue_seconds"), ("overhead", "overhead_seconds"),
    ("execution", "execution_seconds"),
)  # fmt: skip
_encode = msgspec.json.Encoder().encode


@require_safe
@for_viewers
def of_action(request: HttpRequest, sight: Sight, action_id: str) -> HttpResponse:
    """Answer with one action's trace."""
    record = selectors.action_record(sight, action_id)
    if record is None:
        return refuse(request, "No such action", "It may be older than the retention.", 404)
    return _trace(request, [record], f"{record.id}.trace.json")


@require_safe
@for_viewers
def of_trajectory(request: HttpRequest, sight: Sight, key: str) -> HttpResponse:
    """Answer with the trace of all actions of a trajectory."""
    row = selectors.trajectory_record(sight, key)
    if row is None:
        return refuse(request, "No such trajectory", "It may be older than the retention.", 404)
    rows = ActionRecord.objects.filter(project=row.project, trajectory=row.name)
    return _trace(request, _in_order(rows), f"{_plain(row.name)}.trace.json")


@require_safe
@for_viewers
def of_window(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Answer with the trace of what was submitted in a stretch of time (`?range=…&to=…`)."""
    span = span_of(request.GET, time())
    if isinstance(span, str):
        return refuse(request, "No such window", f"{span}.", 400)
    first, last = (action_id(max(0, int(at * 1000)), bytes(8)) for at in span)
    rows = sight.of(ActionRecord.objects.filter(id__gte=first, id__lt=last))
    return _trace(request, _in_order(rows), "window.trace.json")


@require_safe
@for_viewers
def viewer(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Show a trace in place: of `?action=`, of `?trajectory=` (a key), or of `?range=…&to=…`."""
    action, key = request.GET.get("action", ""), request.GET.get("trajectory", "")
    context = {"page": "trajectories"}
    if action:
        if selectors.action_record(sight, action) is None:
            return refuse(request, "No such action", "It may be older than the retention.", 404)
        context |= {
            "page": "actions", "of": action, "back": reverse("dashboard:action", args=[action]),
            "source": reverse("dashboard:trace-action", args=[action]),
        }  # fmt: skip
    elif key:
        row = selectors.trajectory_record(sight, key)
        if row is None:
            return refuse(request, "No such trajectory", "It may be older than the retention.", 404)
        context |= {
            "of": row.name, "back": reverse("dashboard:trajectory", args=[key]),
            "source": reverse("dashboard:trace-trajectory", args=[key]),
        }  # fmt: skip
    else:
        span = span_of(request.GET, time())
        if isinstance(span, str):
            return refuse(request, "No such window", f"{span}.", 400)
        first, last = span
        # Frozen: a link to it shows the same when it is opened later.
        asked = urlencode({"range": f"{last - first:.0f}", "to": f"{last:.3f}"})
        until = datetime.fromtimestamp(last, UTC)
        span_name = dict(RANGES).get(round(last - first), f"{last - first:.0f} s")
        context |= {
            "page": "actions", "of": f"{span_name} until {until:%-d %b %Y %H:%M:%S} UTC",
            "source": f"{reverse('dashboard:trace-window')}?{asked}",
        }  # fmt: skip
    return render(request, "dashboard/trace.html", context)


def _in_order(rows: Any) -> Iterator[ActionRecord]:
    found = rows.defer("result", "spec", "metadata").order_by("id")[: MOST + 1]
    return iter(found.iterator(chunk_size=1000))


def _trace(request: HttpRequest, records: Iterable[ActionRecord], filename: str) -> HttpResponse:
    return as_file(request, written(records, datetime.now(UTC)), filename, "application/json")


def written(records: Iterable[ActionRecord], now: datetime) -> Iterator[str]:
    """Yield the trace as JSON text, an action at a time; ``records`` are in order of submission."""
    rest = iter(records)
    first = next(rest, None)
    if first is None:
        yield '{"traceEvents":[]}\n'
        return
    lanes, start = Lanes(), first.submitted_at
    yield '{"displayTimeUnit":"ms","traceEvents":['
    before = ""
    for record in islice(chain([first], rest), MOST):
        for event in lanes.events_of(record, start, now):
            yield before + _encode(event).decode()
            before = ",\n"
    cut = next(rest, None) is not None
    other = {"start": start.isoformat(), "most_actions": MOST, "cut": cut}
    yield f'],"otherData":{_encode(other).decode()}}}\n'


class Lanes:
    """Gives actions their process and thread, and names these when they first appear."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str], int] = {}
        self._threads: dict[tuple[int, str], int] = {}
        #: Lanes of actions without a trajectory, by process: when each is free again.
        self._free: dict[int, list[tuple[datetime, int]]] = {}

    def events_of(
        self, record: ActionRecord, start: datetime, now: datetime
    ) -> Iterator[dict[str, Any]]:
        """Yield an action's slices, after the names that were not said yet."""
        end = record.finished_at or now
        task = (record.project, record.task)
        pid = self._tasks.get(task)
        if pid is None:
            pid = self._tasks[task] = len(self._tasks) + 1
            yield _named("process_name", pid, 0, f"{record.project}/{record.task}")
        name = record.trajectory or self._lane(pid, record.submitted_at, end)
        tid = self._threads.get((pid, name))
        if tid is None:
            tid = self._threads[pid, name] = len(self._threads) + 1
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

    def _lane(self, pid: int, begin: datetime, end: datetime) -> str:
        free = self._free.setdefault(pid, [])
        number = heapq.heappop(free)[1] if free and free[0][0] <= begin else len(free) + 1
        heapq.heappush(free, (end, number))
        return f"lane {number}"


def _slice(
    name: str, at: float, seconds: float, pid: int, tid: int, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    event = {"ph": "X", "name": name, "cat": "action" if args else "phase", "ts": at * 1e6,
             "dur": max(0.0, seconds) * 1e6, "pid": pid, "tid": tid}  # fmt: skip
    return event | ({"args": args} if args else {})


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _plain(name: str) -> str:
    """Return a name as it may stand in a header."""
    return "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in name)
