"""Saved views: those that a reader may see, and the changes of them.

Rules
1. A view without a project is its owner's alone; one of a project is seen by its members, and changed by
   its owner and by admins of the project.
2. A view selects nothing that its reader may not see: its query runs with the reader's own sight.
3. A person may have one view for each tab with which it opens.
"""

from __future__ import annotations

from time import time
from typing import Any, Final

from django.db.models import Q

from domain.errors import InvalidRequest, NotFound
from tangram_web.accounts.access import may
from tangram_web.accounts.models import Role
from tangram_web.explorer.columns import columns_of
from tangram_web.explorer.conditions import parts_of, rows_of
from tangram_web.explorer.facets import EXACT
from tangram_web.explorer.fields import TABS, Tab
from tangram_web.explorer.language import QueryError, parse
from tangram_web.explorer.models import SavedView, TabChoice
from tangram_web.explorer.orders import order_of
from tangram_web.live.access import Sight, sight_of

#: Views that a person, and all persons of a project together, may have.
MOST_VIEWS: Final = 200


def choice_of(user: Any, tab: Tab) -> TabChoice | None:
    """Return what a person chose for a tab."""
    return TabChoice.objects.filter(user=user, tab=tab.name).select_related("view").first()


def views_for(user: Any, sight: Sight, tab: Tab | None = None) -> list[SavedView]:
    """Return the views that a reader may open, ordered by name."""
    shared = Q(project__isnull=False)
    if not sight.everything:
        shared = Q(project__in=sight.projects)
    rows = SavedView.objects.filter(Q(owner=user, project__isnull=True) | shared)
    rows = rows if tab is None else rows.filter(tab=tab.name)
    return list(rows.select_related("owner").order_by("name", "id")[: 2 * MOST_VIEWS])


def save_view(user: Any, *, tab: str, name: str, query: str, order: str = "",
              columns: tuple[str, ...] = (), project: str = "") -> SavedView:  # fmt: skip
    """Store a view; one of the same owner, tab, name and project is replaced. Raises InvalidRequest."""
    known = TABS.get(tab)
    if known is None:
        raise InvalidRequest(
            f"there is no list {tab[:40]!r}: use one of {', '.join(TABS)}", pointer="/tab"
        )
    name = " ".join(name.split())
    if not 0 < len(name) <= 80 or not name.isprintable():
        raise InvalidRequest("a name has 1 to 80 printable characters", pointer="/name")
    try:
        said = str(parse(known, query))
    except QueryError as error:
        raise InvalidRequest(str(error), pointer="/query") from None
    if order and order_of(known, order.removeprefix("-")) is None:
        raise InvalidRequest(f"{tab} have no order {order[:40]!r}", pointer="/order")
    if project and not may(user, project, Role.VIEWER):
        raise NotFound(f"there is no project {project[:128]!r}")
    mine = SavedView.objects.filter(owner=user)
    if mine.count() >= MOST_VIEWS:
        raise InvalidRequest(
            f"a person has at most {MOST_VIEWS} views; delete one", pointer="/name"
        )
    names = [column.name for column in columns_of(known) if column.name in columns]
    values = {"query": said, "order": order, "columns": names}
    which = {"owner": user, "tab": tab, "name": name, "project_id": project or None}
    view, _ = SavedView.objects.update_or_create(**which, defaults=values)
    return view


def own_view(user: Any, view_id: str) -> SavedView:
    """Return a view that a person may change. Raises NotFound."""
    view = None if "\0" in view_id else SavedView.objects.filter(pk=view_id).first()
    if view is not None and view.owner_id == getattr(user, "pk", None):
        return view
    if view is not None and view.project_id and may(user, view.project_id, Role.ADMIN):
        return view
    raise NotFound("there is no such view, or it is not yours")


def open_with(user: Any, tab: Tab, view: SavedView | None) -> None:
    """Let a tab open with a view; None: with the usual query."""
    TabChoice.objects.update_or_create(user=user, tab=tab.name, defaults={"view": view})


def show_columns(user: Any, tab: Tab, names: tuple[str, ...]) -> None:
    """Keep the columns that a person chose; none: the usual ones."""
    kept = [column.name for column in columns_of(tab) if column.name in names]
    TabChoice.objects.update_or_create(user=user, tab=tab.name, defaults={"columns": kept})


def matching_count(view: SavedView, sight: Sight | None = None, now: float | None = None) -> int:
    """Return how many rows a view finds, up to 10,000.

    Without ``sight``, of the view's project, or of all projects that its owner may see.
    """
    if sight is None:
        sight = Sight((view.project_id,)) if view.project_id else sight_of(view.owner)
    if sight is None:
        return 0
    tab, at, found = TABS[view.tab], time() if now is None else now, 0
    query = parse(tab, view.query)
    for part in parts_of(tab):
        rows = rows_of(tab, part, query, sight, at)
        found += rows[: EXACT - found].count() if found < EXACT else 0
    return found
