"""Selectors: loads, choices, pins and profiles, and facts of the calls and rollouts that they observe.

Rules
1. A load is decided about when it is known: as a trainer reports it, or as the window of observed facts is closed. The degree is in
   force for every call that is granted from then on, so before the next stage, and never later than one step behind.
2. Running calls keep their units. Calls that wait move to the queue of the new degree at their old place; the GPU manager restores the
   service with the first of them, and evicts what was there.
3. The change is one decision, `SetParallelism`, with its reason. A load that changes nothing has no decision.
4. The stage that began last steers the calls of the service.
"""

from __future__ import annotations

from math import ceil

import msgspec

from domain.action import QUEUED, Action
from domain.decisions import Decision, SetParallelism
from domain.errors import InvalidRequest
from domain.events import ActionFinished
from domain.resources import UnitSet
from domain.rollouts import Rollout, RolloutResult
from domain.selector_events import SelectorObserved, SelectorPinned, SelectorProfiled
from domain.selectors import ParallelismProfile, ProfileIdentity, SelectorStage, StageLoad
from domain.services import service_name
from scheduler.core.residency.narrowing import narrow, narrowed
from scheduler.core.residency.parallelism import (
    ParallelismChoice,
    ParallelismStanding,
    Pin,
    ProfileTable,
    choose,
)
from scheduler.core.residency.selectors import (
    LOADS_KEPT,
    SWITCHES_KEPT,
    LiveSelector,
    LoadRecord,
    SwitchRecord,
)
from scheduler.core.residency.service_turns import times_of
from scheduler.core.state.lifecycle import current_needs, enqueue, leave_queue
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import State

_UNMEASURED = ParallelismProfile(ProfileIdentity("", "", ""))
#: Stands in for a load where a pin is chosen before any was seen.
_NO_LOAD = StageLoad(1.0)

# Events


def observed(state: State, event: SelectorObserved, decisions: list[Decision]) -> None:
    """Decide about the load that a trainer reports."""
    selector = state.residency.memory.selectors.live.get(event.selector)
    if selector is None or event.stage not in selector.spec.stages:
        return
    if event.begins and selector.active is not event.stage:
        selector.active = event.stage
        refresh(state, selector)
    kept = selector.stage(event.stage)
    if event.step is None or (event.step, event.load) != (kept.step, kept.load):
        decide(state, selector, event.stage, event.load, event.step, decisions)


def profiled(state: State, event: SelectorProfiled, decisions: list[Decision]) -> None:
    """Add or replace cells; the next load is decided about with them."""
    selector = state.residency.memory.selectors.live.get(event.selector)
    if selector is not None:
        try:
            selector.put(event.change)
        except InvalidRequest:  # too many cells together: the profile stays as it is
            return


def pinned(state: State, event: SelectorPinned, decisions: list[Decision]) -> None:
    """Bind the degree of all stages, or let it be selected again."""
    selector = state.residency.memory.selectors.live.get(event.selector)
    degree = event.parallelism
    if selector is None or (degree is not None and degree not in selector.spec.degrees):
        return
    selector.pin = None if degree is None else Pin(degree, event.forced)
    repin(state, selector, decisions)


def repin(state: State, selector: LiveSelector, decisions: list[Decision]) -> None:
    """Decide again about the latest load of each stage, as the pin changed."""
    for stage in selector.spec.stages:
        kept = selector.stage(stage)
        if selector.pin is not None or kept.load is not None:
            choice = choice_for(state, selector, stage, kept.load or _NO_LOAD)
            _put_in_force(state, selector, stage, choice, decisions)
        elif kept.standing.current is not None:  # it was there by the pin alone
            kept.standing, kept.choice = ParallelismStanding(), None
            refresh(state, selector)


def decide(
    state: State,
    selector: LiveSelector,
    stage: SelectorStage,
    load: StageLoad,
    step: int | None,
    decisions: list[Decision],
) -> None:
    """Choose the degree of the next stage like this one, and remember the load."""
    choice = choice_for(state, selector, stage, load)
    kept = selector.stage(stage)
    kept.load, kept.step = load, step
    record = LoadRecord(state.now, stage, load, choice.parallelism, choice.code, step)
    selector.loads = [*selector.loads[1 - LOADS_KEPT :], record]
    _put_in_force(state, selector, stage, choice, decisions)


def choice_for(
    state: State, selector: LiveSelector, stage: SelectorStage, load: StageLoad
) -> ParallelismChoice:
    """Return what would be chosen for a load now; changes nothing."""
    table = selector.table(stage) or ProfileTable(_UNMEASURED, stage)
    standing = selector.stage(stage).standing
    restore = restore_seconds(state, selector)
    return choose(selector.spec, table, load, standing, pin=selector.pin, restore_seconds=restore)


def restore_seconds(state: State, selector: LiveSelector) -> float | None:
    """Return the measured seconds of a restore of the service; None: none was measured."""
    name = service_name(selector.spec.target)
    if name is None or name not in state.residency.memory.times:
        return None
    return times_of(state, name).restore_seconds or None


def _put_in_force(
    state: State,
    selector: LiveSelector,
    stage: SelectorStage,
    choice: ParallelismChoice,
    decisions: list[Decision],
) -> None:
    kept = selector.stage(stage)
    kept.standing, kept.choice = choice.standing, choice
    if not choice.switched or choice.parallelism is None:
        return
    profile = selector.profile
    revision = 0 if profile is None else profile.revision
    record = SwitchRecord(state.now, stage, choice, revision)
    selector.switches = [*selector.switches[1 - SWITCHES_KEPT :], record]
    decisions.append(
        SetParallelism(
            selector.name, stage, choice.parallelism, choice.former, choice.code, choice.why,
            choice.gain, choice.switch_seconds, revision,
        )
    )  # fmt: skip
    if stage is selector.active:
        refresh(state, selector)


def refresh(state: State, selector: LiveSelector) -> None:
    """Let calls of the service that wait have the degree that is in force."""
    if state.residency.memory.selectors.steering.get(selector.spec.target) is selector:
        _refresh_calls(state, selector.spec.target)


def refresh_all(state: State) -> None:
    """Let all waiting calls of steered services have the degree in force, where their pools have it now."""
    for target in state.residency.memory.selectors.steering:
        _refresh_calls(state, target)


def _refresh_calls(state: State, target: str) -> None:
    for live in list(state.actions.values()):
        call = live.action.call
        if live.state is not QUEUED or call is None or call.target != target:
            continue
        if not narrow(state, live):
            continue
        waits = live.queue is not None
        if waits:
            leave_queue(state, live)
        live.needs = current_needs(state, live)
        if waits:
            enqueue(state, live, state.trajectory_of(live))
    state.queues.forget_reasons()
    state.dirty = True


# Facts


def arrived(
    state: State, action: Action, pool: str, decisions: list[Decision]
) -> tuple[Action, UnitSet]:
    """Return a new ``action`` as it is queued, and the counts that it asked for if it was narrowed.

    A call that begins another step or batch closes the windows of those before.
    """
    if action.call is None or action.call.target not in state.residency.memory.selectors.observed:
        return action, ()
    _call_arrived(state, action, action.call.target, decisions)
    return narrowed(state, action, pool)


def _call_arrived(state: State, action: Action, target: str, decisions: list[Decision]) -> None:
    batch = "" if action.generation is None else action.generation.batch
    step = "" if action.step is None else f"{action.project}/{action.task}#{action.step}"
    mark = step or (batch and f"{action.project}/{batch}")
    size = 0 if action.generation is None else action.generation.batch_size
    for selector in state.residency.memory.selectors.observed.get(target, ()):
        _step_begins(state, selector, mark, size, action.step, decisions)


def rollout_arrived(state: State, rollout: Rollout, decisions: list[Decision]) -> None:
    """Close the windows of observed rollouts, if this one begins another batch."""
    mark = rollout.batch and f"{rollout.project}/{rollout.batch}"
    for selector in state.residency.memory.selectors.observed.get(rollout.llm, ()):
        _step_begins(state, selector, mark, rollout.batch_size, None, decisions)


def _step_begins(
    state: State,
    selector: LiveSelector,
    mark: str,
    size: int,
    step: int | None,
    decisions: list[Decision],
) -> None:
    window, most = selector.window, selector.spec.responses[-1]
    if not (window.is_new(mark) if mark else len(window.contexts) >= most):
        return
    load = window.close()
    window.expected = size
    if load is not None:
        load = msgspec.structs.replace(load, queue=_waiting(state, selector))
        before = None if step is None else step - 1
        decide(state, selector, selector.observed_stage, load, before, decisions)


def _waiting(state: State, selector: LiveSelector) -> int:
    """Count the calls of all observed targets that wait. Calls of one queue have one target, since they have the same needs."""
    targets = {selector.spec.target, *selector.spec.observes}
    heads = [(queue.size, queue.head()) for queue in state.queues.active.values()]
    calls = [(size, live.action.call) for size, live in heads if live is not None]
    return sum(size for size, call in calls if call is not None and call.target in targets)


def call_ended(state: State, live: LiveAction, event: ActionFinished) -> None:
    """Count the context of a call, as its worker or its answer tells the tokens."""
    call, usage = live.action.call, event.usage
    if call is None or usage is None:
        return
    tokens = max(0, usage.prompt_tokens) + max(0, usage.sampled_tokens)
    response = live.action.trajectory_key or live.id
    for selector in (
        state.residency.memory.selectors.observed.get(call.target, ()) if tokens else ()
    ):
        selector.window.add(response, tokens)


def rollout_ended(state: State, rollout: Rollout, result: RolloutResult) -> None:
    """Count the context of a rollout that samples from backends; the generations of one on a fleet were counted."""
    tokens = ceil(result.prompt_tokens + result.response_tokens)
    for selector in (
        state.residency.memory.selectors.observed.get(rollout.pool, ()) if tokens > 0 else ()
    ):
        selector.window.add(rollout.id, tokens)


# Configuration


def load_selectors(state: State) -> None:
    """Open the selectors of the configuration of a new state."""
    for name, spec in state.config.selectors.items():
        selector = state.residency.memory.selectors.open(name, spec)
        if selector.pin is not None:
            repin(state, selector, [])
    state.residency.memory.selectors.index()


def configure(state: State, decisions: list[Decision]) -> None:
    """Follow the selectors of the configuration in force."""
    selectors, wanted = state.residency.memory.selectors, state.config.selectors
    for name in sorted(selectors.live.keys() - wanted.keys()):
        selectors.close(name)
    for name, spec in wanted.items():
        selector = selectors.live.get(name)
        if selector is None:
            selector = selectors.open(name, spec)
            pins = selector.pin is not None
        elif selector.spec == spec:
            continue
        else:
            pins = selector.spec.pin != spec.pin
            selector.follow(spec, declared_pin=pins)
        if pins:
            repin(state, selector, decisions)
    before = set(selectors.steering)
    selectors.index()
    for target in sorted(before | selectors.steering.keys()):
        _refresh_calls(state, target)
