"""Pages of the explorer: four lists, and the data that a list loads after it is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import time
from typing import Any, Final

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.urls import reverse

from domain.errors import InvalidRequest, NotFound
from tangram_web.dashboard.guards import refuse
from tangram_web.dashboard.scheduler_selectors import asked, without_hidden_names
from tangram_web.explorer.act_sums import act_sums
from tangram_web.explorer.completion import completions
from tangram_web.explorer.conditions import parts_of
from tangram_web.explorer.facets import Counted, count_rows
from tangram_web.explorer.fields import ACTIONS, TABS, TASKS, TRAJECTORIES, Tab
from tangram_web.explorer.heatmap import ActMap, heatmap_of, heatmap_of_sums
from tangram_web.explorer.indexes import rows_by_id
from tangram_web.explorer.language import Query, QueryError, parse
from tangram_web.explorer.listing import explained, listing
from tangram_web.explorer.old_addresses import query_of_old
from tangram_web.explorer.saved_views import (
    choice_of,
    open_with,
    own_view,
    save_view,
    show_columns,
    views_for,
)
from tangram_web.lib import scheduler_client
from tangram_web.live.access import Sight
from tangram_web.records.models import ActionRecord

#: Page of each tab.
PAGES: Final = {
    "actions": "dashboard:actions",
    "trajectories": "dashboard:trajectories",
    "tasks": "dashboard:tasks",
    "rollouts": "rollouts:list",
}
#: Waiting actions whose reason is asked for at once.
MOST_EXPLAINED: Final = 50

#: Rows that verbs apply to at once.
MOST_SELECTED: Final = 1000

Answer = dict[str, Any] | HttpResponse


def tab_page(tab: Tab) -> Callable[[HttpRequest, Sight], Answer]:
    """Return the view of a tab."""

    def view(request: HttpRequest, sight: Sight) -> Answer:
        return show(request, sight, tab)

    return view


def show(request: HttpRequest, sight: Sight, tab: Tab) -> Answer:
    """Show one page of a list; an address of an earlier version leads to its query."""
    old = None if "q" in request.GET else query_of_old(tab, request.GET)
    if old is not None:
        return redirect(reverse(PAGES[tab.name], query={"q": old}))
    if request.GET.get("add", "").strip():
        return _merged(request, tab)
    choice = choice_of(request.user, tab)
    view = choice.view if choice is not None and choice.view is not None else None
    own = tuple(choice.columns) if choice is not None else ()
    found = listing(
        tab, sight, request.GET, time(), usual=None if view is None else view.query, own_columns=own
    )
    return {
        "tab": tab,
        "tabs": [(each, reverse(PAGES[each.name])) for each in TABS.values()],
        "address": reverse(PAGES[tab.name]),
        "found": found,
        "fields": explained(tab),
        "views": views_for(request.user, sight, tab),
        "opens_with": None if view is None else view.id,
    }


def _merged(request: HttpRequest, tab: Tab) -> HttpResponse:
    """Add what was typed to the query of the address."""
    given = request.GET.copy()
    parts = (given.get("q", "").strip(), given.get("add", "").strip())
    given["q"] = " ".join(part for part in parts if part)
    for name in ("add", "after"):
        given.pop(name, None)
    return redirect(f"{reverse(PAGES[tab.name])}?{given.urlencode()}")


actions = tab_page(ACTIONS)
trajectories = tab_page(TRAJECTORIES)
tasks = tab_page(TASKS)


def counts(request: HttpRequest, sight: Sight, tab: str) -> Answer:
    """Show how many rows a query finds, its facets, and its heatmap."""
    known = TABS.get(tab)
    if known is None:
        return HttpResponse(status=404)
    try:
        query = parse(known, request.GET.get("q", ""))
    except QueryError as error:
        return HttpResponse(str(error), status=422, content_type="text/plain; charset=utf-8")
    now = time()
    counted = count_rows(known, query, sight, now)
    return {
        "tab": known,
        "counted": counted,
        "address": reverse(PAGES[known.name]),
        "heat": _heatmap(query, sight, counted, now) if known is ACTIONS else None,
    }


def _heatmap(query: Query, sight: Sight, counted: Counted, now: float) -> ActMap | None:
    """Return the map of all actions where rollups have them, else of those that were counted."""
    sums = act_sums(query, sight, counted.durations, now) if counted.more else None
    drawn = None if sums is None else heatmap_of_sums(sums)
    return drawn or heatmap_of(query, counted.durations, now)


def complete(request: HttpRequest, sight: Sight, tab: str) -> HttpResponse:
    """Answer with what may follow in the filter, with counts."""
    known = TABS.get(tab)
    if known is None:
        return HttpResponse(status=404)
    given = request.GET
    return JsonResponse(
        completions(known, sight, given.get("q", ""), given.get("typed", ""), time())
    )


def reasons(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Answer why actions wait, by id; those that do not wait, or may not be seen, are left out."""
    ids = [each for each in request.GET.get("ids", "").split(",") if each and "\0" not in each]
    rows = sight.of(ActionRecord.objects.filter(pk__in=ids[:MOST_EXPLAINED]))
    seen = list(rows.values_list("pk", flat=True))
    live, problem = asked(lambda: scheduler_client.live_actions(seen))
    waits = {name: each.waiting for name, each in (live or {}).items() if each.waiting is not None}
    shown = without_hidden_names(sight, list(waits.values()))
    said = {name: why.reason for name, why in zip(waits, shown, strict=True)}
    return JsonResponse({"reasons": said, "problem": problem})


def ids(request: HttpRequest, sight: Sight, tab: str) -> HttpResponse:
    """Answer with the ids that a query finds, up to `MOST_SELECTED`, unfinished ones first, and the task of each."""
    known = TABS.get(tab)
    if known is None:
        return HttpResponse(status=404)
    try:
        query = parse(known, request.GET.get("q", ""))
    except QueryError as error:
        return HttpResponse(str(error), status=422, content_type="text/plain; charset=utf-8")
    now, found = time(), list[tuple[str, ...]]()
    columns = ("pk", "project", "task") if known is ACTIONS else ("pk",)
    for part in parts_of(known):
        rows = rows_by_id(known, part, query, sight, now, MOST_SELECTED + 1).order_by("-pk")
        found += rows.values_list(*columns)[: MOST_SELECTED + 1 - len(found)]
    kept = found[:MOST_SELECTED]
    tasks = ["/".join(owner) or key for key, *owner in kept]
    answer = {"ids": [key for key, *_ in kept], "tasks": tasks}
    return JsonResponse({**answer, "more": len(found) > MOST_SELECTED})


def columns(request: HttpRequest, sight: Sight, tab: str) -> HttpResponse:
    """Keep the columns that a person chose, and show the list with them."""
    known = TABS.get(tab)
    if known is None:
        return HttpResponse(status=404)
    names = tuple(filter(None, request.POST.get("columns", "").split(",")))
    show_columns(request.user, known, names)
    return _back(known, request.POST)


def save(request: HttpRequest, sight: Sight, tab: str) -> HttpResponse:
    """Save the list that is shown as a view."""
    given = request.POST
    columns = tuple(filter(None, given.get("columns", "").split(",")))
    try:
        view = save_view(
            request.user, tab=tab, name=given.get("name", ""), query=given.get("query", ""),
            order=given.get("order", ""), columns=columns, project=given.get("project", "").strip(),
        )  # fmt: skip
    except (InvalidRequest, NotFound) as error:
        return refuse(request, "Not saved", f"{error}.", 422)
    return _back(TABS[view.tab], {"q": view.query, "sort": view.order})


def change_view(request: HttpRequest, sight: Sight, view_id: str) -> HttpResponse:
    """Delete a view, or let its tab open with it."""
    verb = request.POST.get("verb", "")
    shown = {view.id: view for view in views_for(request.user, sight)}
    view = shown.get(view_id)
    if view is None or verb not in ("delete", "default", "no-default"):
        return refuse(request, "No such view", "It was deleted, or it is not yours.", 404)
    tab = TABS[view.tab]
    if verb == "delete":
        try:
            own_view(request.user, view_id).delete()
        except NotFound as error:
            return refuse(request, "Not deleted", f"{error}.", 404)
    else:
        open_with(request.user, tab, view if verb == "default" else None)
    return redirect(reverse(PAGES[tab.name]))


def _back(tab: Tab, given: Mapping[str, str]) -> HttpResponse:
    kept = {name: given.get(name, "") for name in ("q", "sort") if given.get(name) or name == "q"}
    return redirect(reverse(PAGES[tab.name], query=kept))
