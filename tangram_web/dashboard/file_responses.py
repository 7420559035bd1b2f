"""Responses that are data and no pages: JSON, and files that are streamed while they are made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Final

import msgspec
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

#: Characters that are sent at once, at least: each piece changes the thread, which takes longer than making a part.
PIECE_CHARACTERS: Final = 65_536


def json_response(body: Any, status: int = 200) -> HttpResponse:
    """Return ``body`` as JSON."""
    encoded = msgspec.json.encode(body)
    return HttpResponse(encoded, content_type="application/json", status=status)


def streamed_file(
    request: HttpRequest, parts: Iterable[str], filename: str, content_type: str
) -> HttpResponse:
    """Return a download of ``parts``, in pieces; each is made after the one before it was sent."""
    pieces = in_pieces(parts)
    content: Any = _in_turn(pieces) if isinstance(request, ASGIRequest) else pieces
    answer: HttpResponseBase = StreamingHttpResponse(content, content_type=content_type)
    answer.headers["Content-Disposition"] = f'attachment; filename="{filename}"'
    answer.headers["Cache-Control"] = "no-store"
    return answer  # type: ignore[return-value]


def in_pieces(parts: Iterable[str], least: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Yield ``parts`` joined to pieces of at least ``least`` characters; the last one may be shorter."""
    held: list[str] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= least:
            yield "".join(held)
            held, size = [], 0
    if held:
        yield "".join(held)


async def _in_turn(parts: Iterator[str]) -> AsyncIterator[str]:
    following = sync_to_async(lambda: next(parts, None))
    while (part := await following()) is not None:
        yield part
