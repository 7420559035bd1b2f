"""Learned figures of action families: durations (`durations`) and CPU usage (`cpu_usage_history`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from domain.ids import ActionId
from scheduler.core.policies.choices import Choices
from scheduler.core.policies.profile import Profile

#: Factor by which one further observation reduces the weight of each earlier one.
DECAY: Final = 0.9
#: Families remembered; the family that was first seen longest ago is dropped.
MOST_FAMILIES: Final = 10_000


class FamilyDuration(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Mean normalised duration of one (task, kind, family)."""

    #: Sum of the decayed weights.
    weight: float
    mean_seconds: float
    observations: int


class FamilyCpuUsage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Cores that actions of one family use."""

    #: Decayed maximum.
    most_cores: float
    observations: int


@dataclass(slots=True)
class Learned:
    """What the scheduler has learned from completed actions, by family in order of first sight."""

    durations: dict[str, FamilyDuration] = field(default_factory=dict)
    cpu_usage: dict[str, FamilyCpuUsage] = field(default_factory=dict)
    #: Choices of waiting actions that follow from the action alone; not part of a snapshot.
    choices: dict[ActionId, Choices] = field(default_factory=dict)
    #: Profiles of malleable actions, likewise.
    profiles: dict[ActionId, Profile] = field(default_factory=dict)

    def add_duration(self, family: str, seconds: float) -> None:
        """Add the normalised duration of one completed execution."""
        before = self.durations.get(family)
        if before is None:
            if len(self.durations) >= MOST_FAMILIES:
                del self.durations[next(iter(self.durations))]
            self.durations[family] = FamilyDuration(1.0, seconds, 1)
            return
        weight = before.weight * DECAY + 1.0
        mean = before.mean_seconds + (seconds - before.mean_seconds) / weight
        self.durations[family] = FamilyDuration(weight, mean, before.observations + 1)

    def add_cpu_usage(self, family: str, cores: float) -> None:
        """Add the cores that one completed execution used."""
        before = self.cpu_usage.get(family)
        if before is None:
            if len(self.cpu_usage) >= MOST_FAMILIES:
                del self.cpu_usage[next(iter(self.cpu_usage))]
            before = FamilyCpuUsage(0.0, 0)
        most = max(cores, before.most_cores * DECAY)
        self.cpu_usage[family] = FamilyCpuUsage(most, before.observations + 1)

    def forget_action(self, name: ActionId) -> None:
        """Drop what was computed for an action that is finished."""
        if self.choices:
            self.choices.pop(name, None)
        if self.profiles:
            self.profiles.pop(name, None)
