"""Guards of pages: each admits some readers and answers the others with a refusal."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from tangram_web.live.access import Sight, may_watch, sight_of

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]
SightedView = Callable[Concatenate[HttpRequest, Sight, P], HttpResponse]


def for_watchers(view: View[P]) -> View[P]:
    """Admit readers that may see all projects at once."""

    @wraps(view)
    def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if may_watch(request.user):
            return view(request, *args, **kwargs)
        return refuse(
            request,
            "Not permitted",
            "This page shows all projects: it is for staff accounts and members of every project.",
            403,
        )

    return login_required(guarded)


def for_viewers(view: SightedView[P]) -> View[P]:
    """Admit members of a project; the view gets the projects that it may show."""

    @wraps(view)
    def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        sight = sight_of(request.user)
        if sight is not None:
            return view(request, sight, *args, **kwargs)
        cure = "You are a member of no project. An admin of a project can add you."
        return refuse(request, "Not permitted", cure, 403)

    return login_required(guarded)


def refuse(request: HttpRequest, title: str, cure: str, status: int) -> HttpResponse:
    """Return a page with the reason of a refusal and a remedy."""
    context = {"title": title, "cure": cure}
    return render(request, "dashboard/refused.html", context, status=status)
