"""Live actions: how many are where, and which wait longest."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
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
    #: Where it is counted.
    standing: Standing
    kind: Kind | None = None
    trajectory: str | None = None
    cost: Cost = {}
    state: ActionState = ActionState.QUEUED
    attempt: int = 0
    node: str | None = None
    allocations: tuple[Allocation, ...] = ()


@dataclass
class Standing:
    """The live actions of one project in one pool, by state."""

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

    def enter(self, live: Live) -> None:
        """Count an action in its state."""
        if live.state is ActionState.QUEUED:
            self.queued += 1
        elif live.state is ActionState.GRANTED:
            self.granted += 1
        else:
            self.running += 1

    def leave(self, live: Live) -> None:
        """Count it there no more."""
        if live.state is ActionState.QUEUED:
            self.queued -= 1
            if self.waiting.pop(live.id, None) is None:
                del self.returned[live.id]
        elif live.state is ActionState.GRANTED:
            self.granted -= 1
        else:
            self.running -= 1


class Together:
    """Several standings as one: those of a pool, of a project, or all."""

    def __init__(self, standings: Collection[Standing]) -> None:
        self._standings = standings

    def counts(self) -> dict[str, int]:
        """Return how many actions are in which state."""
        return {
            "queued": sum(each.queued for each in self._standings),
            "granted": sum(each.granted for each in self._standings),
            "running": sum(each.running for each in self._standings),
        }

    def rate(self, *, finished: bool) -> float:
        """Return submissions or ends a second, over the last full seconds."""
        seconds = max((len(each.rates) for each in self._standings), default=0)
        passed = sum(second[finished] for each in self._standings for second in each.rates)
        return passed / max(1, seconds)

    def oldest(self, count: int) -> list[Live]:
        """Return the queued actions that arrived first."""
        lines = [islice(each.oldest(), count) for each in self._standings]
        return list(islice(merge(*lines, key=_arrival), count))


def _arrival(live: Live) -> int:
    return live.arrival


class Population:
    """All live actions, by id; counted by pool and project, one standing for each pair there is."""

    def __init__(self) -> None:
        self.actions: dict[ActionId, Live] = {}
        self._standings: dict[tuple[str, str], Standing] = {}
        self._arrivals = 0

    @property
    def pools(self) -> set[str]:
        """Pools that somebody has named."""
        return {pool for pool, _ in self._standings}

    def pool(self, name: str) -> Together:
        """Return how a pool stands."""
        return Together([each for (pool, _), each in self._standings.items() if pool == name])

    def project(self, name: str) -> Together:
        """Return how a project stands."""
        return Together([each for (_, of), each in self._standings.items() if of == name])

    @property
    def everything(self) -> Together:
        """How all of it stands."""
        return Together(self._standings.values())

    def submit(self, action: Action, pool: str, submitted_at: float) -> None:
        """Let an action wait in ``pool``."""
        live = self._make(action.id, action.project, action.task, pool, submitted_at)
        live.kind = action.kind
        live.trajectory = action.trajectory
        live.cost = action.cost
        standing = live.standing
        standing.submitted += 1
        standing.queued += 1
        standing.waiting[action.id] = live

    def adopt(self, action_id: ActionId, pool: str, at: float) -> Live:
        """Enter an action of which only the grant is known."""
        live = self._make(action_id, "", "", pool, at)
        live.state = ActionState.GRANTED
        live.standing.granted += 1
        return live

    def part(self, project: str) -> Population:
        """Return the live actions of one project, as copies, in the order of their arrival."""
        part = Population()
        for (pool, of), standing in self._standings.items():
            if of == project:
                part._standings[pool, of] = Standing(
                    submitted=standing.submitted,
                    finished=standing.finished,
                    rates=standing.rates.copy(),
                )
        for live in self.actions.values():
            if live.project == project:
                part._take_over(live)
        part._arrivals = self._arrivals
        return part

    def _take_over(self, live: Live) -> None:
        standing = self._standings[live.pool, live.project]
        copy = self.actions[live.id] = msgspec.structs.replace(live, standing=standing)
        standing.enter(copy)
        if copy.state is ActionState.QUEUED:
            standing.waiting[copy.id] = copy

    @staticmethod
    def move(live: Live, to: ActionState) -> None:
        """Count a live action in another state."""
        live.standing.leave(live)
        live.state = to
        live.standing.enter(live)
        if to is ActionState.QUEUED:
            live.standing.returned[live.id] = live

    def finish(self, live: Live) -> None:
        """Forget an action that is over."""
        del self.actions[live.id]
        live.standing.finished += 1
        live.standing.leave(live)

    def advance(self) -> None:
        """Begin the next second."""
        for each in self._standings.values():
            each.rates.append((each.submitted, each.finished))
            each.submitted = each.finished = 0

    def _make(self, action_id: ActionId, project: str, task: str, pool: str, at: float) -> Live:
        self._arrivals += 1
        standing = self._standings.get((pool, project))
        if standing is None:
            standing = self._standings[pool, project] = Standing()
        live = Live(action_id, project, task, pool, self._arrivals, at, standing)
        self.actions[action_id] = live
        return live
