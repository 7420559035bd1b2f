"""Decide a whole problem: Algorithm 1 around the policies (paper §4.2).

Recipe
1. Scan the waiting actions in order, at the counts the policy admits at: `Scan` says who is a
   candidate, who blocks what, and who claims what (line 2, in the reading of `scan`).
2. Split the candidates by key resource (line 4). What a group may share out of its resource is what
   is free minus the smallest uses of other groups' candidates and minus all claims.
3. Let the policy arrange each group; who is evicted keeps what it would use of other resources, so
   the groups do not depend on each other's answers or order.

Cost: O(w · k) for w waiting actions of k resources each, and one arrangement per group.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from domain.chunks import SIZES, Counts, beside, gpus_of
from domain.ids import ActionId, ResourceId
from domain.operators import ChunksOperator, Operator, UnitsOperator
from domain.resources import MILLI, units
from scheduler.core.cycle.scan import Scan
from scheduler.core.policies import Policy
from scheduler.core.policies.balanced import fair_share
from scheduler.core.policies.choices import Choices, grained
from scheduler.core.policies.group import Arrangement, Group
from scheduler.core.policies.problem import Plan, Problem, Waiting, choices_of, key_of
from scheduler.core.state.demand import Need
from scheduler.core.state.queues import WaitReason


class _Counted:
    """What a scan asks of a ledger, over one number."""

    __slots__ = ("free",)

    def __init__(self, free: int) -> None:
        self.free = free

    def fits(self, amounts: Sequence[int]) -> bool:
        return sum(amounts) <= self.free

    def take(self, amount: int) -> None:
        self.free -= amount

    def operator(self, back: Sequence[int], claims: Sequence[int]) -> Operator:
        """Say what is free when ``back`` is given back and ``claims`` are kept."""
        return UnitsOperator(self.free + sum(back) - sum(claims))

    def __str__(self) -> str:
        return str(units(self.free))


class _Chunked:
    """The same over free chunks of GPUs."""

    __slots__ = ("_all", "_left", "_taken")

    def __init__(self, chunks: Counts) -> None:
        self._all = self._left = chunks
        self._taken: list[int] = []

    @property
    def free(self) -> int:
        """Milli-units of GPUs that nobody took."""
        return gpus_of(self._left) * MILLI

    def fits(self, amounts: Sequence[int]) -> bool:
        return ChunksOperator(self._left).holds(amounts)

    def take(self, amount: int) -> None:
        self._taken.append(amount)
        self._left = beside(self._left, (amount,))

    def operator(self, back: Sequence[int], claims: Sequence[int]) -> Operator:
        """Say what is free when ``back`` is given back and ``claims`` are kept."""
        others = (Counter(self._taken) - Counter(back)).elements()
        return ChunksOperator(beside(self._all, [*others, *claims]))

    def __str__(self) -> str:
        counted = zip(self._left, SIZES, strict=True)
        free = ", ".join(f"{count} × {size}" for count, size in counted if count)
        return free or "nothing"


@dataclass(slots=True)
class _Split:
    """One group while it is put together."""

    candidates: list[Waiting] = field(default_factory=list)
    behind: list[Waiting] = field(default_factory=list)
    #: Milli-units that each of its candidates takes when it is admitted.
    taken: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Scanned:
    """What the scan found."""

    left: dict[ResourceId, _Counted | _Chunked]
    scan: Scan = field(default_factory=Scan)
    groups: dict[str | None, _Split] = field(default_factory=lambda: defaultdict(_Split))
    granted: dict[ActionId, dict[str, int]] = field(default_factory=dict)
    waits: dict[ActionId, str] = field(default_factory=dict)


def decide(problem: Problem, policy: Policy) -> Plan:
    """Return who goes now and with what, and why the others wait."""
    plan = Plan()
    scanned = _scan(problem, policy)
    granted, waits = scanned.granted, scanned.waits
    for key in sorted(name for name in scanned.groups if name is not None):
        split = scanned.groups[key]
        if policy.arrange is not None and split.candidates:
            group = _group(problem, key, scanned)
            _enter(plan, group, split, policy.arrange(group), granted, waits)
    plan.selected.update({one.id: granted[one.id] for one in problem.waiting if one.id in granted})
    plan.waiting.update({one.id: waits[one.id] for one in problem.waiting if one.id in waits})
    return plan


def _scan(problem: Problem, policy: Policy) -> _Scanned:
    """Say who is a candidate of which group (recipe, steps 1 and 2)."""
    found = _Scanned(
        {
            name: _Counted(have.free) if have.chunks is None else _Chunked(have.chunks)
            for name, have in problem.resources.items()
        }
    )
    free = {str(name): have.free for name, have in problem.resources.items()}
    for one in problem.waiting:
        key = key_of(one.cost, one.key, free)
        needs = _needs(one, key, policy)
        if found.scan.admits(found.left, needs):
            for resource, amount in needs:
                found.left[resource].take(amount)
                if resource == key:
                    found.groups[key].taken.append(amount)
            wanted = dict(needs)
            found.granted[one.id] = {name: wanted[ResourceId(name)] for name in one.cost}
            found.groups[key].candidates.append(one)
        else:
            reason = found.scan.refuse(found.left, one.id, needs)
            found.waits[one.id] = _why(reason, needs, found.left)
            found.groups[key].behind.append(one)
    return found


def _needs(one: Waiting, key: str | None, policy: Policy) -> list[Need]:
    """Return what the scan asks for: the policy's count of the key resource, else the smallest.

    A problem does not say how much there is in all, so nobody can wait here for a wider count.
    """
    return [
        (ResourceId(name), policy.admits_at(one.cost[name]) if name == key else one.cost[name][0])
        for name in sorted(one.cost)
    ]


def _group(problem: Problem, key: str, scanned: _Scanned) -> Group:
    """Show a group as the policies see it."""
    name, split = ResourceId(key), scanned.groups[key]
    claims = scanned.scan.claims.get(name, ())
    free = scanned.left[name].free + sum(split.taken) - sum(claims)
    candidates = [_choices(one, key) for one in split.candidates]
    behind = [_choices(one, key) for one in split.behind]
    everybody = [*candidates, *behind]
    elastic = sum(len(each) > 1 for each in everybody)
    inelastic = sum(each.smallest for each in everybody if len(each) == 1)
    return Group(
        key,
        scanned.left[name].operator(split.taken, claims),
        candidates,
        behind,
        [grained(seconds) for seconds in problem.resources[name].running],
        fair_share(free - inelastic, elastic),
    )


def _choices(one: Waiting, key: str) -> Choices:
    return choices_of(one.cost[key], one.duration_seconds, one.elasticity)


def _enter(
    plan: Plan,
    group: Group,
    split: _Split,
    arrangement: Arrangement,
    granted: dict[ActionId, dict[str, int]],
    waits: dict[ActionId, str],
) -> None:
    """Write down one group's answer."""
    for one, amount in zip(split.candidates, arrangement.units, strict=False):
        granted[one.id][group.resource] = amount
    for one in split.candidates[len(arrangement.units) :]:
        del granted[one.id]
        waits[one.id] = _evicted(group, arrangement)
    if arrangement.objective_seconds is not None:
        plan.objective_seconds[group.resource] = arrangement.objective_seconds


def _evicted(group: Group, arrangement: Arrangement) -> str:
    first, best = arrangement.trials[0].objective_seconds, arrangement.objective_seconds
    soonest = min((*group.running, *arrangement.ends))
    return (
        f"evicted: more of {group.resource} for those before it lowers the sum of ends "
        f"from {first:.6g} to {best:.6g} s; the next end is in {soonest:.6g} s"
    )


def _why(
    reason: WaitReason, needs: list[Need], left: Mapping[ResourceId, _Counted | _Chunked]
) -> str:
    """Word why the scan did not admit an action."""
    resource = ResourceId(reason.subject or "")
    if reason.code == "behind":
        return f"{reason.blocked_by} came before it and waits for {resource}"
    wanted, free = dict(needs)[resource], left[resource]
    kept = ", kept for actions before it" if free.fits((wanted,)) else ""
    return f"waits for {units(wanted)} of {resource}, {free} free{kept}"
