"""Read-only admin pages, with bounded counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.utils.functional import cached_property

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    _Paginator = Paginator[Any]
else:
    _ModelAdmin = admin.ModelAdmin
    _Paginator = Paginator


#: Rows that pages can reach; filters and searches reach the others.
MOST_ROWS: Final = 10_000


class BoundedPaginator(_Paginator):
    """Counts up to `MOST_ROWS`: counting all of a million rows takes as long as reading them."""

    @cached_property
    def count(self) -> int:
        """The number of rows, at most `MOST_ROWS`."""
        rows: Any = self.object_list
        counted: int = rows.order_by()[:MOST_ROWS].count()
        return counted


class ReadOnlyAdmin(_ModelAdmin):
    """Shows rows that other code writes."""

    paginator = BoundedPaginator
    show_full_result_count = False
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse."""
        return False
