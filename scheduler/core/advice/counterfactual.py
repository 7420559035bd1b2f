"""What more of the binding resource would change for a waiting action. For people.

The line is played twice, as it stands and with more: whoever is first takes its minimum as soon as
that is free, and gives it back when its expected time is over. Unlike the forecast (the heap of
Algorithm 2, whose slots have no width) the play counts units, since one more unit is the question.
Only the difference of the two plays is told, taken off the forecast, so that a page shows one
prediction and not two. What a policy would do with more than the minimum is not played.

Nothing is told of who waits for no units: for time (quotas, deferrals), for a node, for its turn;
nor of memory, which a trajectory keeps for as long as its trainer likes: `scheduler.core.advice.unblock_hints`
tells that.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from contract.responses import WaitDetails
from domain.advice import ExtraUnitsEffect
from domain.ids import ResourceId
from domain.resources import MILLI, units
from scheduler.core.advice.forecast import LONGEST, wanted_of
from scheduler.core.state.durations import expected_seconds, residual_seconds
from scheduler.core.state.model import LiveAction, State, holding

#: Reasons that more units cure.
_CURED = frozenset({"short_of", "behind"})

#: An amount, and for how many seconds it is held: from now, or from when it is taken.
Hold = tuple[float, int]


def one_more(
    state: State, live: LiveAction, why: WaitDetails, starts_in_seconds: float | None
) -> ExtraUnitsEffect | None:
    """Return what more of ``why.resource`` would change for ``live``, whose forecast start is given."""
    resource = ResourceId(why.resource or "")
    if starts_in_seconds is None or why.code not in _CURED or resource not in state.ledgers:
        return None
    if resource in state.paced or live.queue is None:
        return None
    wanted = wanted_of(state, state.queues[live.queue], resource)
    ahead = ahead_of(state, live, resource)
    if not wanted or ahead is None:
        return None
    free = _free(state, resource, wanted)
    ends = [
        (residual_seconds(state, other), _held(other, resource))
        for other in holding(state, resource)
    ]
    more = _step(resource, wanted)
    as_it_is, with_more = (play(free + extra, ends, ahead, wanted) for extra in (0, more))
    if as_it_is is None or with_more is None:
        return None
    sooner = min(as_it_is - with_more, starts_in_seconds)
    start = starts_in_seconds - sooner
    missing = max(0, wanted + sum(amount for _, amount in ahead) - free)
    return ExtraUnitsEffect(
        units=units(more),
        sooner_seconds=round(sooner, 3),
        starts_in_seconds=round(start, 3),
        ends_in_seconds=round(start + expected_seconds(state, live), 3),
        missing=units(missing),
    )


def play(free: int, running: Iterable[Hold], ahead: Iterable[Hold], wanted: int) -> float | None:
    """Return in how many seconds ``wanted`` is free for who comes after ``ahead``; None: never.

    ``running`` says what is held and for how much longer, ``ahead`` what those before it, in order,
    take and for how long. Amounts are of one resource, in any unit.
    """
    ends = list(running)
    heapify(ends)
    now = 0.0
    for seconds, amount in (*ahead, (0.0, wanted)):
        while free < amount:
            if not ends:
                return None
            now, freed = heappop(ends)
            free += freed
        free -= amount
        heappush(ends, (now + seconds, amount))
    return now


def ahead_of(state: State, live: LiveAction, resource: ResourceId) -> list[Hold] | None:
    """Return what is taken before ``live``, in order; None where playing it costs too much."""
    lines = [(queue, wanted_of(state, queue, resource)) for queue in state.queues.values()]
    lines = [(queue, wanted) for queue, wanted in lines if wanted]
    if sum(queue.size for queue, _ in lines) > LONGEST:
        return None
    before = [
        (other.order, expected_seconds(state, other), wanted)
        for queue, wanted in lines
        for other in queue.in_order()
        if other.order < live.order
    ]
    return [(seconds, wanted) for _, seconds, wanted in sorted(before)]


def _held(live: LiveAction, resource: ResourceId) -> int:
    return sum(held.amount for held in live.allocations if held.resource == resource)


def _free(state: State, resource: ResourceId, wanted: int) -> int:
    """Return what is free; GPUs in pieces too small for a chunk of ``wanted`` are not."""
    ledger = state.ledgers[resource]
    in_pieces = ledger.free >= wanted and not ledger.fits((wanted,))
    return 0 if in_pieces else ledger.free


def _step(resource: ResourceId, wanted: int) -> int:
    """Return how much more is asked about: of GPUs a chunk, since one of them may be of no use."""
    return wanted if resource.startswith("gpu:") else MILLI
