"""Groups of DAPO: the rollouts of one prompt, and whether their rewards have a gradient.

Rules
1. A rollout trains when it completed with a finite reward. Any other end (error, time limit, cancel, no reward) is a failure,
   never a reward of 0.
2. A group is judged once its rollouts have ended: *informative* when the rewards differ, else *wasted*. With failures it is
   dropped, completed by further rollouts, or judged by the rewards that it has (`OnErrors`).
3. Group ``RUN/POSITION`` has the prompt at that position of the run: a trainer that starts again finds its groups by name.

Nothing here does I/O.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Literal

from tangram_client._rollout_calls import RolloutInfo

#: ``drop``: a group with a failure trains nothing; ``repeat``: a failed rollout is submitted again; ``fewer``: the group trains with
#: the rewards that it has.
OnErrors = Literal["drop", "repeat", "fewer"]
#: What becomes of unfinished rollouts when an iteration has its groups: they are parked and resumed in the next one, or cancelled.
Carry = Literal["park", "terminate"]
#: Whether rewards of a group have a gradient.
Informative = Callable[[Sequence[float]], bool]
#: Reason of the rollouts that the trainer cancels itself.
NOT_NEEDED: Final = "dapo: not needed"


def differ(rewards: Sequence[float]) -> bool:
    """Whether the rewards of a group differ: the variance is above 0."""
    return len(set(rewards)) > 1


class GroupVerdict(StrEnum):
    """What a group is good for."""

    OPEN = "open"  # some rollouts have not ended
    INFORMATIVE = "informative"
    WASTED = "wasted"  # the rewards do not differ
    DROPPED = "dropped"  # failures leave too little
    SHORT = "short"  # further rollouts are to replace failed ones


@dataclass(slots=True)
class DapoCounts:
    """Counts of a run, over its iterations."""

    #: Prompts that were submitted.
    prompts: int = 0
    #: Groups with a gradient.
    informative: int = 0
    #: Groups whose rewards do not differ.
    wasted: int = 0
    #: Groups that are left out because of failures.
    dropped: int = 0
    #: Rollouts that the next iteration continued.
    carried: int = 0
    #: Rollouts that were cancelled at the end of an iteration.
    terminated: int = 0
    #: Rollouts that were submitted in place of failed ones.
    repeats: int = 0


@dataclass(slots=True)
class PromptGroup:
    """The rollouts of one prompt."""

    name: str
    position: int
    #: Rollouts with a reward that it needs.
    samples: int
    #: The instance, as it was submitted.
    instance: Mapping[str, Any] = field(repr=False)
    #: Rollouts by id; None: not finished.
    rollouts: dict[str, RolloutInfo | None] = field(default_factory=dict)
    #: The tokens of its rewarded rollouts are read.
    read: bool = False

    @property
    def pending(self) -> list[str]:
        """The rollouts that are not finished."""
        return [name for name, info in self.rollouts.items() if info is None]

    @property
    def ended(self) -> list[str]:
        """The rollouts that are finished."""
        return [name for name, info in self.rollouts.items() if info is not None]

    @property
    def rewarded(self) -> list[RolloutInfo]:
        """The rollouts that train: at most ``samples``, in the order of their submission."""
        found = [info for info in self.rollouts.values() if info is not None and trains(info)]
        return found[: self.samples]

    @property
    def failed(self) -> list[RolloutInfo]:
        """The rollouts that ended without a reward."""
        return [info for info in self.rollouts.values() if info is not None and not trains(info)]

    @property
    def rewards(self) -> list[float]:
        """The rewards of `rewarded`."""
        return [info.reward for info in self.rewarded if info.reward is not None]

    @property
    def missing(self) -> int:
        """Rollouts that it needs beside those that have a reward and those that are pending."""
        return max(0, self.samples - len(self.rewarded) - len(self.pending))


def trains(info: RolloutInfo) -> bool:
    """Whether a finished rollout may train."""
    reward = info.reward
    return info.outcome == "completed" and reward is not None and math.isfinite(reward)


@dataclass(frozen=True)
class GroupRules:
    """What a trainer asks of its groups."""

    samples: int
    errors: OnErrors = "drop"
    #: Rollouts that a group may submit in place of failed ones.
    repeats: int = 2
    informative: Informative = differ

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ValueError("samples: give at least 2, one reward has nothing to differ from")
        if self.errors not in ("drop", "repeat", "fewer"):
            raise ValueError(f"errors: give drop, repeat or fewer, not {self.errors!r}")

    def verdict(self, group: PromptGroup) -> GroupVerdict:
        """Judge a group."""
        if any(info.reason == NOT_NEEDED for info in group.failed):
            return GroupVerdict.DROPPED
        if group.failed and self.errors == "drop":
            return GroupVerdict.DROPPED
        if len(group.rollouts) < self.samples:
            return GroupVerdict.OPEN
        if group.missing and self.errors == "repeat":
            spare = self.samples + self.repeats - len(group.rollouts)
            return GroupVerdict.SHORT if spare >= group.missing else GroupVerdict.DROPPED
        if group.pending:
            return GroupVerdict.OPEN
        if self.informative(group.rewards):
            return GroupVerdict.INFORMATIVE
        return (
            GroupVerdict.DROPPED if group.failed and len(group.rewards) < 2 else GroupVerdict.WASTED
        )


@dataclass(frozen=True)
class PromptOrder:
    """Which instance is at which position of a run: epoch after epoch, shuffled when there is a seed."""

    instances: Sequence[Mapping[str, Any]]
    seed: int | None = None
    #: None: without end.
    epochs: int | None = None

    def __post_init__(self) -> None:
        if not self.instances:
            raise ValueError("instances: give at least one")

    def at(self, position: int) -> Mapping[str, Any] | None:
        """Return the instance at a position; None after the last epoch."""
        epoch, place = divmod(position, len(self.instances))
        if self.epochs is not None and epoch >= self.epochs:
            return None
        if self.seed is None:
            return self.instances[place]
        return self.instances[_shuffled(len(self.instances), self.seed, epoch)[place]]


@lru_cache(maxsize=4)
def _shuffled(length: int, seed: int, epoch: int) -> list[int]:
    order = list(range(length))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order


class GroupBook:
    """The groups of a run that are not trained yet, and how far the run has come.

    `state` is a small JSON object, without tokens; `restore` continues from it in another process.
    """

    def __init__(self, run: str, rules: GroupRules, order: PromptOrder) -> None:
        self.run = run
        self.rules = rules
        self.order = order
        #: Cursor of the completions that were read.
        self.cursor = ""
        #: Of the next prompt.
        self.position = 0
        self.iteration = 0
        self.counts = DapoCounts()
        self.open: dict[str, PromptGroup] = {}
        #: Informative groups that no batch has taken.
        self.ready: list[PromptGroup] = []
        #: Rollouts that are parked, or may be.
        self.parked: set[str] = set()
        #: First position whose group another process may have submitted after its last state; None: none.
        self.unknown_from: int | None = None
        #: Groups of a restored state that train nothing by the present rules and instances.
        self.unwanted: list[PromptGroup] = []
        self._owners: dict[str, PromptGroup] = {}
        self._settled: set[int] = set()
        #: Positions of settled groups that train nothing.
        self._worthless: set[int] = set()

    @property
    def pending(self) -> list[str]:
        """The rollouts that are not finished."""
        return [rollout for group in self.open.values() for rollout in group.pending]

    def name_of(self, position: int) -> str:
        """Return the name of the group at a position."""
        return f"{self.run}/{position}"

    def make(self, position: int) -> PromptGroup | None:
        """Return the open group at a position, which is made if need be; None after the last prompt."""
        name = self.name_of(position)
        if (known := self.open.get(name)) is not None:
            return known
        instance = self.order.at(position)
        if instance is None:
            return None
        group = self.open[name] = PromptGroup(name, position, self.rules.samples, instance)
        if position >= self.position:
            self.position = position + 1
            self.counts.prompts += 1
        return group

    def add(self, group: PromptGroup, rollouts: Sequence[str]) -> None:
        """Record the rollouts that were submitted for a group."""
        for rollout in rollouts:
            group.rollouts.setdefault(rollout, None)
            self._owners[rollout] = group

    def adopt(self, info: RolloutInfo) -> PromptGroup | None:
        """Return the open group of a rollout that an earlier process of this run submitted; None for any other."""
        position = self._position_of(info)
        if position is None:
            return None
        lost = self.unknown_from is not None and position >= self.unknown_from
        if info.group not in self.open and (not lost or position in self._settled):
            return None
        group = self.make(position)
        if group is not None:
            self.add(group, [info.id])
        return group

    def ended(self, info: RolloutInfo) -> PromptGroup | None:
        """Record the end of a rollout, and return its open group; None when it is none of the run's."""
        group = self._owners.get(info.id) or self.adopt(info)
        if group is not None:
            group.rollouts[info.id] = info
            self.parked.discard(info.id)
        return group

    def is_useless(self, info: RolloutInfo) -> bool:
        """Whether a rollout that ended, and is of no open group, trains nothing: its tokens are to be deleted.

        A rollout may end after its group was dropped: beside the failure, or before its cancel was received.
        """
        if info.reason == NOT_NEEDED:
            return True
        position = self._position_of(info)
        if position is None or position in self._settled:
            return position in self._worthless
        return position < (self.unknown_from or 0) and info.group not in self.open

    def _position_of(self, info: RolloutInfo) -> int | None:
        """Return the position of a rollout's group; None for one of another run."""
        run, slash, text = (info.group or "").rpartition("/")
        return int(text) if run == self.run and slash and text.isdecimal() else None

    def settle(self, group: PromptGroup) -> GroupVerdict:
        """Judge a group; one with a final verdict is not open any more."""
        verdict = self.rules.verdict(group)
        if verdict in (GroupVerdict.OPEN, GroupVerdict.SHORT):
            return verdict
        self.close(group, trains=verdict is GroupVerdict.INFORMATIVE)
        if verdict is GroupVerdict.INFORMATIVE:
            self.counts.informative += 1
            self.ready.append(group)
        elif verdict is GroupVerdict.WASTED:
            self.counts.wasted += 1
        else:
            self.counts.dropped += 1
        return verdict

    def close(self, group: PromptGroup, trains: bool = False) -> None:
        """Leave a group out of the open ones."""
        self.open.pop(group.name, None)
        self._settled.add(group.position)
        if not trains:
            self._worthless.add(group.position)
        for rollout in group.rollouts:
            self._owners.pop(rollout, None)
            self.parked.discard(rollout)

    def reject(self, group: PromptGroup) -> None:
        """Drop a ready group whose tokens cannot be had."""
        self.ready.remove(group)
        self.counts.informative -= 1
        self.counts.dropped += 1

    def take(self, number: int) -> list[PromptGroup]:
        """Return the next batch: ready groups in the order in which they became ready."""
        batch, self.ready = self.ready[:number], self.ready[number:]
        self.iteration += bool(batch)
        return batch

    def state(self) -> dict[str, Any]:
        """Return what another process needs to continue, as JSON values."""
        groups = [*self.open.values(), *self.ready]
        return {
            "run": self.run,
            "cursor": self.cursor,
            "position": self.position,
            "iteration": self.iteration,
            "counts": asdict(self.counts),
            "groups": {str(group.position): _stored(group) for group in groups},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; one with ``run`` alone begins with the whole log of completions."""
        self.cursor = str(state.get("cursor", ""))
        self.iteration = int(state.get("iteration", 0))
        for position, rollouts in state.get("groups", {}).items():
            group = self.make(int(position)) or self._beyond(int(position))
            self.add(group, list(rollouts))
            for rollout, end in rollouts.items():
                if end is not None:
                    group.rollouts[rollout] = _ended(rollout, group, end)
        self.position = self.unknown_from = int(state.get("position", 0))
        for group in list(self.open.values()):
            if self.settle(group) in (GroupVerdict.DROPPED, GroupVerdict.WASTED):
                self.unwanted.append(group)
        for group in self.unwanted:
            self.close(group)
        self.counts = DapoCounts(**state.get("counts", {}))
        self.parked.update(self.pending)

    def _beyond(self, position: int) -> PromptGroup:
        """Return a group whose instance is not among those that this process was given."""
        group = PromptGroup(self.name_of(position), position, self.rules.samples, {})
        self.unwanted.append(group)
        return group


def _stored(group: PromptGroup) -> dict[str, Any]:
    return {
        rollout: None if info is None else [info.outcome, info.reward, info.reason[:100]]
        for rollout, info in group.rollouts.items()
    }


def _ended(rollout: str, group: PromptGroup, end: Sequence[Any]) -> RolloutInfo:
    outcome, reward, reason = end
    return RolloutInfo(
        rollout, "finished", outcome=outcome, reward=reward, reason=reason, group=group.name
    )
