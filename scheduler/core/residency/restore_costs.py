"""Restore costs: the time that restores add to calls, so that counts and nodes are chosen by it.

Rules
1. A call on a chunk that does not cache its service takes the restore and then its execution. For
   each count that the call may get, policies see the sum (design of the algorithm: "the restore cost
   of (service, DoP) is charged before the DP"). A free chunk of that count that caches the service
   makes the restore free, for as many calls of the group as there are such chunks, in order.
2. Of several nodes a call prefers the one where it would end soonest if it had that node's free chunks
   for itself: with the best count there by rule 1. What other calls of the same scan have reserved is
   not free, so a burst is spread over the nodes, and each call gets a larger count.
3. Restores are measured for each service and count; a count to which the service was never restored
   takes the average of its restores (`service_turns.times_of`).

Both change what is chosen, never the order. Policy ``paper`` uses rules 1 and 3, and takes nodes as they
come; ``paper(free restores)`` uses none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf

from domain.ids import ResourceId, node_resource
from domain.ports.residency import HostingLedger
from domain.services import service_name
from scheduler.core.cycle.pool_policies import policy_of
from scheduler.core.policies.choices import Choices
from scheduler.core.residency.service_turns import KIND, times_of
from scheduler.core.state.durations import choices_of
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import State


def restore_seconds(state: State, service: str, counts: Sequence[int]) -> list[float]:
    """Return the seconds of a restore of ``service`` to each of ``counts`` milli-units (rule 3)."""
    known = times_of(state, service)
    measured = dict(known.by_count)
    return [measured.get(count, known.restore_seconds) for count in counts]


def with_restores(
    state: State, resource: ResourceId, lives: Sequence[LiveAction], choices: Sequence[Choices]
) -> list[Choices]:
    """Return the choices of each of ``lives`` on ``resource`` with their restores (rule 1)."""
    ledger = state.supply.resident.get(resource)
    if ledger is None:
        return list(choices)
    before: Counter[str] = Counter()
    found = []
    for live, each in zip(lives, choices, strict=True):
        if state.residency.count_of(live.action, live.pool, each.units) is not None:
            each = each.capped(live.needs.key_amount)
        if service := _charged(state, live):
            each = each.delayed(_added(state, ledger, service, each.units, before[service]))
            before[service] += 1
        found.append(each)
    return found


def _charged(state: State, live: LiveAction) -> str | None:
    """Return the service whose restore is charged to ``live``; None where none is."""
    call = live.action.call
    if call is None or not policy_of(state, live.pool).charges_restores:
        return None
    return service_name(call.target)


def may_widen(state: State, live: LiveAction) -> bool:
    """Return whether ``live`` may get more GPUs than it is admitted with."""
    counts = live.action.cost.get(KIND)
    return (
        counts is not None
        and policy_of(state, live.pool).caps_grants
        and counts[-1] > live.needs.key_amount
        and state.residency.count_of(live.action, live.pool, counts) is None
    )


def done_seconds(state: State, node: str, live: LiveAction) -> float:
    """Return in how many seconds ``live`` could end on ``node``; inf where it does not fit (rule 2)."""
    ledger = state.supply.resident.get(node_resource(KIND, node))
    if ledger is None or ledger.free < live.needs.key_amount:
        return inf
    choices, service = choices_of(state, live), live.needs.resident
    counts = choices.units if may_widen(state, live) else choices.units[:1]
    least = inf
    for count, seconds in zip(counts, choices.seconds, strict=False):
        if not ledger.fits((count,)):
            break  # larger counts do not fit either
        (restore,) = _added(state, ledger, service, (count,))
        least = min(least, seconds + restore)
    return least


def _added(
    state: State, ledger: HostingLedger, service: str, counts: Sequence[int], before: int = 0
) -> list[float]:
    """Return what a restore adds on each of ``counts``; ``before`` earlier calls use cached chunks."""
    restores = restore_seconds(state, service, counts)
    homes = (len(ledger.homes(service, count)) for count in counts)
    return [0.0 if at > before else each for at, each in zip(homes, restores, strict=True)]
