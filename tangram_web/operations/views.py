"""The page of a verb, the page of what was done, and the page from which nodes and pools are run."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from domain.errors import Conflict, InvalidRequest, NotFound, Unavailable
from tangram_web.accounts.access import ORDER, for_members, require, role_everywhere
from tangram_web.accounts.models import Role
from tangram_web.dashboard.guards import for_watchers, refuse
from tangram_web.lib.requests import request_id_of
from tangram_web.operations.forms import OfTarget
from tangram_web.operations.selectors import back_to, done_by, standing
from tangram_web.operations.table import VERBS
from tangram_web.operations.targets import find
from tangram_web.operations.undoing import undo_of
from tangram_web.operations.verbs import Gone, Target, Verb


@require_safe
@for_watchers
def operate(request: HttpRequest) -> HttpResponse:
    """Show nodes, pools, services, resources and steered tasks, each with its verbs."""
    admin = role_everywhere(request.user) is Role.ADMIN
    context = {"page": "operate", "admin": admin, **standing()}
    return render(request, "operations/operate.html", context)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
@for_members
def verb(request: HttpRequest, kind: str, name: str) -> HttpResponse:
    """Show what a verb would do, and do it when that is confirmed."""
    chosen = VERBS.get((kind, name))
    if chosen is None:
        raise Http404(f"nobody can {name} a {kind}")
    wanted = (request.POST if request.method == "POST" else request.GET).get("target", "")
    try:
        target = find(kind, wanted)
    except NotFound as error:
        raise Http404(str(error)) from error
    except Gone as error:
        return refuse(request, "Too late", f"{error}. Nothing was done.", 409)
    check(request.user, chosen, target)
    if request.method == "POST" and "look" not in request.POST:
        return _done(request, chosen, target)
    given = request.POST if request.method == "POST" else None
    return _shown(request, chosen, target, _form(chosen, target, given, request.GET))


def check(user: Any, chosen: Verb, target: Target) -> None:
    """Raise Http404 for a stranger, PermissionDenied for a role that is too low."""
    if target.project:
        require(user, target.project, chosen.role)
        return
    role = role_everywhere(user)
    if role is None or ORDER.index(role) < ORDER.index(chosen.role):
        raise PermissionDenied(f"this touches every project and needs the role {chosen.role}")


def _form(chosen: Verb, target: Target, given: Any, query: Any) -> forms.Form:
    about: dict[str, Any] = {"target": target} if issubclass(chosen.form, OfTarget) else {}
    if given is not None:
        return chosen.form(given, **about)
    known = {**target.now, **{name: query[name] for name in query}}
    return chosen.form(initial=known, **about)


def _shown(
    request: HttpRequest, chosen: Verb, target: Target, form: forms.Form, status: int = 200,
    problem: str = "",
) -> HttpResponse:  # fmt: skip
    valid = form.is_bound and form.is_valid()
    values = form.cleaned_data if valid else {}
    context = {
        "page": "operate",
        "verb": chosen,
        "target": target,
        "form": form,
        "effect": chosen.effect(target, values),
        "line": chosen.line(target, values),
        "problem": problem,
        "back": back_to(target.kind, target.name),
    }
    return render(request, "operations/verb.html", context, status=status)


def _done(request: HttpRequest, chosen: Verb, target: Target) -> HttpResponse:
    form = _form(chosen, target, request.POST, {})
    if not form.is_valid():
        return _shown(request, chosen, target, form, 422)
    if chosen.heavy and request.POST.get("typed", "").strip() != target.name:
        return _shown(request, chosen, target, form, 422, f"Type {target.name} to confirm.")
    try:
        chosen.do(request, target, form.cleaned_data)
    except (InvalidRequest, Conflict) as error:
        return _shown(request, chosen, target, form, 409, f"{error}.")
    except Unavailable as error:
        return _shown(request, chosen, target, form, 503, f"{error}.")
    entry = done_by(request_id_of(request))
    if entry is None:
        problem = "It is so already: nothing was changed."
        return _shown(request, chosen, target, form, 200, problem)
    return redirect("operations:done", entry.pk)


@require_safe
@for_members
def done(request: HttpRequest, entry: int) -> HttpResponse:
    """Show what was done, as the audit has it, and how it is undone."""
    found = done_by(entry=entry)
    if found is None:
        raise Http404("there is no such entry")
    if found.project:
        require(request.user, found.project, ORDER[0])
    elif role_everywhere(request.user) is None:
        raise Http404("there is no such entry")
    kind, _, name = found.target.partition("/")
    context = {
        "page": "operate",
        "entry": found,
        "undo": undo_of(found),
        "back": back_to(kind, name),
        "name": name,
    }
    return render(request, "operations/done.html", context)
