"""Simulated effects of verbs on queue and ACT: what each verb changes for a simulation, and why some change nothing.

`PROPOSALS` and `NOT_SIMULATED` together name every verb. A proposal is what the verb would do, in terms of the
simulator: a changed configuration, events at the begin of the window, or actions that it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from domain.errors import Conflict, InvalidRequest, Unavailable
from domain.events import Event, TaskPaused, TaskPrioritised
from domain.inventory import Config
from tangram_web.audit.services import Actor
from tangram_web.operations.shell_lines import document_of
from tangram_web.operations.verb import Target, Values
from tangram_web.operations.verbs.limits import changed_pool_shares, changed_quotas, changed_shares
from tangram_web.operations.verbs.nodes import plan_of
from tangram_web.pools import applying, manifests
from tangram_web.pools.manifests import NodeSpec, Wanted
from tangram_web.pools.secrets import sealed
from tangram_web.pools.selectors import current_config
from tangram_web.records.models import ActionRecord, TaskRecord
from tangram_web.simulations.effects import MOST_SECONDS, PlayedEffect, TookTooLong, play_effect

#: A mean that differs by less is no difference: it is shown in tenths of a millisecond at most.
SAME_SECONDS: Final = 0.0005
#: Waits below it are the time of a pass, not a queue.
WAITED_SECONDS: Final = 0.05
#: Latest actions among which the pool that uses a resource is found.
_LATEST: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What a verb would change."""

    pool: str
    wanted: Wanted = field(default_factory=dict)
    #: The changed document, where it is one.
    text: str = ""
    #: It is about a pause of the pool.
    pauses: bool = False
    #: Events of what is so already, and of the verb.
    now: tuple[Event, ...] = ()
    then: tuple[Event, ...] = ()
    without_task: str = ""
    without_actions: frozenset[str] = frozenset()


@dataclass(frozen=True)
class EffectView:
    """A simulated effect, or the reason why there is none."""

    reason: str = ""
    pool: str = ""
    played: PlayedEffect | None = None
    #: One sentence: what the verb would have changed.
    finding: str = ""
    #: Document and project of a what-if of the same change, whose result is kept.
    text: str = ""
    project: str = ""


Changed = Callable[[Target, Values], dict[str, Any]]
Propose = Callable[[Target, Values], Proposal]


def effect_of(kind: str, name: str, target: Target, values: Values, actor: Actor) -> EffectView:
    """Simulate a verb, within `MOST_SECONDS`; ``actor`` is named in the trial of the configuration."""
    began = monotonic()
    if (kind, name) in NOT_SIMULATED:
        return EffectView(NOT_SIMULATED[kind, name])
    try:
        config = current_config()
        proposal = PROPOSALS[kind, name](target, values)
        then = applying.trial(proposal.wanted, actor=actor) if proposal.wanted else config
        if _changes_nothing(config, then, proposal):
            return EffectView("These are the present values: nothing would change.")
        played = play_effect(
            proposal.pool, config, then, pauses=proposal.pauses, began=began,
            events_now=list(proposal.now), events_then=[*proposal.now, *proposal.then],
            without_task=proposal.without_task, without_actions=proposal.without_actions,
        )  # fmt: skip
    except TookTooLong:
        return EffectView(f"The simulation took longer than {MOST_SECONDS:g} s.")
    except (InvalidRequest, Conflict, Unavailable) as error:
        return EffectView(f"{str(error)[:1].upper()}{str(error)[1:]}.")
    text = "" if proposal.pauses else proposal.text
    projects = [
        each.name for each in config.projects.values() if each.default_pool == proposal.pool
    ]
    return EffectView(
        "", proposal.pool, played, finding_of(played), text, min(projects, default="")
    )


def _changes_nothing(now: Config, then: Config, proposal: Proposal) -> bool:
    ends = proposal.without_task or proposal.without_actions
    return not (proposal.then or ends) and (manifests.specs_of(now) == manifests.specs_of(then))


def finding_of(played: PlayedEffect) -> str:
    """Return one sentence on the difference between both runs."""
    result = played.result
    now, then, minutes = result.now, result.then, _length(played.window_seconds)
    if then.never > now.never:
        held = then.never - now.never
        return f"{held:,} of {result.actions:,} actions of {minutes} would still wait for its end."
    if now.never > then.never:
        freed = now.never - then.never
        return f"{freed:,} of {result.actions:,} actions of {minutes} would not wait for its end."
    less = now.act_mean - then.act_mean
    if abs(less) < SAME_SECONDS:
        if result.longest_queue < WAITED_SECONDS:
            return f"Nothing waited in {minutes}, and nothing would have."
        return f"No action of {minutes} would have ended sooner or later."
    share = 100 * abs(less) / now.act_mean if now.act_mean else 0.0
    way = "sooner" if less > 0 else "later"
    return f"Actions of {minutes} would have been complete {share:.0f} % {way} on the mean."


def _length(seconds: int) -> str:
    return f"the last {seconds // 60} minutes" if seconds >= 120 else f"the last {seconds} s"


def _documented(
    kind: str, target: Target, values: Values, changed: Changed, **given: Any
) -> Proposal:
    """Return the proposal of a changed document."""
    text = document_of(kind, target.name, changed(target, values))
    wanted = sealed(manifests.parse(text), current_config(), from_outside=True)
    return Proposal(wanted=wanted, text=text, **given)


def _on_pool(changed: Changed, *, pauses: bool = False) -> Propose:
    return lambda target, values: _documented(
        "Pool", target, values, changed, pool=target.name, pauses=pauses
    )


def _resize(target: Target, values: Values) -> Proposal:
    plan = plan_of(target, values)
    wanted: Wanted = {("Node", name): NodeSpec(drained=True) for name in plan.drain}
    return Proposal(
        pool=target.name, wanted=wanted | {("Node", n): NodeSpec() for n in plan.resume}
    )


def _on_resource(changed: Changed) -> Propose:
    return lambda target, values: _documented(
        "Resource", target, values, changed, pool=pool_that_uses(target.name)
    )


def pool_that_uses(resource: str) -> str:
    """Return the pool most of whose latest actions use a resource. Raises InvalidRequest without one."""
    pools = {name: each.default_pool for name, each in current_config().projects.items()}
    counts: dict[str, int] = {}
    rows = ActionRecord.objects.order_by("-id").values_list("project", "pool", "cost")[:_LATEST]
    for project, pool, cost in rows:
        if resource in cost and (found := pool or pools.get(project, "")):
            counts[found] = counts.get(found, 0) + 1
    if not counts:
        raise InvalidRequest(f"none of the latest actions uses {resource}")
    return max(counts, key=lambda name: counts[name])


def _on_node(*, drained: bool) -> Propose:
    return lambda target, _: Proposal(
        pool=target.now["pool"], wanted={("Node", target.name): NodeSpec(drained=drained)}
    )


def _pool_of_task(target: Target) -> str:
    return _pool_of_tasks([target.name])


def _pool_of_tasks(keys: Iterable[str]) -> str:
    """Return the pool of most of some tasks."""
    named = dict(TaskRecord.objects.filter(pk__in=keys).values_list("pk", "pool"))
    projects = current_config().projects
    counts = Counter(named.get(key) or projects[key.partition("/")[0]].default_pool for key in keys)
    return counts.most_common(1)[0][0]


def _on_task(changed: Callable[[Values], Values]) -> Propose:
    """Return the proposal of a verb that sets ``paused`` or ``priority`` of a task."""

    def propose(target: Target, values: Values) -> Proposal:
        plain: Values = {"paused": False, "priority": None}
        is_so = {name: target.now[name] for name in plain}
        return Proposal(
            pool=_pool_of_task(target),
            now=_steered(target.name, plain, is_so),
            then=_steered(target.name, is_so, {**is_so, **changed(values)}),
        )

    return propose


def _prioritise_tasks(target: Target, values: Values) -> Proposal:
    plain: Values = {"paused": False, "priority": None}
    now: list[Event] = []
    then: list[Event] = []
    for key, is_so in target.now["steered"].items():
        now += _steered(key, plain, is_so)
        then += _steered(key, is_so, {**is_so, "priority": values.get("priority")})
    pool = _pool_of_tasks(list(target.now["steered"]))
    return Proposal(pool=pool, now=tuple(now), then=tuple(then))


def _steered(key: str, before: Values, after: Values) -> tuple[Event, ...]:
    """Return the events that lead from one state of a task to another."""
    project, _, task = key.partition("/")
    found: list[Event] = []
    if before["paused"] != after["paused"]:
        found.append(TaskPaused(project=project, task=task, paused=after["paused"]))
    if before["priority"] != after["priority"]:
        found.append(TaskPrioritised(project=project, task=task, priority=after["priority"]))
    return tuple(found)


def _cancel_task(target: Target, _: Values) -> Proposal:
    return Proposal(pool=_pool_of_task(target), without_task=target.name)


def _cancel_action(target: Target, _: Values) -> Proposal:
    return _without({target.name})


def _cancel_actions(target: Target, _: Values) -> Proposal:
    return _without({each for ids in target.now["projects"].values() for each in ids})


def _without(actions: set[str]) -> Proposal:
    """Return the end of some actions, in the pool of most of them."""
    pools = {name: each.default_pool for name, each in current_config().projects.items()}
    rows = ActionRecord.objects.filter(pk__in=actions).values_list("pool", "project")
    counts = Counter(pool or pools.get(project, "") for pool, project in rows)
    return Proposal(pool=counts.most_common(1)[0][0], without_actions=frozenset(actions))


def _policy(_: Target, values: Values) -> dict[str, Any]:
    return {"policy": values["policy"]} if "policy" in values else {}


def _limit(_: Target, values: Values) -> dict[str, Any]:
    return {"limit_units": values["limit_units"]} if "limit_units" in values else {}


#: Verb → what it would change.
PROPOSALS: Final[Mapping[tuple[str, str], Propose]] = {
    ("pool", "pause"): _on_pool(lambda t, v: {"paused": True}, pauses=True),
    ("pool", "resume"): _on_pool(lambda t, v: {"paused": False}, pauses=True),
    ("pool", "policy"): _on_pool(_policy),
    ("pool", "share"): _on_pool(changed_pool_shares),
    ("pool", "resize"): _resize,
    ("resource", "limit"): _on_resource(_limit),
    ("resource", "quota"): _on_resource(changed_quotas),
    ("resource", "share"): _on_resource(changed_shares),
    ("node", "drain"): _on_node(drained=True),
    ("node", "retire"): _on_node(drained=True),
    ("node", "resume"): _on_node(drained=False),
    ("task", "pause"): _on_task(lambda _: {"paused": True}),
    ("task", "resume"): _on_task(lambda _: {"paused": False}),
    ("task", "priority"): _on_task(lambda v: {"priority": v["priority"]} if v else {}),
    ("tasks", "priority"): _prioritise_tasks,
    ("task", "cancel"): _cancel_task,
    ("action", "cancel"): _cancel_action,
    ("actions", "cancel"): _cancel_actions,
}

_ROLLOUT: Final = (
    "A recorded window has the actions of rollouts, not their leases: this is not simulated."
)
_FLEET: Final = "A recorded window has no prompts: fleets are simulated by `tangram sim` only."
_BACKEND: Final = (
    "Calls to backends of language models are no actions: this changes no queue of the scheduler."
)
_SERVICE: Final = (
    "Calls of a recorded window take as long as they were measured: this is not simulated."
)

#: Verb → why its effect is not simulated.
NOT_SIMULATED: Final[Mapping[tuple[str, str], str]] = {
    **dict.fromkeys([("rollout", "cancel"), ("rollout", "park"), ("rollout", "resume")], _ROLLOUT),
    **dict.fromkeys([("backend", "drain"), ("backend", "resume"), ("backend", "remove"),
                     ("backends", "add"), ("backends", "clear")], _BACKEND),
    **dict.fromkeys([("worker", "drain"), ("worker", "undrain"), ("trajectory", "pin"),
                     ("trajectory", "unpin")], _FLEET),
    **dict.fromkeys([("selector", "pin"), ("selector", "unpin")],
                    "Calls of a recorded window are replayed on the degrees that they had: this is not simulated."),
    **dict.fromkeys([("service", "quarantine"), ("service", "release"), ("service", "evict"),
                     ("service", "restore")], _SERVICE),
    ("node", "forget"): "This changes no scheduling: the node is lost and takes no actions.",
}  # fmt: skip
