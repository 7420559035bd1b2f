"""Plan: which instances of a group to launch, drain and end. Pure.

1. An instance ends only when its node is empty, or has not joined: no trajectory is interrupted. Until then its node is drained.
2. One that the engine will end soon is replaced and drained `drain_seconds` before.
3. Of too many, the outdated ones go first, then those that wait for a machine, then those that are drained, then those with the
   least work; none that takes actions goes while too few do.
4. A drained node of an instance that stays is resumed if its group drained it (the group grew again), and else left as it is:
   an operator drained it.
5. An instance is outdated if it was launched with another fingerprint. Outdated ones are replaced a few at a time: with at most
   `max_surge` instances more than wanted, and at least all wanted nodes less `max_unavailable` that take actions. So a
   node is drained only once its successor takes actions, and where successors do not start, nothing more is replaced.
   Nodes that an operator drained count as wanted, and stay.
6. A node that is silent beyond its grace period counts no more: another instance is launched beside its own, under another name. Its
   own ends once nothing hangs on the node. A node that returns before counts again, and what is too many then leaves.
7. Too few nodes that take actions, as when a successor fails later, let outdated ones that have not ended yet go on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import Instance, InstanceState

_NAMED: Final = 3
_NO_ROOM: Final = (
    "; if the engine has no room for one more, set max_surge to 0 and max_unavailable to 1"
)


@dataclass(frozen=True)
class NodeWork:
    """What the scheduler has on a node that has joined."""

    actions: int = 0
    #: Environments that would be lost.
    trajectories: int = 0
    drained: bool = False
    #: By its group.
    leaves: bool = False
    #: It is silent.
    lost: bool = False
    #: For longer than its grace period, so that its actions have ended.
    given_up: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is lost when the node ends."""
        return not self.actions and not self.trajectories

    @property
    def takes(self) -> bool:
        """Whether it takes actions of new trajectories."""
        return not (self.drained or self.leaves or self.lost)

    @property
    def aside(self) -> bool:
        """Whether an operator has drained it."""
        return self.drained and not self.leaves


@dataclass
class Steps:
    """What is to be done now."""

    launch: list[str] = field(default_factory=list)
    #: Node → why.
    drain: dict[str, str] = field(default_factory=dict)
    resume: list[str] = field(default_factory=list)
    #: Instance → why.
    end: dict[str, str] = field(default_factory=dict)
    #: How far the replacement of outdated instances is, in a sentence; empty: there is none.
    rollout: str = ""


def is_outdated(instance: Instance, fingerprint: str) -> bool:
    """Whether an instance has another shape. One that an earlier version launched has none, and counts as current."""
    return bool(fingerprint and instance.fingerprint) and instance.fingerprint != fingerprint


def plan(
    group: str,
    spec: NodeGroupSpec,
    wanted: int,
    instances: Sequence[Instance],
    nodes: Mapping[str, NodeWork],
    now: float,
    fingerprint: str = "",
) -> Steps:
    """Return the steps towards ``wanted`` nodes with a ``fingerprint``; empty: any.

    ``nodes``: those that have joined; ``now``: wall clock, seconds.
    """
    steps = Steps()
    staying = [each for each in instances if _stays(each, steps, spec, nodes, now)]
    old = {each.name for each in staying if is_outdated(each, fingerprint)}
    sizing = _Sizing(spec, wanted, staying, old, nodes)
    going = sizing.surplus() | sizing.replaced()
    for each in sizing.order:
        if each.name in going:
            former = each.name in old
            why = "it has a former shape" if former else f"the group needs {wanted} nodes"
            _leave(steps, each, nodes, why)
        elif (work := nodes.get(each.name)) is not None and work.leaves:
            steps.resume.append(each.name)
    taken = {each.name for each in instances}
    steps.launch = _free_names(group, taken, sizing.missing)
    if old:
        steps.rollout = _progress(sizing, going, steps)
    return steps


def _stays(
    each: Instance, steps: Steps, spec: NodeGroupSpec, nodes: Mapping[str, NodeWork], now: float
) -> bool:
    """Whether an instance counts; of one that does not, plan what becomes of it."""
    work = nodes.get(each.name)
    if each.state is InstanceState.FAILED:
        steps.end[each.name] = each.reason or "it failed"
    elif work is not None and work.given_up:
        if work.is_empty and each.state is InstanceState.RUNNING:
            steps.end[each.name] = "its node is silent, and nothing hangs on it"
    elif each.state is not InstanceState.ENDING:
        if each.ends_at is None or each.ends_at - now > spec.drain_seconds:
            return True
        _leave(steps, each, nodes, each.reason or "the engine ends it soon")
    return False


class _Sizing:
    """The numbers of a group: how many may be there, and how many have to take actions."""

    def __init__(
        self,
        spec: NodeGroupSpec,
        wanted: int,
        staying: Sequence[Instance],
        old: set[str],
        nodes: Mapping[str, NodeWork],
    ) -> None:
        self.spec, self.old, self.nodes = spec, old, nodes
        #: In that of leaving.
        self.order = sorted(
            staying, key=lambda each: (each.name not in old, _order_of_leaving(each, nodes))
        )
        works = [work for each in staying if (work := nodes.get(each.name)) is not None]
        #: Nodes that take actions, less those that shall leave.
        self.able = sum(work.takes for work in works)
        unavailable = spec.max_unavailable if old else 0
        self.floor = wanted - sum(work.aside for work in works) - unavailable
        #: Instances beside the wanted ones, until their successors are there.
        surge = min(spec.max_surge, max(0, wanted - self._settled())) if old else 0
        current = len(staying) - len(old)
        self.excess = max(0, len(staying) - wanted - surge)
        self.missing = max(0, min(wanted + surge - len(staying), wanted - current))

    def _settled(self) -> int:
        """Return how many current instances need no waiting for."""
        return sum(
            each.name not in self.old
            and (work := self.nodes.get(each.name)) is not None
            and (work.takes or work.aside)
            for each in self.order
        )

    def successors(self) -> list[Instance]:
        """Return the current instances whose nodes have not joined, or are silent."""
        return [
            each
            for each in self.order
            if each.name not in self.old
            and ((work := self.nodes.get(each.name)) is None or work.lost)
        ]

    def surplus(self) -> set[str]:
        """Return the instances that are too many."""
        found: set[str] = set()
        for each in self.order:
            if len(found) < self.excess and self._may_go(each):
                found.add(each.name)
        self._gone = found
        return found

    def _may_go(self, instance: Instance) -> bool:
        work = self.nodes.get(instance.name)
        if work is None or not work.takes:
            return True
        if self.able <= self.floor:
            return False
        self.able -= 1
        return True

    def replaced(self) -> set[str]:
        """Return the outdated instances that leave now, beside the surplus."""
        rest = [each for each in self.order if each.name in self.old - self._gone]
        found: set[str] = set()
        leaving = 0
        for each in rest:
            work = self.nodes.get(each.name)
            if work is None:
                found.add(each.name)  # it takes no actions yet
            elif work.leaves:
                if self.able < self.floor and not work.lost:
                    self.able += 1
                else:
                    found.add(each.name)
                    leaving += 1
        most = self.spec.max_surge + self.spec.max_unavailable
        for each in rest:
            work = self.nodes.get(each.name)
            if work is None or work.leaves or work.aside or leaving >= most:
                continue
            if self._may_go(each):
                found.add(each.name)
                leaving += 1
        return found


def _progress(sizing: _Sizing, going: Collection[str], steps: Steps) -> str:
    """Say how far the replacement is, and what it waits for."""
    old = [each.name for each in sizing.order if each.name in sizing.old]
    said = [f"{len(sizing.order) - len(old)} of {len(sizing.order)} instances have the new shape"]
    finishing = [name for name in old if name in going and name not in steps.end]
    if finishing:
        said.append(f"{_names(finishing)} let{'s its' if len(finishing) == 1 else ' their'} trajectories finish")  # fmt: skip
    aside = [name for name in old if (work := sizing.nodes.get(name)) is not None and work.aside]
    if aside:
        said.append(f"{_names(aside)}: drained by an operator, and replaced once resumed")
    waits = [name for name in old if name not in {*going, *aside}]
    successors = sizing.successors()
    if waits and (successors or not finishing):
        is_full = not sizing.spec.max_unavailable and all(
            each.state is InstanceState.PENDING for each in successors
        )
        which = f" {_described(successors[0], sizing.nodes)}" if successors else ""
        said.append(f"{waits[0]} waits for its successor{which}{_NO_ROOM if is_full else ''}")
    return "; ".join(said)


def _described(successor: Instance, nodes: Mapping[str, NodeWork]) -> str:
    reason = f" ({successor.reason})" if successor.reason else ""
    lacks = "is silent" if successor.name in nodes else "has not joined"
    return f"{successor.name}, which is {successor.state.value}{reason} and {lacks}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _leave(steps: Steps, instance: Instance, nodes: Mapping[str, NodeWork], why: str) -> None:
    work = nodes.get(instance.name)
    if work is not None and not work.drained:
        steps.drain[instance.name] = why
    elif instance.state is not InstanceState.UNKNOWN and (work is None or work.is_empty):
        steps.end[instance.name] = why


def _order_of_leaving(
    instance: Instance, nodes: Mapping[str, NodeWork]
) -> tuple[int, int, int, int]:
    number = int(instance.name.rpartition("-")[2])
    work = nodes.get(instance.name)
    if work is None:
        return 0 if instance.state is InstanceState.PENDING else 1, 0, 0, -number
    return 2 if work.drained else 3, work.trajectories, work.actions, -number


def _free_names(group: str, taken: set[str], count: int) -> list[str]:
    names: list[str] = []
    number = 0
    while len(names) < count:
        number += 1
        name = f"{group}-{number}"
        if name not in taken:
            names.append(name)
    return names
