"""Selectors as the scheduler loop answers queries about them, and as the API shows them.

Contexts are tokens, times are RFC 3339, ``gain`` is the speed over that of the former degree, less 1.
"""

from __future__ import annotations

import msgspec

from domain.selectors import (
    Parallelism,
    ParallelismProfile,
    ProfileIdentity,
    SelectorStage,
    StageLoad,
)

#: Why there is no decision: nothing is measured (409), or no degree survives and the last choice stays (422).
NO_PROFILE, IMPOSSIBLE, NO_STAGE = "no_profile", "impossible", "no_stage"


class DecisionView(msgspec.Struct):
    """The degree of the next stage."""

    tp: int
    pp: int
    dp: int
    stage: SelectorStage
    #: Another degree than before is in force.
    switched: bool
    code: str
    why: str
    gain: float
    gain_seconds: float
    switch_cost_seconds: float
    #: Longest context that the next step may reach.
    reach: float
    #: Of the profile; 0: there is none, it is pinned.
    revision: int


class SelectorStageView(msgspec.Struct):
    """What is in force for a stage."""

    stage: SelectorStage
    #: Null: nothing was chosen yet.
    parallelism: Parallelism | None
    #: Why, and the latest load that was decided about.
    code: str
    why: str
    load: StageLoad | None
    step: int | None
    #: Longest context so far, and the longest one that the next step may reach.
    longest: float
    reach: float
    #: Seconds that staying has lost since a faster degree was found.
    lost_seconds: float


class LoadView(msgspec.Struct):
    """A load that was decided about."""

    at: str
    stage: SelectorStage
    load: StageLoad
    parallelism: Parallelism | None
    code: str
    step: int | None


class SwitchView(msgspec.Struct):
    """A change of the degree."""

    at: str
    stage: SelectorStage
    #: Null: it was the first one.
    former: Parallelism | None
    parallelism: Parallelism
    code: str
    why: str
    gain: float
    switch_cost_seconds: float
    revision: int


class ProfileSummary(msgspec.Struct):
    """A profile without its cells."""

    identity: ProfileIdentity
    source: str
    revision: int
    #: Cells that were measured, and those of them that ran out of memory.
    cells: int
    out_of_memory: int


class SelectorView(msgspec.Struct):
    """A selector as it is now."""

    name: str
    #: ``service:NAME``; empty: an outside trainer asks.
    target: str
    degrees: tuple[Parallelism, ...]
    contexts: tuple[int, ...]
    responses: tuple[int, ...]
    context_limit: int | None
    growth: float
    hysteresis: float
    stages: list[SelectorStageView]
    #: Stage whose degree calls of the service get.
    active: SelectorStage
    pin: Parallelism | None
    #: The pin holds although it would run out of memory.
    forced: bool
    #: The profile in use, and all that are kept, the latest last.
    profile: ProfileSummary | None
    profiles: list[ProfileSummary]
    #: Latest last; empty where the query does not ask for them.
    loads: list[LoadView] = []
    switches: list[SwitchView] = []


class SelectorList(msgspec.Struct):
    """Selectors by name."""

    selectors: list[SelectorView]


class SelectorsStatus(msgspec.Struct, omit_defaults=True):
    """Answer of the loop."""

    selectors: list[SelectorView] = []
    #: Where one selector and its cells are asked for; None: there is no profile.
    profile: ParallelismProfile | None = None
    decision: DecisionView | None = None
    #: `NO_PROFILE`, `IMPOSSIBLE` or `NO_STAGE`, or why a pin would be refused.
    problem: str = ""
    detail: str = ""
