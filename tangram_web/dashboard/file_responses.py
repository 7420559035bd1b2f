"""Responses that are data and no pages: JSON, and files that are streamed while they are made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import msgspec
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse


def json_response(body: Any, status: int = 200) -> HttpResponse:
    """Return ``body`` as JSON."""
    encoded = msgspec.json.encode(body)
    return HttpResponse(encoded, content_type="application/json", status=status)


def streamed_file(
    request: HttpRequest, parts: Iterable[str], filename: str, content_type: str
) -> HttpResponse:
    """Return a download of ``parts``; each is made after the one before it was sent."""
    content: Any = _in_turn(iter(parts)) if isinstance(request, ASGIRequest) else parts
    answer: HttpResponseBase = StreamingHttpResponse(content, content_type=content_type)
    answer.headers["Content-Disposition"] = f'attachment; filename="{filename}"'
    answer.headers["Cache-Control"] = "no-store"
    return answer  # type: ignore[return-value]


async def _in_turn(parts: Iterator[str]) -> AsyncIterator[str]:
    following = sync_to_async(lambda: next(parts, None))
    while (part := await following()) is not None:
        yield part
