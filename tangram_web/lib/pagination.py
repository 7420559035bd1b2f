"""Cursor pagination: pages stay stable while rows arrive."""

from __future__ import annotations

import re
from typing import Any

from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import CursorPagination

MAX_LIMIT = 500
_CURSOR = re.compile(r"[A-Za-z0-9+/=]*")


class LimitedCursorPagination(CursorPagination):
    """``{"next", "previous", "results"}``, newest first, up to ``limit`` rows a page."""

    page_size = 100
    page_size_query_param = "limit"
    page_size_query_description = f"Rows on a page, 1 to {MAX_LIMIT}."
    max_page_size = MAX_LIMIT
    ordering = "-pk"

    def get_page_size(self, request: Any) -> int:
        """Return the requested page size. Raises ValidationError for anything else than a size."""
        given = request.query_params.get(self.page_size_query_param)
        if given is None:
            return self.page_size
        if not (given.isascii() and given.isdigit() and len(given) < 6 and int(given) > 0):
            raise ValidationError({"limit": [f"give a number from 1 to {MAX_LIMIT}"]})
        return min(int(given), MAX_LIMIT)

    def decode_cursor(self, request: Any) -> Any:
        """Return the decoded cursor. Raises ValidationError for a cursor that this server did not issue."""
        if not _CURSOR.fullmatch(request.query_params.get(self.cursor_query_param, "")):
            raise ValidationError({"cursor": ["this cursor was not issued by this server"]})
        try:
            cursor = super().decode_cursor(request)
        except NotFound:
            raise ValidationError(
                {"cursor": ["this cursor was not issued by this server"]}
            ) from None
        if cursor is not None and cursor.position is not None and "\0" in str(cursor.position):
            raise ValidationError({"cursor": ["this cursor was not issued by this server"]})
        return cursor
