"""Export: every table as a file: CSV, a JSON array, or one JSON object per line."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import StringIO
from itertools import chain
from typing import Any, Final

import msgspec
from django.http import HttpRequest, HttpResponse

from domain.errors import Unavailable
from tangram_web.dashboard.export_tables import OF_ALL, TABLES, NoSuchRange, Rows
from tangram_web.dashboard.file_responses import streamed_file
from tangram_web.dashboard.guards import refuse
from tangram_web.dashboard.selectors import ImpossibleFilter
from tangram_web.live.access import Sight

TYPES: Final = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "ndjson": "application/x-ndjson",
}
#: A spreadsheet reads a cell that begins with one of these as a formula.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")

_encode = msgspec.json.Encoder().encode


def export(request: HttpRequest, sight: Sight, name: str, form: str) -> HttpResponse:
    """Answer with a table as a file, filtered as its page is by the same query string."""
    there = [name for name in TABLES if sight.everything or name not in OF_ALL]
    if name not in there or form not in TYPES:
        return refuse(request, "No such table", f"There are {', '.join(there)}.", 404)
    try:
        pages = _begun(TABLES[name](sight, request.GET))
    except (ImpossibleFilter, NoSuchRange) as error:
        return refuse(request, "No such rows", f"{error}.", 400)
    except Unavailable as error:
        return refuse(request, "Not available now", f"{error}.", 503)
    return streamed_file(request, WRITERS[form](pages), f"{name}.{form}", TYPES[form])


def _begun(pages: Rows) -> Rows:
    """Return ``pages`` with the first one read, so that an error becomes a status code."""
    rest = iter(pages)
    first = next(rest, None)
    return () if first is None else chain([first], rest)


def as_csv(pages: Rows) -> Iterator[str]:
    """Yield CSV (RFC 4180) with a header; values that are no scalars are JSON."""
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
