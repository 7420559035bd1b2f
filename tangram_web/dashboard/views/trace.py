"""Traces of an action, a trajectory or a stretch of time: a viewer, and Chrome traces as files.

The same addresses answer with a Chrome trace and, with ``?form=rows``, with what the viewer reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from time import time
from typing import Any, Final
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from domain.ids import action_id as id_at
from tangram_web.dashboard import selectors
from tangram_web.dashboard.chrome_trace import MOST_ACTIONS, chrome_trace
from tangram_web.dashboard.file_responses import streamed_file
from tangram_web.dashboard.guards import refuse
from tangram_web.dashboard.history_query import RANGES, span_of
from tangram_web.dashboard.trace_rows import COLUMNS, trace_rows
from tangram_web.live.access import Sight
from tangram_web.records.models import ActionRecord

#: Windows to choose from: seconds and their name.
WINDOWS: Final = ((60, "1 min"), (300, "5 min"), (900, "15 min"), (3600, "1 h"))
#: Shown without a choice.
LATEST_SECONDS: Final = 300


def action_trace(request: HttpRequest, sight: Sight, action_id: str) -> HttpResponse:
    """Answer with the trace of one action."""
    record = selectors.action_record(sight, action_id)
    if record is None:
        return _missing(request, "action")
    if _is_for_viewer(request):
        return _rows([tuple(getattr(record, name) for name in COLUMNS)])
    return _file(request, [record], record.id)


def trajectory_trace(request: HttpRequest, sight: Sight, trajectory_key: str) -> HttpResponse:
    """Answer with the trace of all actions of a trajectory."""
    row = selectors.trajectory_record(sight, trajectory_key)
    if row is None:
        return _missing(request, "trajectory")
    rows = ActionRecord.objects.filter(project=row.project, trajectory=row.name)
    return _answer(request, rows, _plain(row.name))


def window_trace(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Answer with the trace of the actions submitted in a stretch of time (``?range=…&to=…``)."""
    span = span_of(request.GET, time())
    if isinstance(span, str):
        return refuse(request, "No such range", f"{span}.", 400)
    first, last = (id_at(max(0, int(at * 1000)), bytes(8)) for at in span)
    rows = sight.of(ActionRecord.objects.filter(id__gte=first, id__lt=last))
    return _answer(request, rows, "window")


def viewer(request: HttpRequest, sight: Sight) -> dict[str, Any] | HttpResponse:
    """Show the trace of ``?action=``, of ``?trajectory=`` (a key), or of ``?range=…&to=…``, else of the latest minutes."""
    action, key = request.GET.get("action", ""), request.GET.get("trajectory", "")
    if action:
        if selectors.action_record(sight, action) is None:
            return _missing(request, "action")
        return {
            "of": action, "back": reverse("dashboard:action", args=[action]),
            "source": reverse("dashboard:trace-action", args=[action]),
        }  # fmt: skip
    if key:
        row = selectors.trajectory_record(sight, key)
        if row is None:
            return _missing(request, "trajectory")
        return {
            "of": row.name, "back": reverse("dashboard:trajectory", args=[key]),
            "source": reverse("dashboard:trace-trajectory", args=[key]),
        }  # fmt: skip
    query = request.GET.copy()
    query.setdefault("range", str(LATEST_SECONDS))
    span = span_of(query, time())
    if isinstance(span, str):
        return refuse(request, "No such range", f"{span}.", 400)
    first, last = span
    # An absolute end: the same link shows the same trace when it is opened later.
    window = urlencode({"range": f"{last - first:.0f}", "to": f"{last:.3f}"})
    until = datetime.fromtimestamp(last, UTC)
    span_name = dict((*RANGES, *WINDOWS)).get(round(last - first), f"{last - first:.0f} s")
    return {
        "of": f"{span_name} until {until:%-d %b %Y %H:%M:%S} UTC",
        "source": f"{reverse('dashboard:trace-window')}?{window}",
        "ranges": WINDOWS,
        "seconds": round(last - first),
    }


def _missing(request: HttpRequest, kind: str) -> HttpResponse:
    return refuse(request, f"No such {kind}", "It may be older than the retention.", 404)


def _answer(request: HttpRequest, rows: QuerySet[ActionRecord], name: str) -> HttpResponse:
    found = rows.order_by("id")[: MOST_ACTIONS + 1]
    if _is_for_viewer(request):
        return _rows(found.values_list(*COLUMNS).iterator(chunk_size=5000))
    records = found.defer("result", "spec", "metadata")
    return _file(request, iter(records.iterator(chunk_size=1000)), name)


def _is_for_viewer(request: HttpRequest) -> bool:
    return request.GET.get("form") == "rows"


def _rows(rows: Iterable[tuple[Any, ...]]) -> HttpResponse:
    body = trace_rows(rows, datetime.now(UTC))
    answer = HttpResponse(body, content_type="application/json")
    answer.headers["Cache-Control"] = "no-store"
    return answer


def _file(request: HttpRequest, records: Iterable[ActionRecord], name: str) -> HttpResponse:
    parts = chrome_trace(records, datetime.now(UTC))
    return streamed_file(request, parts, f"{name}.trace.json", "application/json")


def _plain(name: str) -> str:
    """Return a name with the characters that a header allows."""
    return "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in name)
