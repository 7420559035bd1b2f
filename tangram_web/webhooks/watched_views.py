"""Saved views that endpoints watch: one message when a view begins to find rows, and one when it finds none any more.

Rules
1. A view that finds rows is an incident until it finds none; how many it finds in between is no further message.
2. The incident is stored in the transaction of its messages: neither is there without the other, and a restart announces nothing twice.
3. A view counts rows of its project alone, whichever member saved it. One that was deleted, or is watched no more, is forgotten without a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.db import transaction
from django.utils import timezone

from tangram_web.explorer.facets import EXACT
from tangram_web.explorer.models import SavedView
from tangram_web.explorer.saved_views import matching_count
from tangram_web.webhooks.models import Endpoint, WatchedView, WebhookEvent
from tangram_web.webhooks.outbox import Message, store_messages


def watches() -> bool:
    """Return whether there is a view to look at, or an incident to forget."""
    return bool(_watched()) or WatchedView.objects.exists()


def announce_views(now: datetime | None = None) -> int:
    """Count the rows of all watched views, and store the messages that are due; return how many views changed."""
    at = timezone.now() if now is None else now
    views = SavedView.objects.filter(pk__in=_watched(), project__isnull=False)
    counts = [(view, matching_count(view, now=at.timestamp())) for view in views]
    with transaction.atomic():
        since = dict(WatchedView.objects.values_list("view", "found_since"))
        begun = [(view, count) for view, count in counts if count and view.pk not in since]
        ended = [view for view, count in counts if not count and view.pk in since]
        WatchedView.objects.bulk_create(
            [WatchedView(view=view.pk, found_since=at) for view, _ in begun], ignore_conflicts=True
        )
        kept = [view.pk for view, count in counts if count]
        WatchedView.objects.exclude(view__in=kept).delete()
        store_messages(
            [
                *(_message(WebhookEvent.VIEW_FOUND, view, at, at, count) for view, count in begun),
                *(_message(WebhookEvent.VIEW_EMPTY, view, at, since[view.pk], 0) for view in ended),
            ]
        )
    return len(begun) + len(ended)


def _watched() -> set[str]:
    lists: Iterable[list[str]] = Endpoint.objects.filter(enabled=True).values_list(
        "views", flat=True
    )
    return {view for views in lists for view in views}


def _message(
    event: WebhookEvent, view: SavedView, at: datetime, since: datetime, rows: int
) -> Message:
    order = {"sort": view.order} if view.order else {}
    data: dict[str, Any] = {
        "view": view.pk,
        "name": view.name,
        "list": view.tab,
        "query": view.query,
        "rows": rows,
        "more": rows >= EXACT,
        "since": since.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "evidence": f"/{view.tab}/?{urlencode({'q': view.query, **order})}",
    }
    return Message(event, f"view/{view.pk}", view.project_id, at, data, view.pk)
