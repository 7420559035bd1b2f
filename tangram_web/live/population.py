"""Live actions: how many are where, and which wait longest."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import Final

import msgspec

from domain.action import Action, ActionState, Kind
from domain.allocation import Allocation
from domain.ids import ActionId
from domain.resources import Cost

#: Seconds behind the rates of a pool.
RATE_SECONDS: Final = 5


class Live(msgspec.Struct):
    """An action between its submission and its `Finish`."""

    id: ActionId
    project: str
    task: str
    pool: str
    #: Counts submissions; older actions have smaller ones.
    arrival: int
    #: Journal time at which the action was accepted.
    submitted_at: float
    kind: Kind | None = None
    trajectory: str | None = None
    cost: Cost = {}
    state: ActionState = ActionState.QUEUED
    attempt: int = 0
    node: str | None = None
    allocations: tuple[Allocation, ...] = ()


@dataclass
class PoolStanding:
    """The live actions of one pool, by state."""

    queued: int = 0
    granted: int = 0
    running: int = 0
    #: Of the second that is not over yet.
    submitted: int = 0
    finished: int = 0
    #: Queued actions in order of arrival; those that were sent back wait apart.
    waiting: dict[ActionId, Live] = field(default_factory=dict)
    returned: dict[ActionId, Live] = field(default_factory=dict)
    rates: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RATE_SECONDS))

    def oldest(self) -> Iterator[Live]:
        """Yield the queued actions, the one that arrived first first."""
        returned = sorted(self.returned.values(), key=_arrival)
        return merge(self.waiting.values(), returned, key=_arrival)

    def rate(self, finished: bool) -> float:
        """Return submissions or ends a second, over the last full seconds."""
        return sum(second[finished] for second in self.rates) / max(1, len(self.rates))


def _arrival(live: Live) -> int:
    return live.arrival


class Population:
    """All live actions, by id and by pool."""

    def __init__(self) -> None:
        self.actions: dict[ActionId, Live] = {}
        self.pools: dict[str, PoolStanding] = {}
        self._arrivals = 0

    def pool(self, name: str) -> PoolStanding:
        """Return the standing of a pool, new if nobody has named it yet."""
        standing = self.pools.get(name)
        if standing is None:
            standing = self.pools[name] = PoolStanding()
        return standing

    def submit(self, action: Action, pool: str, submitted_at: float) -> None:
        """Let an action wait in ``pool``."""
        live = self._enter(action.id, action.project, action.task, pool, submitted_at)
        live.kind = action.kind
        live.trajectory = action.trajectory
        live.cost = action.cost
        standing = self.pool(pool)
        standing.submitted += 1
        standing.queued += 1
        standing.waiting[action.id] = live

    def adopt(self, action_id: ActionId, pool: str, at: float) -> Live:
        """Enter an action of which only the grant is known."""
        live = self._enter(action_id, "", "", pool, at)
        live.state = ActionState.GRANTED
        self.pool(pool).granted += 1
        return live

    def move(self, live: Live, to: ActionState) -> None:
        """Count a live action in another state."""
        standing = self.pools[live.pool]
        self._leave(standing, live)
        live.state = to
        if to is ActionState.QUEUED:
            standing.queued += 1
            standing.returned[live.id] = live
        elif to is ActionState.GRANTED:
            standing.granted += 1
        else:
            standing.running += 1

    def finish(self, live: Live) -> None:
        """Forget an action that is over."""
        del self.actions[live.id]
        standing = self.pools[live.pool]
        standing.finished += 1
        self._leave(standing, live)

    def totals(self) -> dict[str, int]:
        """Return how many actions are in which state, over all pools."""
        pools = self.pools.values()
        return {
            "queued": sum(pool.queued for pool in pools),
            "granted": sum(pool.granted for pool in pools),
            "running": sum(pool.running for pool in pools),
        }

    def oldest(self, count: int) -> list[Live]:
        """Return the queued actions that arrived first."""
        lines = [islice(pool.oldest(), count) for pool in self.pools.values()]
        return list(islice(merge(*lines, key=_arrival), count))

    def advance(self) -> None:
        """Begin the next second."""
        for pool in self.pools.values():
            pool.rates.append((pool.submitted, pool.finished))
            pool.submitted = pool.finished = 0

    def _enter(self, action_id: ActionId, project: str, task: str, pool: str, at: float) -> Live:
        self._arrivals += 1
        live = Live(action_id, project, task, pool, self._arrivals, at)
        self.actions[action_id] = live
        return live

    @staticmethod
    def _leave(standing: PoolStanding, live: Live) -> None:
        if live.state is ActionState.QUEUED:
            standing.queued -= 1
            if standing.waiting.pop(live.id, None) is None:
                del standing.returned[live.id]
        elif live.state is ActionState.GRANTED:
            standing.granted -= 1
        else:
            standing.running -= 1
