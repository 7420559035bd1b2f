"""Verbs on nodes, and on the number of a pool's nodes in service.

A pool has the resources of its nodes. To shrink it, nodes are drained, those with the fewest open
trajectories first; to grow it, nodes that a resize drained are resumed. Nodes that were drained for
another reason stay drained.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from django.db import transaction
from django.http import HttpRequest

from domain.errors import Conflict
from domain.events import ActionCancelRequested, TrajectoryFinished
from domain.ids import ActionId
from tangram_web.accounts.models import Role
from tangram_web.audit.services import actor_at, record
from tangram_web.lib.scheduler_client import send_commands
from tangram_web.operations import forms
from tangram_web.operations.live_counts import live, live_rows, open_trajectories, started
from tangram_web.operations.verb import Effect, Target, Values, Verb, shell_line
from tangram_web.pools import applying, services
from tangram_web.pools.manifests import NodeSpec
from tangram_web.pools.models import NodeDrain
from tangram_web.pools.services import node_forget
from tangram_web.records.models import NodeAvailability, NodeRecord, TrajectoryRecord

#: Reason of a drain that a resize made. It is stored: do not change it.
RESIZED: Final = "the pool was made smaller"


def _of_node(target: Target, values: Values) -> Effect:
    counts = {**live(node=target.name), "open trajectories": open_trajectories(node=target.name)}
    running = values.get("running")
    if running == "finishes":
        # A drain without it is not replaced by one with it: what an operator stops stays stopped.
        stopped = target.now["drained"] and not target.now["finishing"]
        says = "It takes no new trajectories. Open ones continue there until they end; then it is empty."
        return Effect(counts, says, "it is drained already, and its trajectories wait: resume it first" if stopped else "")  # fmt: skip
    ends = running == "ends"
    says = "It takes no new actions. Running actions " + (
        "are cancelled now." if ends else "continue."
    )
    bound = counts["open trajectories"]
    warning = "" if ends or not bound else (
        f"{bound} open trajectories have their environment there: their next actions wait until "
        "the node is resumed or declared dead"
    )  # fmt: skip
    return Effect(counts, says, warning)


def _drain(verb: str) -> Any:
    def do(request: HttpRequest, target: Target, values: Values) -> None:
        events: list[Any] = []
        if values.get("running") == "ends":
            events = _ends_on(target.name, f"node {target.name}: {verb}")
        with transaction.atomic():
            reason = values["reason"] or ("retired" if verb == "retire" else "")
            services.node_drain(
                actor=actor_at(request), node=target.name, reason=reason,
                finishing=values.get("running") == "finishes",
            )  # fmt: skip
            if verb == "retire" or events:
                after = {"drained": True, "reason": reason, "ended": len(events)}
                record(request, verb, f"node/{target.name}", {"state": target.now["state"]}, after)
            send_commands(*events)

    return do


def _drain_line(otherwise: str) -> Any:
    def line(target: Target, values: Values) -> str:
        reason = values.get("reason") or otherwise
        because = ["--reason", reason] if reason else []
        if values.get("running") == "finishes":
            because.append("--finish-trajectories")
        drain = shell_line("tangram", "node", "drain", target.name, *because)
        # In a shell, running actions are cancelled one by one.
        more = "  # running actions continue: cancel each with `tangram cancel`"
        return drain + more if values.get("running") == "ends" else drain

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


def _of_lost(target: Target, _: Values) -> Effect:
    counts = {**live(node=target.name), "open trajectories": open_trajectories(node=target.name)}
    says = (
        "The node and its drain are removed from pages, metrics and capacity. If it returns under "
        "this name, it cleans up and joins as a new node."
    )
    if target.now["state"] != NodeAvailability.LOST:
        return Effect(
            counts, says, "it sends heartbeats and cannot be forgotten: stop its worker first"
        )
    busy = started(counts) or counts["open trajectories"]
    return Effect(
        counts, says, "it cannot be forgotten before all of these have ended" if busy else ""
    )


def _forget(request: HttpRequest, target: Target, _: Values) -> None:
    before = {name: target.now[name] for name in ("state", "pool", "drained", "reason")}
    node_forget(actor=actor_at(request), node=target.name, before=before)


class SizePlan(NamedTuple):
    """The nodes to drain and to resume for a wished size."""

    drain: list[str]
    resume: list[str]
    #: Nodes in service before, and nodes that the wished size lacks.
    serving: int
    missing: int


def plan_of(target: Target, values: Values) -> SizePlan:
    """Return the plan for the wished size; an empty one for the present size."""
    drained = dict(NodeDrain.objects.values_list("node", "reason"))
    there = list(
        NodeRecord.objects.filter(pool=target.name)
        .exclude(state="lost")
        .order_by("name")
        .values_list("name", flat=True)
    )
    serving = [name for name in there if name not in drained]
    spare = [name for name in there if drained.get(name) == RESIZED]
    wished = values.get("nodes")
    more = 0 if wished is None else wished - len(serving)
    if more < 0:
        lightest = sorted(serving, key=_burden)
        return SizePlan(lightest[:-more], [], len(serving), 0)
    return SizePlan([], spare[:more], len(serving), max(0, more - len(spare)))


def _burden(node: str) -> tuple[int, int]:
    return open_trajectories(node=node), sum(live(node=node).values())


def _of_size(target: Target, values: Values) -> Effect:
    plan = plan_of(target, values)
    counts = {"nodes in service": plan.serving}
    if plan.drain:
        counts |= {"drained": len(plan.drain),
                   "running there": sum(started(live(node=name)) for name in plan.drain),
                   "open trajectories there": sum(open_trajectories(node=n) for n in plan.drain)}  # fmt: skip
        says = f"{', '.join(plan.drain)}: take no new actions; running actions continue."
        none_left = "no node remains: all actions of this pool wait"
        return Effect(counts, says, none_left if len(plan.drain) == plan.serving else "")
    if plan.missing:
        return Effect(counts, "Nothing is changed.", _too_many(plan))
    if plan.resume:
        counts["resumed"] = len(plan.resume)
        return Effect(counts, f"{', '.join(plan.resume)}: take actions again.")
    return Effect(
        counts,
        "Fewer: nodes with the fewest open trajectories are drained. More: these are resumed.",
    )


def _too_many(plan: SizePlan) -> str:
    most = plan.serving + len(plan.resume)
    return f"at most {most}: start a worker on another node, or resume a drained one"


def _resize(request: HttpRequest, target: Target, values: Values) -> None:
    plan = plan_of(target, values)
    if plan.missing:
        raise Conflict(_too_many(plan))
    wanted = {("Node", name): NodeSpec(drained=True, reason=RESIZED) for name in plan.drain}
    wanted |= {("Node", name): NodeSpec() for name in plan.resume}
    applying.apply(
        wanted,
        actor=actor_at(request),
        note=applying.AuditNote(
            "resize", f"pool/{target.name}", {"nodes": plan.serving}, {"nodes": values["nodes"]}
        ),
    )


def _size_line(target: Target, values: Values) -> str:
    plan = plan_of(target, values)
    drains = [shell_line("tangram", "node", "drain", n, "--reason", RESIZED) for n in plan.drain]
    backs = [shell_line("tangram", "node", "resume", name) for name in plan.resume]
    return (
        " && ".join(drains + backs) or f"tangram node drain NODE  # {plan.serving} in service now"
    )


ON_NODES: Final = (
    Verb(kind="node", name="drain", title="Drain", role=Role.OPERATOR, undo="resume",
         form=forms.DrainForm, effect=_of_node, do=_drain("drain"), line=_drain_line("")),
    Verb(kind="node", name="resume", title="Resume", role=Role.OPERATOR, undo="drain",
         effect=lambda t, v: Effect(live(node=t.name), "It takes new actions again."),
         do=_undrain, line=lambda t, v: shell_line("tangram", "node", "resume", t.name)),
    Verb(kind="node", name="retire", title="Retire", role=Role.OPERATOR, heavy=True,
         undo="resume", form=forms.DrainForm, effect=_of_node, do=_drain("retire"),
         line=_drain_line("retired")),
    Verb(kind="node", name="forget", title="Forget", role=Role.OPERATOR, heavy=True,
         effect=_of_lost, do=_forget,
         line=lambda t, v: shell_line("tangram", "node", "forget", t.name)),
    Verb(kind="pool", name="resize", title="Resize", role=Role.ADMIN, heavy=True, undo="resize",
         form=forms.SizeForm, effect=_of_size, do=_resize, line=_size_line),
)  # fmt: skip
