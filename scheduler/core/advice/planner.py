"""Offline planning of a whole scheduling problem: Algorithm 1 around the policies (paper §4.2).

Recipe
1. Scan the waiting actions in order, at the counts at which the policy admits: `Scan` returns the
   candidates, the blocked resources, and the claims (line 2, in the reading of `cycle.scan`).
2. Split the candidates by key resource (line 4). A group may use the free units of its resource
   minus the smallest uses of other groups' candidates and minus all claims.
3. Let the policy arrange each group; evicted actions keep their smallest uses of other resources, so
   the groups do not depend on each other's answers or order.

Cost: O(w · k) for w waiting actions of k resources each, and one arrangement per group.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from domain.chunks import SIZES, Counts, beside, gpus_of
from domain.elasticity import Elasticity
from domain.ids import ActionId, ResourceId
from domain.operators import ChunksOperator, Operator, UnitsOperator
from domain.resources import MILLI, Cost, units
from scheduler.core.cycle.scan import Scan
from scheduler.core.policies.choices import Choices, choices_of, grained
from scheduler.core.policies.group import Arrangement, Group, fair_share
from scheduler.core.policies.protocol import Policy
from scheduler.core.state.demand import Need
from scheduler.core.state.queues import WaitReason


@dataclass(frozen=True, slots=True)
class ResourceSnapshot:
    """Free units of one resource, and the running actions that hold it."""

    #: Milli-units; negative after it shrank below what runs.
    free: int
    #: Seconds until each running action that holds it ends.
    running: Sequence[float] = ()
    #: Free chunks of 1, 2, 4 and 8 GPUs, which are ``free`` together; None: units are alike.
    chunks: Counts | None = None


@dataclass(frozen=True, slots=True)
class WaitingAction:
    """A waiting action."""

    id: ActionId
    cost: Cost
    #: Key resource; None: see `key_of`.
    key: str | None = None
    #: T_ori, the duration with one unit of the key resource.
    duration_seconds: float | None = None
    elasticity: Elasticity | None = None


@dataclass(frozen=True, slots=True)
class PlanningProblem:
    """Resources and the actions that wait for them, first come first served."""

    resources: Mapping[ResourceId, ResourceSnapshot]
    waiting: Sequence[WaitingAction] = ()


@dataclass(frozen=True, slots=True)
class PlannedGrants:
    """Decision of a policy about a problem."""

    #: Action → resource → granted milli-units, in the order of arrival.
    selected: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Action → reason why it keeps waiting, in the order of arrival.
    waiting: dict[str, str] = field(default_factory=dict)
    #: Sum of finish times of the arranged groups, by key resource.
    objective_seconds: dict[str, float] = field(default_factory=dict)


def key_of(cost: Cost, key: str | None, free: Mapping[str, int]) -> str | None:
    """Return the key resource: the declared one, else the only elastic one, else the scarcest.

    Scarcest: the smallest count is the largest share of the free units; ties by name. None for an
    action without a cost.
    """
    if key is not None or not cost:
        return key
    several = [name for name in cost if len(cost[name]) > 1]
    if len(several) == 1:
        return several[0]
    return max(sorted(cost), key=lambda name: cost[name][0] / max(1, free.get(name, 0)))


class _FreeUnits:
    """The part of a ledger that a scan uses, over one number."""

    __slots__ = ("free",)

    def __init__(self, free: int) -> None:
        self.free = free

    def fits(self, amounts: Sequence[int]) -> bool:
        return sum(amounts) <= self.free

    def take(self, amount: int) -> None:
        self.free -= amount

    def operator(self, back: Sequence[int], claims: Sequence[int]) -> Operator:
        """Return the operator over what is free after ``back`` is returned and ``claims`` are kept."""
        return UnitsOperator(self.free + sum(back) - sum(claims))

    def __str__(self) -> str:
        return str(units(self.free))


class _FreeChunks:
    """The part of a ledger that a scan uses, over free chunks of GPUs."""

    __slots__ = ("_all", "_left", "_taken")

    def __init__(self, chunks: Counts) -> None:
        self._all = self._left = chunks
        self._taken: list[int] = []

    @property
    def free(self) -> int:
        """Milli-units of GPUs that are left."""
        return gpus_of(self._left) * MILLI

    def fits(self, amounts: Sequence[int]) -> bool:
        return ChunksOperator(self._left).holds(amounts)

    def take(self, amount: int) -> None:
        self._taken.append(amount)
        self._left = beside(self._left, (amount,))

    def operator(self, back: Sequence[int], claims: Sequence[int]) -> Operator:
        """Return the operator over what is free after ``back`` is returned and ``claims`` are kept."""
        others = (Counter(self._taken) - Counter(back)).elements()
        return ChunksOperator(beside(self._all, [*others, *claims]))

    def __str__(self) -> str:
        counted = zip(self._left, SIZES, strict=True)
        free = ", ".join(f"{count} × {size}" for count, size in counted if count)
        return free or "nothing"


@dataclass(slots=True)
class _GroupMembers:
    """Members of one group, as the scan finds them."""

    candidates: list[WaitingAction] = field(default_factory=list)
    behind: list[WaitingAction] = field(default_factory=list)
    #: Milli-units that each candidate takes when it is admitted.
    taken: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _ScanResult:
    """Result of the scan."""

    left: dict[ResourceId, _FreeUnits | _FreeChunks]
    scan: Scan = field(default_factory=Scan)
    groups: dict[str | None, _GroupMembers] = field(
        default_factory=lambda: defaultdict(_GroupMembers)
    )
    granted: dict[ActionId, dict[str, int]] = field(default_factory=dict)
    waits: dict[ActionId, str] = field(default_factory=dict)


def plan_grants(problem: PlanningProblem, policy: Policy) -> PlannedGrants:
    """Return the grants of ``policy``, and why the other actions wait."""
    plan = PlannedGrants()
    scanned = _scan(problem, policy)
    granted, waits = scanned.granted, scanned.waits
    for key in sorted(name for name in scanned.groups if name is not None):
        split = scanned.groups[key]
        if policy.arranges and split.candidates:
            group = _group(problem, key, scanned)
            _enter(plan, group, split, policy.arrange(group), granted, waits)
    plan.selected.update({one.id: granted[one.id] for one in problem.waiting if one.id in granted})
    plan.waiting.update({one.id: waits[one.id] for one in problem.waiting if one.id in waits})
    return plan


def _scan(problem: PlanningProblem, policy: Policy) -> _ScanResult:
    """Return the candidates of each group (recipe, steps 1 and 2)."""
    found = _ScanResult(
        {
            name: _FreeUnits(have.free) if have.chunks is None else _FreeChunks(have.chunks)
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


def _needs(one: WaitingAction, key: str | None, policy: Policy) -> list[Need]:
    """Return what the scan admits with: the policy's count of the key resource, else the smallest.

    A problem has no capacities, so no action waits for a wider count.
    """
    return [
        (ResourceId(name), policy.admit_count(one.cost[name]) if name == key else one.cost[name][0])
        for name in sorted(one.cost)
    ]


def _group(problem: PlanningProblem, key: str, scanned: _ScanResult) -> Group:
    """Return the policy's input for the group of ``key``."""
    name, split = ResourceId(key), scanned.groups[key]
    claims = scanned.scan.claims.get(name, ())
    free = scanned.left[name].free + sum(split.taken) - sum(claims)
    candidates = [_choices(one, key) for one in split.candidates]
    behind = [_choices(one, key) for one in split.behind]
    members = [*candidates, *behind]
    elastic = sum(len(each) > 1 for each in members)
    inelastic = sum(each.smallest for each in members if len(each) == 1)
    return Group(
        key,
        scanned.left[name].operator(split.taken, claims),
        candidates,
        behind,
        [grained(seconds) for seconds in problem.resources[name].running],
        fair_share(free - inelastic, elastic),
    )


def _choices(one: WaitingAction, key: str) -> Choices:
    return choices_of(one.cost[key], one.duration_seconds, one.elasticity)


def _enter(
    plan: PlannedGrants,
    group: Group,
    split: _GroupMembers,
    arrangement: Arrangement,
    granted: dict[ActionId, dict[str, int]],
    waits: dict[ActionId, str],
) -> None:
    """Record the decision about one group."""
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
    reason: WaitReason, needs: list[Need], left: Mapping[ResourceId, _FreeUnits | _FreeChunks]
) -> str:
    """Return why the scan did not admit an action."""
    resource = ResourceId(reason.subject or "")
    if reason.code == "behind":
        return f"{reason.blocked_by} came before it and waits for {resource}"
    wanted, free = dict(needs)[resource], left[resource]
    kept = ", kept for actions before it" if free.fits((wanted,)) else ""
    return f"waits for {units(wanted)} of {resource}, {free} free{kept}"
