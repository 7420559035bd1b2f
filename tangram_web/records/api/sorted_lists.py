"""Lists in another order than the newest first: ``?sort=-act``, by the orders of the explorer.

The page is the explorer's: a cursor names the last row, so a page costs the same wherever it is, and rows that arrive meanwhile shift nothing.
Conditions are given by ``q``; the single filters of a list are for its usual order.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import Any, Final

from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from tangram_web.explorer.fields import Tab
from tangram_web.explorer.language import QueryError, parse
from tangram_web.explorer.orders import order_of, orders_of
from tangram_web.explorer.reading import RowPage, cursor_of, read_page
from tangram_web.lib.pagination import LimitedCursorPagination
from tangram_web.live.access import Sight

SORT: Final = "sort"
#: Parameters that a sorted list has beside those of the view.
_KNOWN: Final = frozenset({SORT, "q", "limit", "cursor"})


def sort_of(tab: Tab) -> OpenApiParameter:
    """Return the parameter of a list, with the orders that it has."""
    names = ", ".join(f"`{each.name}`" for each in orders_of(tab))
    return OpenApiParameter(
        SORT, str, description=f"Order: {names}; with `-` before it where it falls. Conditions are then given by `q`.",
    )  # fmt: skip


class SortedListMixin:
    """A list that may have another order. A view names its ``tab``, and the parameters that it reads itself."""

    tab: Tab
    own_parameters: frozenset[str] = frozenset()

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List rows, in the order that is asked for."""
        if SORT not in request.query_params:
            answer: Response = super().list(request, *args, **kwargs)  # type: ignore[misc]
            return answer
        page = self._page(request)
        following = None
        if page.next is not None:
            following = replace_query_param(request.build_absolute_uri(), "cursor", str(page.next))
        rows = self.get_serializer(self._whole(page.rows), many=True).data  # type: ignore[attr-defined]
        return Response({"next": following, "previous": None, "results": rows})

    def _page(self, request: Request) -> RowPage:
        params = request.query_params
        if others := sorted(set(params) - _KNOWN - self.own_parameters):
            raise ValidationError({others[0]: [f"with {SORT}, give conditions by q, as in q={others[0]}:…"]})  # fmt: skip
        order = order_of(self.tab, params[SORT].removeprefix("-"))
        if order is None:
            known = ", ".join(each.name for each in orders_of(self.tab))
            raise ValidationError({SORT: [f"give one of {known}, with - before it where it falls"]})
        try:
            query = parse(self.tab, params.get("q", ""))
        except QueryError as error:
            raise ValidationError({"q": [str(each) for each in error.mistakes]}) from None
        given = params.get("cursor", "")
        cursor = cursor_of(given) if given else None
        if given and cursor is None:
            raise ValidationError({"cursor": ["this cursor was not issued by this server"]})
        project = request.auth.project  # type: ignore[union-attr]
        return read_page(
            self.tab, query, Sight(None if project is None else (project,)), order,
            falls=params[SORT].startswith("-"), now=time(), cursor=cursor,
            limit=LimitedCursorPagination().get_page_size(request),
        )  # fmt: skip

    def _whole(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return the rows with the columns that the list shows, in their order."""
        found = self.get_queryset().in_bulk([row.pk for row in rows])  # type: ignore[attr-defined]
        return [found[row.pk] for row in rows if row.pk in found]
