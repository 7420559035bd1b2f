"""Every table as a file: CSV, a JSON array, or one JSON object per line; streamed page by page."""

from __future__ import annotations

import csv
from collections.abc import AsyncIterator, Iterable, Iterator
from io import StringIO
from itertools import chain
from typing import Any, Final

import msgspec
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.views.decorators.http import require_safe

from domain.errors import Unavailable
from tangram_web.dashboard.guards import for_viewers, refuse
from tangram_web.dashboard.selectors import Mistake
from tangram_web.dashboard.tables import OF_ALL, TABLES, NoSuchRange, Rows
from tangram_web.live.access import Sight

TYPES: Final = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "ndjson": "application/x-ndjson",
}
#: A spreadsheet takes a cell that begins so for a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")

_encode = msgspec.json.Encoder().encode


@require_safe
@for_viewers
def table(request: HttpRequest, sight: Sight, name: str, form: str) -> HttpResponse:
    """Answer with a table as a file, filtered as the page of it is by the same address."""
    there = [name for name in TABLES if sight.everything or name not in OF_ALL]
    if name not in there or form not in TYPES:
        return refuse(request, "No such table", f"There are {', '.join(there)}.", 404)
    try:
        pages = _begun(TABLES[name](sight, request.GET))
    except (Mistake, NoSuchRange) as error:
        return refuse(request, "No such rows", f"{error}.", 400)
    except Unavailable as error:
        return refuse(request, "Not to be had now", f"{error}.", 503)
    return as_file(request, WRITERS[form](pages), f"{name}.{form}", TYPES[form])


def as_file(
    request: HttpRequest, parts: Iterable[str], filename: str, content_type: str
) -> HttpResponse:
    """Answer with ``parts`` one after the other, each made when the one before is on its way."""
    content: Any = _in_turn(iter(parts)) if isinstance(request, ASGIRequest) else parts
    answer: HttpResponseBase = StreamingHttpResponse(content, content_type=content_type)
    answer.headers["Content-Disposition"] = f'attachment; filename="{filename}"'
    answer.headers["Cache-Control"] = "no-store"
    return answer  # type: ignore[return-value]


async def _in_turn(parts: Iterator[str]) -> AsyncIterator[str]:
    following = sync_to_async(lambda: next(parts, None))
    while (part := await following()) is not None:
        yield part


def _begun(pages: Rows) -> Rows:
    """Return ``pages`` with the first one read, so that what is wrong shows before the answer."""
    rest = iter(pages)
    first = next(rest, None)
    return () if first is None else chain([first], rest)


def as_csv(pages: Rows) -> Iterator[str]:
    """Yield CSV (RFC 4180) with a head; values that are no scalars are JSON."""
    head: list[str] = []
    for page in pages:
        lines = StringIO()
        writer = csv.writer(lines)
        if not head and page:
            head = list(page[0])
            writer.writerow(head)
        writer.writerows([_cell(row.get(name)) for name in head] for row in page)
        yield lines.getvalue()


def as_json(pages: Rows) -> Iterator[str]:
    """Yield one JSON array."""
    before = "["
    for page in pages:
        for row in page:
            yield before + _encode(row).decode()
            before = ",\n"
    yield "[]" if before == "[" else "]\n"


def as_ndjson(pages: Rows) -> Iterator[str]:
    """Yield one JSON object per line."""
    for page in pages:
        yield "".join(f"{_encode(row).decode()}\n" for row in page)


WRITERS: Final = {"csv": as_csv, "json": as_json, "ndjson": as_ndjson}


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = value if isinstance(value, str) else _encode(value).decode().strip('"')
    return f"'{text}" if text.startswith(_FORMULA) else text
