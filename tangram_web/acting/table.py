"""The verbs there are: one row each. `VERBS` is the complete table."""

from __future__ import annotations

import shlex
from typing import Any, Final

import msgspec
from django.db import transaction
from django.http import HttpRequest

from domain.errors import Conflict
from domain.events import (
    ActionCancelRequested,
    ServiceEvictionAsked,
    TaskCancelRequested,
    TaskPaused,
    TaskPrioritised,
    TrajectoryFinished,
)
from domain.ids import ActionId
from domain.services import GpuService
from tangram_web.acting import forms
from tangram_web.acting.counting import calls, live, live_rows, live_that, open_trajectories
from tangram_web.acting.restoring import TASK, warming
from tangram_web.acting.verbs import Effect, Target, Values, Verb, said
from tangram_web.audit.services import actor_at, record
from tangram_web.lib.tell import tell
from tangram_web.people.models import Role
from tangram_web.pools import applying, manifests, services
from tangram_web.pools.selectors import current_config
from tangram_web.records.models import TrajectoryRecord


def _names(target: Target) -> dict[str, Any]:
    return {"project": target.project, "task": target.name.partition("/")[2]}


def _tell(
    request: HttpRequest, verb: str, target: Target, before: Any, after: Any, *events: Any
) -> None:
    with transaction.atomic():
        aim = f"{target.kind}/{target.name}"
        record(request, verb, aim, before, after, project=target.project)
        tell(*events)


# Actions


def _of_action(target: Target, _: Values) -> Effect:
    alone = f"The action is {target.now['state']}; it ends as cancelled, without a reward."
    return Effect({"waiting": 0, "running": 1} if target.now["state"] != "queued"
                  else {"waiting": 1, "running": 0}, alone)  # fmt: skip


def _cancel_action(request: HttpRequest, target: Target, values: Values) -> None:
    reason = values["reason"] or f"cancelled by {request.user.get_username()}"
    event = ActionCancelRequested(
        action_id=ActionId(target.name), project=target.project, reason=reason
    )
    _tell(request, "cancel", target, {"state": target.now["state"]}, {"reason": reason}, event)


# Tasks


def _of_task(says: str) -> Any:
    return lambda target, _: Effect(live(**_names(target)), says)


def _pause_task(request: HttpRequest, target: Target, *, paused: bool) -> None:
    before = {"paused": target.now["paused"]}
    if before["paused"] != paused:
        verb, event = "pause" if paused else "resume", TaskPaused(**_names(target), paused=paused)
        _tell(request, verb, target, before, {"paused": paused}, event)


def _prioritise(request: HttpRequest, target: Target, values: Values) -> None:
    before, after = {"priority": target.now["priority"]}, {"priority": values["priority"]}
    if before != after:
        event = TaskPrioritised(**_names(target), **after)
        _tell(request, "prioritise", target, before, after, event)


def _cancel_task(request: HttpRequest, target: Target, values: Values) -> None:
    reason = values["reason"] or f"task cancelled by {request.user.get_username()}"
    touched = live(**_names(target))
    event = TaskCancelRequested(**_names(target), reason=reason)
    _tell(request, "cancel", target, touched, {"reason": reason}, event)


def _task_line(*words: str) -> Any:
    def line(target: Target, values: Values) -> str:
        project, _, name = target.name.partition("/")
        given = [str(values["priority"])] if values.get("priority") is not None else []
        return said("tangram", "task", *words, name, *given, "--project", project)

    return line


# Nodes


def _of_node(target: Target, values: Values) -> Effect:
    counts = {**live(node=target.name), "open trajectories": open_trajectories(node=target.name)}
    ends = values.get("running") == "ends"
    says = "It takes no new actions. What runs there " + ("is ended now." if ends else "goes on.")
    bound = counts["open trajectories"]
    warning = "" if ends or not bound else (
        f"{bound} open trajectories have their environment there: their next actions wait until "
        "the node is taken back, or is dead"
    )  # fmt: skip
    return Effect(counts, says, warning)


def _drain(verb: str) -> Any:
    def do(request: HttpRequest, target: Target, values: Values) -> None:
        events: list[Any] = []
        if values.get("running") == "ends":
            events = _ends_on(target.name, f"node {target.name}: {verb}")
        with transaction.atomic():
            reason = values["reason"] or ("retired" if verb == "retire" else "")
            services.node_drain(actor=actor_at(request), node=target.name, reason=reason)
            if verb == "retire" or events:
                after = {"drained": True, "reason": reason, "ended": len(events)}
                record(request, verb, f"node/{target.name}", {"state": target.now["state"]}, after)
            tell(*events)

    return do


def _drain_line(otherwise: str) -> Any:
    def line(target: Target, values: Values) -> str:
        reason = values.get("reason") or otherwise
        because = ["--reason", reason] if reason else []
        return said("tangram", "node", "drain", target.name, *because)

    return line


def _ends_on(node: str, reason: str) -> list[Any]:
    open_there = TrajectoryRecord.objects.filter(node=node, state="open")
    events: list[Any] = [
        TrajectoryFinished(project=each.project, trajectory=each.name, reason=reason)
        for each in open_there
    ]
    rows = [row for row in live_rows() if row.node == node and not row.trajectory]
    return events + [
        ActionCancelRequested(action_id=ActionId(r.id), project=r.project, reason=reason)
        for r in rows
    ]


def _undrain(request: HttpRequest, target: Target, _: Values) -> None:
    services.node_resume(actor=actor_at(request), node=target.name)


# Pools, resources, services


def _of_pool(says: str) -> Any:
    return lambda target, _: Effect(live(pool=target.name), says)


def _pool(**change: Any) -> Any:
    def do(request: HttpRequest, target: Target, values: Values) -> None:
        told = {**change, **values}
        services.pool_update(actor=actor_at(request), name=target.name, **told)

    return do


def _of_resource(target: Target, values: Values) -> Effect:
    limit, name = values.get("limit_units"), target.name
    counts = live_that(lambda row: name in row.cost)
    says = "What is held stays held; the new limit is for what comes."
    if limit is None:
        return Effect(counts, says)
    stranded = sum(
        row.state == "queued" and name in row.cost and _least(row.cost[name]) > limit
        for row in live_rows()
    )
    warning = f"{stranded} waiting actions ask for more than {limit} and would wait for ever"
    return Effect({**counts, "stranded": stranded}, says, warning if stranded else "")


def _least(counts: Any) -> float:
    if isinstance(counts, dict):
        return float(counts.get("min", 0))
    return float(min(counts)) if isinstance(counts, list) else float(counts)


def _limit(request: HttpRequest, target: Target, values: Values) -> None:
    actor, limit = actor_at(request), values["limit_units"]
    services.resource_set(actor=actor, name=target.name, limit_units=limit)


def _of_service(says: str) -> Any:
    def effect(target: Target, _: Values) -> Effect:
        return Effect(live_that(lambda row: calls(row, f"service:{target.name}")), says)

    return effect


def _quarantine(*, shut: bool) -> Any:
    def do(request: HttpRequest, target: Target, _: Values) -> None:
        spec = msgspec.convert({**target.now, "quarantined": shut}, GpuService)
        applying.apply({("GpuService", target.name): spec}, actor=actor_at(request))

    return do


def _restore(request: HttpRequest, target: Target, _: Values) -> None:
    if target.now["quarantined"]:
        raise Conflict("it is quarantined; lift that first")
    event = warming(target.name, msgspec.convert(target.now, GpuService))
    _tell(request, "restore", target, None, {"action": event.action.id}, event)


def _evict(request: HttpRequest, target: Target, _: Values) -> None:
    _tell(request, "evict", target, None, {}, ServiceEvictionAsked(service=target.name))


def _restoring(target: Target, _: Values) -> str:
    call = {"target": f"service:{target.name}", **target.now.get("warm_up", {"path": "/health"})}
    degrees = [each["gpus"] for each in target.now["degrees"]]
    body = {"task": TASK, "kind": "call", "cost": {"gpu": degrees}, "key": "gpu", "call": call}
    return (
        f"echo {shlex.quote(msgspec.json.encode(body).decode())} | tangram submit --file - --wait"
    )


def _document(kind: str, member: str, value: Any = None) -> Any:
    """Return the line that applies an object with one member changed, all else as it is."""

    def line(target: Target, values: Values) -> str:
        spec = manifests.specs_of(current_config()).get((kind, target.name))
        members = {} if spec is None else manifests.spec_as_data(spec)
        members[member] = values.get(member, members.get(member) if value is None else value)
        document = {"apiVersion": manifests.API_VERSION, "kind": kind,
                    "metadata": {"name": target.name}, "spec": members}  # fmt: skip
        return f"echo {shlex.quote(msgspec.json.encode(document).decode())} | tangram apply -"

    return line


_ADMIN, _OPERATOR, _SUBMITTER = Role.ADMIN, Role.OPERATOR, Role.SUBMITTER
_GOES_ON = "What runs goes on; nothing that waits is granted, nor is what comes."
VERBS: Final = {
    (verb.kind, verb.name): verb
    for verb in (
        Verb(kind="action", name="cancel", title="Cancel", role=_SUBMITTER, effect=_of_action,
             do=_cancel_action, form=forms.Reason,
             line=lambda t, v: said("tangram", "cancel", t.name)),
        Verb(kind="task", name="pause", title="Pause", role=_OPERATOR, undo="resume",
             effect=_of_task(_GOES_ON), line=_task_line("pause"),
             do=lambda r, t, v: _pause_task(r, t, paused=True)),
        Verb(kind="task", name="resume", title="Resume", role=_OPERATOR, undo="pause",
             effect=_of_task("What waits is served again, in its old order."),
             do=lambda r, t, v: _pause_task(r, t, paused=False), line=_task_line("resume")),
        Verb(kind="task", name="priority", title="Change priority", role=_OPERATOR,
             undo="priority", form=forms.Priority, do=_prioritise, line=_task_line("priority"),
             effect=_of_task("What waits moves to another place in its lines; nothing is ended.")),
        Verb(kind="task", name="cancel", title="Cancel all of it", role=_OPERATOR, heavy=True,
             form=forms.Reason, do=_cancel_task, line=_task_line("cancel"),
             effect=_of_task("All of this ends as cancelled. What comes later is accepted.")),
        Verb(kind="node", name="drain", title="Drain", role=_OPERATOR, undo="resume",
             form=forms.Drain, effect=_of_node, do=_drain("drain"),
             line=_drain_line("")),
        Verb(kind="node", name="resume", title="Take back", role=_OPERATOR, undo="drain",
             effect=lambda t, v: Effect(live(node=t.name), "It takes new actions again."),
             do=_undrain, line=lambda t, v: said("tangram", "node", "resume", t.name)),
        Verb(kind="node", name="retire", title="Retire", role=_OPERATOR, heavy=True,
             undo="resume", form=forms.Drain, effect=_of_node, do=_drain("retire"),
             line=_drain_line("retired")),
        Verb(kind="pool", name="pause", title="Pause", role=_ADMIN, undo="resume", heavy=True,
             effect=_of_pool(_GOES_ON), do=_pool(paused=True),
             line=_document("Pool", "paused", value=True)),
        Verb(kind="pool", name="resume", title="Resume", role=_ADMIN, undo="pause",
             effect=_of_pool("What waits is served again."), do=_pool(paused=False),
             line=_document("Pool", "paused", value=False)),
        Verb(kind="pool", name="policy", title="Switch policy", role=_ADMIN, undo="policy",
             form=forms.Policy, do=_pool(), line=_document("Pool", "policy"),
             effect=_of_pool("What runs keeps its units; the next grants are decided anew.")),
        Verb(kind="resource", name="limit", title="Change the limit", role=_ADMIN, undo="limit",
             form=forms.Limit, effect=_of_resource, do=_limit,
             line=_document("Resource", "limit_units")),
        Verb(kind="service", name="quarantine", title="Quarantine", role=_ADMIN, heavy=True,
             undo="release", do=_quarantine(shut=True), line=_document("GpuService", "quarantined", value=True),
             effect=_of_service("Calls that run go on; others wait, and its chunks go to others.")),
        Verb(kind="service", name="restore", title="Restore", role=_OPERATOR, do=_restore,
             line=_restoring,
             effect=_of_service("One call warms it up, waiting for its turn as every call does.")),
        Verb(kind="service", name="evict", title="Evict", role=_OPERATOR, undo="restore", do=_evict,
             line=lambda target, _: said("tangram", "service", "evict", target.name),
             effect=_of_service("It leaves the chunks where it does not work; its next call restores it.")),
        Verb(kind="service", name="release", title="Lift the quarantine", role=_ADMIN,
             undo="quarantine", do=_quarantine(shut=False),
             line=_document("GpuService", "quarantined", value=False),
             effect=_of_service("Calls are made again; the first one restores the service.")),
    )
}  # fmt: skip
