"""Operate: the overview of all targets, the page of a verb, and the page of its result; targets are found here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec
from django import forms
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from msgspec.structs import asdict

from contract.requests import Name
from domain.action import ActionState
from domain.backends import owner_of
from domain.errors import Conflict, InvalidRequest, NotFound, Unavailable
from domain.rollouts import RolloutState
from tangram_web.accounts.access import ORDER, require, role_everywhere
from tangram_web.accounts.models import Role
from tangram_web.audit.models import AuditEntry
from tangram_web.audit.services import actor_at
from tangram_web.dashboard.guards import refuse
from tangram_web.dashboard.scheduler_selectors import asked
from tangram_web.lib import scheduler_client
from tangram_web.lib.explorer_links import explorer_link
from tangram_web.lib.requests import request_id_of
from tangram_web.operations.effects import PROPOSALS, EffectView, effect_of
from tangram_web.operations.forms import TargetForm
from tangram_web.operations.live_counts import by_pool
from tangram_web.operations.undo import undo_of
from tangram_web.operations.verb import Target, TargetGone, Verb
from tangram_web.operations.verbs import VERBS
from tangram_web.operations.verbs.actions import actions_target
from tangram_web.operations.verbs.fleets import trajectory_target, worker_target
from tangram_web.operations.verbs.selected_tasks import steered_tasks, tasks_target
from tangram_web.operations.verbs.selectors import selector_target
from tangram_web.pools.models import GpuServiceRow, NodeDrain, Pool, Resource
from tangram_web.records.models import (
    ActionRecord,
    NodeAvailability,
    NodeRecord,
    RolloutRecord,
    TaskRecord,
)
from tangram_web.simulations.effects import warm


def find(kind: str, name: str) -> Target:
    """Return the target of that kind and name, as it is now."""
    if kind not in FINDERS or "\0" in name:
        raise NotFound(f"there is no {kind} {name!r}")
    return FINDERS[kind](name)


def _action(name: str) -> Target:
    row = _row(ActionRecord.objects.filter(pk=name).defer("result"), "action", name)
    if row.state == ActionState.FINISHED:
        raise TargetGone(f"action {name} has finished: {row.outcome}")
    now = {"state": row.state, "task": row.task, "trajectory": row.trajectory}
    return Target(kind="action", name=name, project=row.project, now=now)


def _task(name: str) -> Target:
    row = _row(TaskRecord.objects.filter(pk=name), "task", name)
    return Target(kind="task", name=name, project=row.project, now=steered_tasks([name])[name])


def _rollout(name: str) -> Target:
    row = _row(RolloutRecord.objects.filter(pk=name).defer("metadata"), "rollout", name)
    if row.state == RolloutState.FINISHED:
        raise TargetGone(f"rollout {name} has finished: {row.outcome}")
    # Rows follow the journal a moment later.
    status, _ = asked(lambda: scheduler_client.rollouts(project=row.project, rollout_id=row.id))
    live = row if status is None or not status.rollouts else status.rollouts[0]
    now = {"state": str(live.state), "stage": live.stage or "", "turns": live.turns}
    return Target(kind="rollout", name=name, project=row.project, now=now)


def _backend(name: str) -> Target:
    pool, _, backend = name.partition("/")
    _check_pool(pool)
    found = scheduler_client.rollouts(backends=(pool,), limit=0).backends
    for each in found:
        if each.name == backend:
            return Target(kind="backend", name=name, project=owner_of(pool), now=asdict(each))
    raise NotFound(f"there is no backend {name!r}")


def _backend_pool(name: str) -> Target:
    """Return a pool of backends, which may be new."""
    _check_pool(name)
    status = scheduler_client.rollouts(backends=("*",), limit=0)
    own = [each for each in status.backends if each.pool == name]
    now = {
        "known": name in status.pools,
        "pools": len(status.pools),
        "of_project": sum(owner_of(each) == owner_of(name) for each in status.pools),
        "weights_version": status.pools.get(name, 1),
        "backends": [each.name for each in own],
        "taken": sum(each.taken for each in own),
    }
    return Target(kind="backends", name=name, project=owner_of(name), now=now)


def _check_pool(name: str) -> None:
    """Raise NotFound for a name that no pool of backends can have."""
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError:
        raise NotFound(f"there is no pool of backends {name[:128]!r}") from None


def _node(name: str) -> Target:
    row = _row(NodeRecord.objects.filter(pk=name), "node", name)
    drain = NodeDrain.objects.filter(node=name).first()
    now = {
        "drained": drain is not None,
        "reason": drain.reason if drain else "",
        "finishing": drain is not None and drain.finishing,
        "state": row.state,
    }
    return Target(kind="node", name=name, now={**now, "pool": row.pool})


def _pool(name: str) -> Target:
    row = _row(Pool.objects.filter(pk=name), "pool", name)
    now = {"paused": row.paused, "policy": row.policy, "shares": row.shares}
    return Target(kind="pool", name=name, now=now)


def _resource(name: str) -> Target:
    row = _row(Resource.objects.filter(pk=name), "resource", name)
    return Target(kind="resource", name=name, now={"limit_units": row.limit_units, **row.spec})


def _service(name: str) -> Target:
    row = _row(GpuServiceRow.objects.filter(pk=name), "service", name)
    return Target(kind="service", name=name, now={"quarantined": False, **row.spec})


def _row(rows: Any, kind: str, name: str) -> Any:
    row = rows.first()
    if row is None:
        raise NotFound(f"there is no {kind} {name!r}")
    return row


FINDERS: Final[dict[str, Callable[[str], Target]]] = {
    "action": _action,
    "actions": actions_target,
    "task": _task,
    "tasks": tasks_target,
    "rollout": _rollout,
    "backend": _backend,
    "backends": _backend_pool,
    "worker": worker_target,
    "trajectory": trajectory_target,
    "selector": selector_target,
    "node": _node,
    "pool": _pool,
    "resource": _resource,
    "service": _service,
}


def operate(request: HttpRequest) -> dict[str, Any]:
    """Show nodes, pools, services, resources and controlled tasks, each with its verbs."""
    warm()
    return {"admin": role_everywhere(request.user) is Role.ADMIN, **_operable()}


def verb(request: HttpRequest, kind: str, name: str) -> HttpResponse:
    """Show the effect of a verb, and apply it when it is confirmed."""
    wanted = (request.POST if request.method == "POST" else request.GET).get("target", "")
    try:
        chosen, target = _asked(kind, name, wanted)
    except TargetGone as error:
        return refuse(request, "Too late", f"{error}. Nothing was changed.", 409)
    except Unavailable as error:
        return refuse(request, "Not now", f"{error}. Nothing was changed.", 503)
    require_role(request.user, chosen, target)
    if request.method == "POST" and "look" not in request.POST:
        return _done(request, chosen, target)
    given = request.POST if request.method == "POST" else None
    return _shown(request, chosen, target, _form(chosen, target, given, request.GET))


def effect(request: HttpRequest, kind: str, name: str) -> HttpResponse:
    """Show the simulated effect of a verb with the values in the query, as a part of its page."""
    try:
        chosen, target = _asked(kind, name, request.GET.get("target", ""))
    except (TargetGone, Unavailable) as error:
        return render(request, "operations/effect.html", {"effect": EffectView(f"{error}.")})
    require_role(request.user, chosen, target)
    form = _form(chosen, target, request.GET, {})
    if form.is_valid():
        found = effect_of(kind, name, target, form.cleaned_data, actor_at(request))
    else:
        found = EffectView("Complete the form to see its effect.")
    return render(request, "operations/effect.html", {"effect": found})


def _asked(kind: str, name: str, wanted: str) -> tuple[Verb, Target]:
    """Return a verb and its target. Raises Http404."""
    chosen = VERBS.get((kind, name))
    if chosen is None:
        raise Http404(f"there is no verb {name} for a {kind}")
    try:
        return chosen, find(kind, wanted)
    except NotFound as error:
        raise Http404(str(error)) from error


def require_role(user: Any, chosen: Verb, target: Target) -> None:
    """Raise Http404 for a stranger, PermissionDenied for a role that is too low."""
    selected = target.kind in ("actions", "tasks")
    projects = target.now.get("projects", ()) if selected else [target.project]
    if any(projects):
        for project in projects:
            require(user, project, chosen.role)
        return
    role = role_everywhere(user)
    if role is None or ORDER.index(role) < ORDER.index(chosen.role):
        raise PermissionDenied(
            f"this affects every project and needs the role {chosen.role} in all of them"
        )


def _form(chosen: Verb, target: Target, given: Any, query: Any) -> forms.Form:
    about: dict[str, Any] = {"target": target} if issubclass(chosen.form, TargetForm) else {}
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
    counted = chosen.effect(target, values)
    if (chosen.kind, chosen.name) in PROPOSALS:
        warm()
    context = {
        "verb": chosen,
        "target": target,
        "form": form,
        "effect": counted,
        "counts": [
            {"word": word, "count": count, "link": link_of_count(target, word)}
            for word, count in counted.counts.items()
        ],
        "line": chosen.line(target, values),
        "problem": problem,
        "query": urlencode({"target": target.name, **{n: form[n].value() for n in form.fields}}),
        "back": _back(request, _address_of(target.kind, target.name)),
    }
    return render(request, "operations/verb.html", context, status=status)


#: Count of a verb → state of the list that has these actions.
_STATES: Final = {"waiting": "queued", "granted": "granted", "running": "running"}


def link_of_count(target: Target, word: str) -> str:
    """Return the address of the list that a count counts; empty where no filter selects it."""
    state, project, name = _STATES.get(word), target.project, target.name
    if state is None or target.kind not in ("pool", "task", "node"):
        return ""
    if target.kind == "task":
        return explorer_link("actions", state=state, task=name.partition("/")[2], project=project)
    if target.kind == "node":
        return explorer_link("actions", state=state, node=name)
    return explorer_link("actions", state=state, pool=name)


def _back(request: HttpRequest, otherwise: str) -> str:
    """Return the page that the reader came from; never one of a verb, and never another site."""
    given = request.POST.get("back") or request.GET.get("back") or ""
    referer = urlsplit(request.headers.get("Referer", ""))
    if not given and referer.netloc == request.get_host():
        given = referer.path + (f"?{referer.query}" if referer.query else "")
    local = given.startswith("/") and url_has_allowed_host_and_scheme(given, allowed_hosts=None)
    return given if local and not given.startswith("/act/") else otherwise


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
    entry = _entry_of(request_id_of(request))
    if entry is None:
        problem = "Nothing was changed: the target has these values already."
        return _shown(request, chosen, target, form, 200, problem)
    back = _back(request, "")
    query = f"?{urlencode({'back': back})}" if back else ""
    return redirect(reverse("operations:done", args=[entry.pk]) + query)


def done(request: HttpRequest, entry_id: int) -> dict[str, Any]:
    """Show the audit entry of an operation, and the verb that undoes it."""
    found = _entry_of(entry=entry_id)
    if found is None:
        raise Http404("there is no such audit entry")
    if found.project:
        require(request.user, found.project, ORDER[0])
    elif role_everywhere(request.user) is None:
        raise Http404("there is no such audit entry")
    kind, _, name = found.target.partition("/")
    return {
        "entry": found,
        "undo": undo_of(found),
        "back": _back(request, _address_of(kind, name)),
        "name": name,
    }


def _entry_of(request_id: str = "", entry: int | None = None) -> AuditEntry | None:
    """Return the last audit entry of a request, or the entry with an id."""
    which = {"pk": entry} if entry is not None else {"request_id": request_id}
    return AuditEntry.objects.filter(**which).order_by("-id").first()


def _address_of(kind: str, name: str) -> str:
    """Return the address of the page that shows a target."""
    if kind in ("action", "task"):
        return reverse(f"dashboard:{kind}", args=[name])
    if kind in ("actions", "tasks"):
        return reverse(f"dashboard:{kind}")
    if kind == "rollout":
        return reverse("rollouts:one", args=[name])
    if kind in ("backend", "backends"):
        return reverse("rollouts:backends")
    if kind == "worker":
        return reverse("fleets:one", args=[name.partition("/")[0]])
    if kind == "selector":
        return reverse("parallelism:one", args=[name])
    if kind == "trajectory":
        return reverse("dashboard:trajectory", args=[name])
    return reverse("operations:operate")


def _operable() -> dict[str, Any]:
    """Return nodes, pools, resources, services and controlled tasks, each with its state."""
    status, problem = asked(scheduler_client.status)
    drains = {each.node: each for each in NodeDrain.objects.all()}
    nodes = [
        {"name": row.name, "pool": row.pool, "state": row.state, "drain": drains.get(row.name),
         "lost": row.state == NodeAvailability.LOST}
        for row in NodeRecord.objects.order_by("name")
    ]  # fmt: skip
    counts = {} if status is None else by_pool(status)
    pools = [
        {"name": row.name, "policy": row.policy, "paused": row.paused,
         "counts": counts.get(row.name),
         "links": {word: explorer_link("actions", state=state, pool=row.name)
                   for word, state in _STATES.items()}}
        for row in Pool.objects.order_by("name")
    ]  # fmt: skip
    return {
        "problem": problem,
        "nodes": nodes,
        "pools": pools,
        "resources": Resource.objects.order_by("name"),
        "services": [
            {"name": row.name, "quarantined": row.spec.get("quarantined", False)}
            for row in GpuServiceRow.objects.order_by("name")
        ],
        "steered": {} if status is None else status.get("steered_tasks", {}),
    }
