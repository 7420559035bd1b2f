"""Pages of the configuration. Each view parses, asks one service or selector, renders."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from domain.errors import Conflict, InvalidRequest, NotFound, Unavailable
from tangram_web.accounts.access import for_members, role_everywhere, roles_of
from tangram_web.accounts.models import Role
from tangram_web.configuration import services
from tangram_web.configuration.effects import SHOWN, effect_of
from tangram_web.configuration.forms import SpecForm
from tangram_web.configuration.stranding import stranded_by
from tangram_web.configuration.whatif import what_if
from tangram_web.dashboard.guards import for_watchers, refuse
from tangram_web.pools import applying, manifests
from tangram_web.pools.models import ConfigRevision
from tangram_web.pools.selectors import current_config


def need_admin(request: HttpRequest) -> None:
    """Raise PermissionDenied for everybody who is not admin of every project."""
    if role_everywhere(request.user) is not Role.ADMIN:
        raise PermissionDenied("the configuration belongs to all projects: this needs an admin")


@require_safe
@for_watchers
def overview(request: HttpRequest) -> HttpResponse:
    """List every object, with the whole as YAML."""
    config = current_config()
    documents = manifests.plain(manifests.specs_of(config))
    context = {
        "page": "configuration",
        "config": config,
        "documents": documents,
        "text": manifests.to_yaml(documents),
        "kinds": manifests.KINDS,
        "may_edit": role_everywhere(request.user) is Role.ADMIN,
    }
    return render(request, "configuration/overview.html", context)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
@for_members
def edit(request: HttpRequest) -> HttpResponse:
    """Show the form and the text of one object, or the text of all; take the form."""
    need_admin(request)
    config = current_config()
    given = request.POST if request.method == "POST" else request.GET
    kind, name = given.get("kind", ""), given.get("name", "")
    if kind and kind not in manifests.KINDS:
        raise Http404(f"there is no kind {kind!r}")
    if request.method == "POST":
        form = SpecForm(kind or manifests.KINDS[0], None, request.POST)
        if not form.is_valid():
            return _editor(request, "", config.revision, form=form, status=422)
        text = manifests.to_yaml([form.document()])
        return _reviewed(request, text, _revision(request, config.revision))
    documents = manifests.plain(manifests.specs_of(config))
    chosen = [
        d for d in documents if not kind or (d["kind"], d["metadata"]["name"]) == (kind, name)
    ]
    text = manifests.to_yaml(chosen)
    if not kind:
        return _editor(request, text, config.revision)
    blank = SpecForm(kind, chosen[0]["spec"] if chosen else None)
    blank.initial["name"] = name
    return _editor(request, text, config.revision, form=blank)


@require_POST
@login_required
@for_members
def review(request: HttpRequest) -> HttpResponse:
    """Show what a text would change, and save it when that is asked for."""
    need_admin(request)
    text = request.POST.get("text", "")
    return _reviewed(request, text, _revision(request, current_config().revision))


def _reviewed(request: HttpRequest, text: str, revision: int) -> HttpResponse:
    try:
        wanted = manifests.parse(text)
    except InvalidRequest as error:
        return _editor(request, text, revision, problem=f"{error}.", status=422)
    prune, said = "prune" in request.POST, request.POST.get("stranded", "refuse")
    if "save" in request.POST:
        stranded = said if said in services.CHOICES else "refuse"
        return _saved(request, text, wanted, revision, prune=prune, stranded=stranded)
    return _review(request, text, wanted, revision, prune=prune)


def _saved(
    request: HttpRequest, text: str, wanted: Any, revision: int, *, prune: bool, stranded: str
) -> HttpResponse:
    try:
        config, _ = services.save(
            request, wanted, expected=revision, prune=prune, stranded=stranded
        )
    except applying.Stale:
        return _merging(request, wanted, revision, prune=prune)
    except Conflict as error:
        return _review(
            request, text, wanted, revision, prune=prune, problem=f"{error}.", status=409
        )
    except InvalidRequest as error:
        return _editor(request, text, revision, problem=f"{error}.", status=422)
    except Unavailable as error:
        return refuse(request, "Saved, not in force", f"{error}.", 503)
    return redirect("configuration:revision", config.revision)


def _review(
    request: HttpRequest, text: str, wanted: Any, revision: int, *, prune: bool,
    problem: str = "", status: int = 200,
) -> HttpResponse:  # fmt: skip
    config = current_config()
    changes = applying.changes(wanted, config, prune=prune)
    if config.revision != revision:
        return _merging(request, wanted, revision, prune=prune)
    context = {
        "page": "configuration",
        "text": text,
        "revision": revision,
        "prune": prune,
        "changes": changes,
        "stranded": stranded_by(changes),
        "choices": services.CHOICES,
        "projects": list(roles_of(request.user, Role.SUBMITTER)),
        "problem": problem,
    }
    return render(request, "configuration/review.html", context, status=status)


def _merging(request: HttpRequest, wanted: Any, base: int, *, prune: bool) -> HttpResponse:
    """Somebody saved meanwhile: show what, what clashes, and the merged text to go on with."""
    config = current_config()
    try:
        found = services.merged(base, wanted, prune=prune)
        theirs = applying.changes(manifests.specs_of(config), applying.revision(base), prune=True)
    except NotFound as error:
        raise Http404(str(error)) from error
    context = {"base": base, "theirs": theirs, "clashes": found.clashes}
    text = services.as_text(found.specs)
    return _editor(request, text, config.revision, merge=context, prune=prune, status=412)


def _editor(
    request: HttpRequest, text: str, revision: int, *, status: int = 200, **more: Any
) -> HttpResponse:
    context = {"page": "configuration", "text": text, "revision": revision, **more}
    return render(request, "configuration/edit.html", context, status=status)


@require_POST
@login_required
@for_members
def try_out(request: HttpRequest) -> HttpResponse:
    """Play the last minutes under the edited configuration, as simulations."""
    need_admin(request)
    config, project = current_config(), request.POST.get("project", "default")
    try:
        wanted = manifests.parse(request.POST.get("text", ""))
        if project not in config.projects:
            raise InvalidRequest(f"there is no project {project!r}")
        prune = "prune" in request.POST
        changes = applying.changes(wanted, config, prune=prune)
        made = what_if(request, wanted, changes, project, prune=prune)
    except (InvalidRequest, Conflict, Unavailable) as error:
        return refuse(request, "Nothing to play", f"{error}.", 422)
    return redirect("simulations:one", made.pk)


@require_safe
@for_watchers
def revisions(request: HttpRequest) -> HttpResponse:
    """List revisions, the latest first: who, what, and what it did to the ACT."""
    rows = list(ConfigRevision.objects.order_by("-number")[: SHOWN + 1])
    specs = [manifests.specs_of(applying.revision(row.number)) for row in rows]
    found = [
        {
            "row": row,
            "effect": effect_of(row),
            "changes": applying.changes(
                specs[at], applying.revision(rows[at + 1].number), prune=True
            ) if at + 1 < len(rows) else [],
        }
        for at, row in enumerate(rows[:SHOWN])
    ]  # fmt: skip
    context = {"page": "configuration", "revisions": found}
    return render(request, "configuration/revisions.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
@for_members
def revision(request: HttpRequest, number: int) -> HttpResponse:
    """Show one revision and what going back to it would change; go back."""
    if role_everywhere(request.user) is None:
        raise Http404("there is no such revision")
    try:
        wanted = manifests.specs_of(applying.revision(number))
    except NotFound as error:
        raise Http404(str(error)) from error
    if request.method != "POST":
        return _shown(request, number, wanted)
    need_admin(request)
    expected = _revision(request, current_config().revision)
    said = request.POST.get("stranded", "refuse")
    try:
        done, _ = services.save(
            request, wanted, expected=expected, prune=True,
            stranded=said if said in services.CHOICES else "refuse",
        )  # fmt: skip
    except applying.Stale as error:
        return refuse(request, "Somebody changed it meanwhile", f"{error}; look again.", 412)
    except (Conflict, InvalidRequest) as error:
        return _shown(request, number, wanted, problem=f"{error}.", status=409)
    except Unavailable as error:
        return refuse(request, "Saved, not in force", f"{error}.", 503)
    return redirect("configuration:revision", done.revision)


def _shown(
    request: HttpRequest, number: int, wanted: Any, *, problem: str = "", status: int = 200
) -> HttpResponse:
    now = current_config()
    changes = applying.changes(wanted, now, prune=True)
    context = {
        "page": "configuration",
        "row": ConfigRevision.objects.get(number=number),
        "now": now.revision,
        "text": manifests.to_yaml(manifests.plain(wanted)),
        "changes": changes,
        "stranded": stranded_by(changes),
        "choices": services.CHOICES,
        "problem": problem,
        "may_edit": role_everywhere(request.user) is Role.ADMIN,
    }
    return render(request, "configuration/revision.html", context, status=status)


def _revision(request: HttpRequest, otherwise: int) -> int:
    """Return the revision that somebody looked at when they began to edit."""
    given = request.POST.get("revision", "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 19 else otherwise
