"""Saved views: those that a reader may see, and the changes of them.

Rules
1. A view without a project is its owner's alone; one of a project is seen by its members, and changed by
   its owner and by admins of the project.
2. A view selects nothing that its reader may not see: its query runs with the reader's own sight.
3. A person may have one view for each tab with which it opens.
4. A token acts for its account, if it has one: that account's own views are its own. It changes views of
   a project only with the scope ``config`` for that project; without an account, those are the only ones
   that it can change.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import time
from typing import Any, Final

from django.db.models import Q

from domain.errors import Conflict, InvalidRequest, NotFound
from domain.principals import Principal, Scope
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
from tangram_web.pools.models import Project

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


@dataclass(frozen=True)
class ViewCaller:
    """An account that changes views, a token that acts for one, or a token without an account."""

    account: Any = None
    #: None: a page, or the session of an account.
    token: Principal | None = None

    @property
    def sight(self) -> Sight:
        """The projects whose views it may open."""
        bound = None if self.token is None else self.token.project
        if self.account is None:
            return Sight(None if bound is None else (bound,))
        seen = sight_of(self.account) or Sight(())
        return seen if bound is None else Sight((bound,) if seen.sees(bound) else ())

    def may(self, project: str, least: Role) -> bool:
        """Return whether it may change views of a project, where an account needs the role ``least``."""
        if self.token is not None and not (
            self.token.sees(project) and self.token.may(Scope.CONFIG)
        ):
            return False
        if self.account is None:
            return Project.objects.filter(name=project).exists()
        return may(self.account, project, least)

    def may_change(self, view: SavedView) -> bool:
        """Return whether it may change a view."""
        own = self.account is not None and view.owner_id == self.account.pk
        if view.project_id is None or (own and self.token is None):
            return own
        return self.may(view.project_id, Role.VIEWER if own else Role.ADMIN)


def save_view(user: Any, *, tab: str, name: str, query: str, order: str = "",
              columns: tuple[str, ...] = (), project: str = "") -> SavedView:  # fmt: skip
    """Store a view of an account; one of the same owner, tab, name and project is replaced. Raises InvalidRequest."""
    view, _ = store_view(ViewCaller(user), tab=tab, name=name, query=query, order=order,
                         columns=columns, project=project)  # fmt: skip
    return view


def store_view(caller: ViewCaller, *, tab: str, name: str, query: str, order: str = "",
               columns: tuple[str, ...] = (), project: str = "") -> tuple[SavedView, bool]:  # fmt: skip
    """Store a view, or replace that of the same owner, tab, name and project; say whether it is new.

    Raises InvalidRequest, NotFound.
    """
    known = TABS.get(tab)
    if known is None:
        raise InvalidRequest(
            f"there is no list {tab[:40]!r}: use one of {', '.join(TABS)}", pointer="/tab"
        )
    name = checked_name(name)
    values: dict[str, Any] = {
        "query": checked_query(known, query),
        "order": checked_order(known, order),
        "columns": [each.name for each in columns_of(known) if each.name in columns],
    }
    _check_home(caller, project)
    mine = SavedView.objects.filter(owner=caller.account)
    mine = mine if caller.account is not None else mine.filter(project=project)
    if mine.count() >= MOST_VIEWS:
        raise InvalidRequest(
            f"a person has at most {MOST_VIEWS} views; delete one", pointer="/name"
        )
    which = {"owner": caller.account, "tab": tab, "name": name, "project_id": project or None}
    return SavedView.objects.update_or_create(**which, defaults=values)


def change_saved_view(caller: ViewCaller, view: SavedView, *, name: str | None = None, query: str | None = None,
                      order: str | None = None, project: str | None = None) -> SavedView:  # fmt: skip
    """Rename a view, share it with a project (empty: with none), or change what it selects; None: as it is.

    Raises InvalidRequest, NotFound, Conflict for a name that another view has.
    """
    tab = TABS[view.tab]
    if name is not None:
        view.name = checked_name(name)
    if query is not None:
        view.query = checked_query(tab, query)
    if order is not None:
        view.order = checked_order(tab, order)
    if project is not None and project != (view.project_id or ""):
        if view.owner_id is None or getattr(caller.account, "pk", None) != view.owner_id:
            raise InvalidRequest("a view is shared by its owner alone", pointer="/project")
        _check_home(caller, project)
        view.project_id = project or None
    same = SavedView.objects.filter(
        owner=view.owner, tab=view.tab, name=view.name, project=view.project_id
    )
    if same.exclude(pk=view.pk).exists():
        raise Conflict(f"there is another view {view.name!r}: choose another name", pointer="/name")
    view.save()
    return view


def _check_home(caller: ViewCaller, project: str) -> None:
    """Raise NotFound for a project that the caller may not save views of, InvalidRequest without an account."""
    if project and not caller.may(project, Role.VIEWER):
        raise NotFound(f"there is no project {project[:128]!r} that you may save views of")
    if not project and caller.account is None:
        reason = "this token acts for no account, so it has no views of its own"
        raise InvalidRequest(f"{reason}: give a project", pointer="/project")


def checked_name(name: str) -> str:
    """Return the name of a view as it is stored. Raises InvalidRequest."""
    name = " ".join(name.split())
    if not 0 < len(name) <= 80 or not name.isprintable():
        raise InvalidRequest("a name has 1 to 80 printable characters", pointer="/name")
    return name


def checked_query(tab: Tab, query: str) -> str:
    """Return a query as it is stored. Raises InvalidRequest."""
    try:
        return str(parse(tab, query))
    except QueryError as error:
        raise InvalidRequest(str(error), pointer="/query") from None


def checked_order(tab: Tab, order: str) -> str:
    """Return an order as it is stored. Raises InvalidRequest."""
    if order and order_of(tab, order.removeprefix("-")) is None:
        raise InvalidRequest(f"{tab.name} have no order {order[:40]!r}", pointer="/order")
    return order


def own_view(user: Any, view_id: str) -> SavedView:
    """Return a view that a person may change. Raises NotFound."""
    view = None if "\0" in view_id else SavedView.objects.filter(pk=view_id).first()
    if view is not None and ViewCaller(user).may_change(view):
        return view
    raise NotFound("there is no such view, or it is not yours")


def view_to_change(caller: ViewCaller, said: str) -> SavedView:
    """Return the view of an id or a name that a caller may change. Raises NotFound, Conflict for several of a name."""
    text = "" if "\0" in said else said
    found = SavedView.objects.filter(pk=text).first()
    named = [found] if found is not None else [
        view for view in views_for(caller.account, caller.sight) if view.name == text
    ]  # fmt: skip
    views = [view for view in named if caller.may_change(view)]
    if not views:
        raise NotFound(f"there is no view {said[:80]!r} that you may change")
    if len(views) > 1:
        listed = ", ".join(f"{view.id} ({view.tab})" for view in views)
        raise Conflict(f"several views have this name: give an id of {listed}")
    return views[0]


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
