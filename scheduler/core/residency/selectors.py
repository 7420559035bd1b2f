"""Live selectors: profiles, loads, choices and pins, and the narrowing of the calls that they steer.

Rules
1. A call of a service that a selector steers may have the selected count of GPUs alone, from its acceptance until its grant. If
   the call does not name that count, or no node of its pool has a chunk of it, the call keeps the counts that it asked for.
2. What is granted keeps its units. What waits when the degree changes gets the new one; what is requeued gets the one of then.
3. Facts of observed calls fill a *window*. It is closed, and so becomes a load, when a call or a rollout of another step or
   batch arrives; without steps and batches, when it has as many responses as the largest measured number.
4. Profiles are kept encoded, so that a snapshot copies them. Those of a selector that is deleted are kept for its next declaration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Final

import msgspec

from domain.resources import MILLI
from domain.selectors import (
    MOST_PROFILES,
    Parallelism,
    ParallelismProfile,
    SelectorSpec,
    SelectorStage,
    StageLoad,
    profile_of,
    with_change,
)
from scheduler.core.residency.parallelism import (
    ParallelismChoice,
    ParallelismStanding,
    Pin,
    ProfileTable,
)

#: Loads and switches that are kept for pages.
LOADS_KEPT: Final = 400
SWITCHES_KEPT: Final = 100
#: Responses of one window, and steps or batches that are known to have begun.
_MOST_CONTEXTS: Final = 65_536
_STEPS_KEPT: Final = 64
#: Selectors whose profiles are kept after their deletion.
_DELETED_KEPT: Final = 16
_profiles = msgspec.msgpack.Decoder(ParallelismProfile)
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class LoadRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A load as it was decided about; journal time in seconds."""

    at: float
    stage: SelectorStage
    load: StageLoad
    parallelism: Parallelism | None = None
    code: str = ""
    step: int | None = None


class SwitchRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of the degree."""

    at: float
    stage: SelectorStage
    choice: ParallelismChoice
    #: Of the profile.
    revision: int = 0


class StageStanding(msgspec.Struct, omit_defaults=True):
    """What is in force for one stage."""

    standing: ParallelismStanding = ParallelismStanding()
    load: StageLoad | None = None
    choice: ParallelismChoice | None = None
    step: int | None = None


class ContextWindow(msgspec.Struct, omit_defaults=True):
    """Contexts of the responses of one step, as far as they are known."""

    #: Response (a trajectory, else an action) → tokens of its longest generation.
    contexts: dict[str, int] = {}
    #: Responses that the step is said to have; 0: not known.
    expected: int = 0
    #: Steps and batches that have begun, the latest last.
    begun: list[str] = []

    def add(self, response: str, tokens: int) -> None:
        """Count a generation."""
        if response in self.contexts or len(self.contexts) < _MOST_CONTEXTS:
            self.contexts[response] = max(tokens, self.contexts.get(response, 0))

    def is_new(self, step: str) -> bool:
        """Return whether ``step`` begins now, and remember it."""
        if step in self.begun:
            return False
        self.begun = [*self.begun[1 - _STEPS_KEPT :], step]
        return True

    def close(self) -> StageLoad | None:
        """Return the load of the step and begin the next one; None: nothing is known of it."""
        found = sorted(self.contexts.values())
        count, self.contexts, self.expected = max(len(found), self.expected), {}, 0
        if not found:
            return None
        high = found[ceil(0.95 * len(found)) - 1]
        total = sum(found)
        return StageLoad(
            total / len(found), float(high), float(found[-1]), count, tokens=float(total)
        )


class StoredSelector(msgspec.Struct, omit_defaults=True):
    """A selector in a snapshot."""

    name: str
    profiles: list[bytes] = []
    stages: dict[SelectorStage, StageStanding] = {}
    active: SelectorStage | None = None
    pin: Pin | None = None
    window: ContextWindow = msgspec.field(default_factory=ContextWindow)
    loads: list[LoadRecord] = []
    switches: list[SwitchRecord] = []
    #: False: it is not declared any more.
    declared: bool = True


_decode = msgspec.msgpack.Decoder(list[StoredSelector]).decode


@dataclass(slots=True)
class LiveSelector:
    """A declared selector."""

    name: str
    spec: SelectorSpec
    #: In the order of their last changes.
    profiles: list[ParallelismProfile] = field(default_factory=list)
    stages: dict[SelectorStage, StageStanding] = field(default_factory=dict)
    #: Stage that began last, whose degree calls of the service get.
    active: SelectorStage = SelectorStage.ROLLOUT
    pin: Pin | None = None
    window: ContextWindow = field(default_factory=ContextWindow)
    loads: list[LoadRecord] = field(default_factory=list)
    switches: list[SwitchRecord] = field(default_factory=list)
    #: Encoded profiles, by identity.
    _stored: dict[object, bytes] = field(default_factory=dict)
    #: Of the profile in use, made when they are needed.
    _tables: dict[SelectorStage, ProfileTable] = field(default_factory=dict)

    @property
    def profile(self) -> ParallelismProfile | None:
        """The profile in use."""
        return profile_of(self.spec, self.profiles)

    @property
    def observed_stage(self) -> SelectorStage:
        """Stage that the contexts of generations and rollouts belong to."""
        rollout = SelectorStage.ROLLOUT
        return rollout if rollout in self.spec.stages else self.spec.stages[0]

    def table(self, stage: SelectorStage) -> ProfileTable | None:
        """Return the measured cells of a stage; None: none ran."""
        found = self._tables.get(stage)
        if found is None and (profile := self.profile) is not None:
            found = self._tables[stage] = ProfileTable(profile, stage)
        return found or None

    def stage(self, stage: SelectorStage) -> StageStanding:
        """Return what is in force for a stage."""
        return self.stages.setdefault(stage, StageStanding())

    def put(self, change: ParallelismProfile) -> None:
        """Add or replace cells. Raises InvalidRequest for too many."""
        same = [each for each in self.profiles if each.identity == change.identity]
        following = with_change(same[0] if same else None, change)
        others = [each for each in self.profiles if each.identity != change.identity]
        self.profiles = [*others, following][-MOST_PROFILES:]
        self._stored = {
            each.identity: self._stored.get(each.identity, b"") for each in self.profiles
        }
        self._stored[change.identity] = _encode(following)
        self._tables.clear()

    def follow(self, spec: SelectorSpec, declared_pin: bool) -> None:
        """Take over a declaration; degrees and stages that it has not any more are forgotten."""
        self.spec = spec
        self._tables.clear()
        if declared_pin:
            self.pin = None if spec.pin is None else Pin(spec.pin)
        if self.pin is not None and self.pin.parallelism not in spec.degrees:
            self.pin = None
        self.stages = {stage: kept for stage, kept in self.stages.items() if stage in spec.stages}
        for kept in self.stages.values():
            if kept.standing.current not in spec.degrees:
                kept.standing = ParallelismStanding(longest=kept.standing.longest)
                kept.choice = None
        if self.active not in spec.stages:
            self.active = spec.stages[0]

    def units(self) -> int | None:
        """Return the milli-units of ``gpu`` that calls of the service get; None: as they ask."""
        degree = self.stage(self.active).standing.current
        return None if degree is None else degree.instance_gpus * MILLI

    def remember(self) -> StoredSelector:
        """Return what a snapshot needs."""
        stored = [self._stored.get(each.identity) or _encode(each) for each in self.profiles]
        return StoredSelector(
            self.name, stored, self.stages, self.active, self.pin, self.window, self.loads,
            self.switches,
        )  # fmt: skip

    def recall(self, stored: StoredSelector) -> None:
        """Restore what `remember` returned."""
        self._tables.clear()
        self.profiles = [_profiles.decode(each) for each in stored.profiles]
        self._stored = dict(zip((p.identity for p in self.profiles), stored.profiles, strict=True))
        self.stages, self.pin, self.window = stored.stages, stored.pin, stored.window
        self.active = stored.active or self.active
        self.loads, self.switches = stored.loads, stored.switches


@dataclass(slots=True)
class Selectors:
    """All selectors."""

    live: dict[str, LiveSelector] = field(default_factory=dict)
    #: Target of calls → selectors that observe it, and the one that steers it.
    observed: dict[str, list[LiveSelector]] = field(default_factory=dict)
    steering: dict[str, LiveSelector] = field(default_factory=dict)
    #: Encoded profiles of deleted selectors, the latest last.
    deleted: dict[str, list[bytes]] = field(default_factory=dict)

    def open(self, name: str, spec: SelectorSpec) -> LiveSelector:
        """Add a selector, with the profiles that it had if it was declared before."""
        found = self.live[name] = LiveSelector(name, spec)
        found.follow(spec, declared_pin=True)
        found.active = spec.stages[0]
        found.profiles = [_profiles.decode(each) for each in self.deleted.pop(name, ())]
        return found

    def close(self, name: str) -> None:
        """Remove a selector; its profiles are kept."""
        stored = self.live.pop(name).remember().profiles
        if stored:
            self.deleted[name] = stored
        for oldest in list(self.deleted)[:-_DELETED_KEPT]:
            del self.deleted[oldest]

    def index(self) -> None:
        """Follow the targets that are declared; the first one by name steers a service."""
        self.observed.clear()
        self.steering.clear()
        for _, each in sorted(self.live.items()):
            if each.spec.target:
                self.steering.setdefault(each.spec.target, each)
            for target in dict.fromkeys((each.spec.target, *each.spec.observes)):
                if target:
                    self.observed.setdefault(target, []).append(each)

    def remember(self) -> bytes:
        """Return what a snapshot needs; nothing without selectors."""
        live = [each.remember() for _, each in sorted(self.live.items())]
        gone = [StoredSelector(name, each, declared=False) for name, each in self.deleted.items()]
        return _encode([*live, *gone]) if live or gone else b""

    def recall(self, stored: bytes) -> None:
        """Restore what `remember` returned, beside the declared selectors."""
        for each in _decode(stored) if stored else ():
            if not each.declared:
                self.deleted[each.name] = each.profiles
            elif each.name in self.live:
                self.live[each.name].recall(each)
