"""Answers to queries of selectors: what is in force and why, profiles, loads and switches, and choices for a load."""

from __future__ import annotations

from contract.responses import rfc3339
from contract.selector_status import (
    IMPOSSIBLE,
    NO_PROFILE,
    NO_STAGE,
    DecisionView,
    LoadView,
    ProfileSummary,
    SelectorsStatus,
    SelectorStageView,
    SelectorView,
    SwitchView,
)
from domain.errors import InvalidRequest
from domain.selector_events import SelectorsQueried
from domain.selectors import ParallelismProfile, SelectorStage
from scheduler.core.residency.parallelism import (
    NONE_SURVIVES,
    UNMEASURED,
    ParallelismChoice,
    Pin,
    check_pin,
)
from scheduler.core.residency.selector_handlers import choice_for
from scheduler.core.residency.selectors import LiveSelector, LoadRecord, SwitchRecord
from scheduler.core.state.model import State


def selectors_status(state: State, query: SelectorsQueried, wall_offset: float) -> SelectorsStatus:
    """Return what ``query`` selects, by name."""
    live = state.residency.memory.selectors.live
    names = [query.selector] if query.selector else sorted(live)
    known = [live[name] for name in names if name in live]
    found = SelectorsStatus([_selector(each, query.history, wall_offset) for each in known])
    if not query.selector or not known:
        return found
    (selector,) = known
    if query.cells:
        found.profile = selector.profile
    if query.load is not None:
        _decide(state, selector, query, found)
    if query.pin is not None:
        _judge(selector, query, found)
    return found


def _decide(
    state: State, selector: LiveSelector, query: SelectorsQueried, found: SelectorsStatus
) -> None:
    load, stage = query.load, query.stage
    assert load is not None  # the caller has looked
    limit = selector.spec.context_limit
    if stage not in selector.spec.stages:
        known = ", ".join(selector.spec.stages)
        found.problem, found.detail = NO_STAGE, f"it decides about {known}, not about {stage}"
    elif limit is not None and load.context > limit:
        found.problem = IMPOSSIBLE
        found.detail = f"no response has {load.context:,.0f} tokens: the limit is {limit:,}"
    else:
        kept = selector.stage(stage)
        choice = kept.choice if query.observed and kept.load == load else None
        choice = choice or choice_for(state, selector, stage, load)
        _answer(selector, stage, choice, found)


def _answer(
    selector: LiveSelector,
    stage: SelectorStage,
    choice: ParallelismChoice,
    found: SelectorsStatus,
) -> None:
    degree, profile = choice.parallelism, selector.profile
    if choice.code == UNMEASURED:
        found.problem = NO_PROFILE
        found.detail = f"{choice.why}: measure it, or PUT its profile"
    elif choice.code == NONE_SURVIVES or degree is None:
        stays = f"; {degree} stays" if degree is not None else ""
        found.problem, found.detail = IMPOSSIBLE, f"{choice.why}{stays}"
    else:
        found.decision = DecisionView(
            degree.tp, degree.pp, degree.dp, stage, choice.switched, choice.code, choice.why, choice.gain,
            choice.gain_seconds, choice.switch_seconds, choice.reach,
            0 if profile is None else profile.revision,
        )  # fmt: skip


def _judge(selector: LiveSelector, query: SelectorsQueried, found: SelectorsStatus) -> None:
    """Say why the pin of ``query`` would be refused, if so."""
    assert query.pin is not None  # the caller has looked
    for stage in selector.spec.stages:
        kept = selector.stage(stage)
        pin = Pin(query.pin, query.forced)
        try:
            check_pin(selector.spec, selector.table(stage), kept.load, kept.standing.longest, pin)
        except InvalidRequest as error:
            found.problem, found.detail = error.code, str(error)
            return


def _selector(selector: LiveSelector, history: bool, offset: float) -> SelectorView:
    spec, pin, profile = selector.spec, selector.pin, selector.profile
    return SelectorView(
        selector.name,
        spec.target,
        spec.degrees,
        spec.contexts,
        spec.responses,
        spec.context_limit,
        spec.growth,
        spec.hysteresis,
        [_stage(selector, each) for each in spec.stages],
        selector.active,
        None if pin is None else pin.parallelism,
        pin is not None and pin.forced,
        None if profile is None else _summary(profile),
        [_summary(each) for each in selector.profiles],
        [_load(each, offset) for each in selector.loads] if history else [],
        [_switch(each, offset) for each in selector.switches] if history else [],
    )


def _stage(selector: LiveSelector, stage: SelectorStage) -> SelectorStageView:
    kept = selector.stage(stage)
    choice = kept.choice
    return SelectorStageView(
        stage,
        kept.standing.current,
        "" if choice is None else choice.code,
        "nothing was observed yet" if choice is None else choice.why,
        kept.load,
        kept.step,
        kept.standing.longest,
        0.0 if choice is None else choice.reach,
        kept.standing.lost_seconds,
    )


def _summary(profile: ParallelismProfile) -> ProfileSummary:
    failed = sum(cell.oom for cell in profile.cells)
    return ProfileSummary(
        profile.identity, profile.source, profile.revision, len(profile.cells), failed
    )


def _load(record: LoadRecord, offset: float) -> LoadView:
    at = rfc3339(record.at + offset)
    return LoadView(at, record.stage, record.load, record.parallelism, record.code, record.step)


def _switch(record: SwitchRecord, offset: float) -> SwitchView:
    choice = record.choice
    assert choice.parallelism is not None  # else it was no switch
    return SwitchView(
        rfc3339(record.at + offset), record.stage, choice.former, choice.parallelism, choice.code,
        choice.why, choice.gain, choice.switch_seconds, record.revision,
    )  # fmt: skip
