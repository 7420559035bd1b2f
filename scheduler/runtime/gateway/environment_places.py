"""Places of environments: trajectory → node that holds its environment, by the journal.

A cache: grants fill it, removals and lost nodes empty it, and a query of the scheduler loop is the authority
for what it does not hold. It also holds the node of each running action.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from typing import Final, TypeVar

from domain.decisions import EndMove, Finish, ForkEnvironment, Grant, RemoveEnvironment
from domain.ids import ActionId, TrajectoryKey, trajectory_key

#: Trajectories and actions in the cache.
MOST: Final = 65_536

Key = TypeVar("Key", bound=str)


class EnvironmentPlaces:
    """Nodes of environments and of actions."""

    def __init__(self) -> None:
        self._nodes: OrderedDict[TrajectoryKey, str] = OrderedDict()
        self._actions: OrderedDict[ActionId, str] = OrderedDict()
        self._waiters: dict[ActionId, list[asyncio.Future[str]]] = defaultdict(list)
        #: Trajectories that this process has finished, until it reads that in the journal.
        self._closing: set[TrajectoryKey] = set()

    def granted(self, grant: Grant) -> None:
        """Record where an action runs, and its environment is."""
        if grant.node is None:
            return
        self._actions[grant.action_id] = grant.node
        if len(self._actions) > MOST:
            self._actions.popitem(last=False)
        if grant.action_id in self._waiters:
            for waiter in self._waiters.pop(grant.action_id):
                if not waiter.done():
                    waiter.set_result(grant.node)
        if grant.trajectory is not None:
            self.found(trajectory_key(grant.project, grant.trajectory), grant.node)

    def forked(self, fork: ForkEnvironment) -> None:
        """Record where the forks of an environment will be."""
        for child in fork.children:
            self.found(child, fork.node)

    def moved(self, end: EndMove) -> None:
        """Record where a trajectory lives on after a move."""
        if end.lives_on:
            self.found(end.trajectory, end.lives_on)

    def finished(self, finish: Finish) -> None:
        """Drop an action that has ended."""
        self._actions.pop(finish.action_id, None)

    def removed(self, removal: RemoveEnvironment) -> None:
        """Drop an environment that is being removed."""
        self._nodes.pop(removal.trajectory, None)

    def close(self, trajectory: TrajectoryKey) -> None:
        """Drop a trajectory that is being finished; grants before that, read later, do not find it again."""
        self._nodes.pop(trajectory, None)
        self._closing.add(trajectory)

    def closed(self, trajectory: TrajectoryKey) -> None:
        """Drop a trajectory whose end is in the journal."""
        self._nodes.pop(trajectory, None)
        self._closing.discard(trajectory)

    def found(self, trajectory: TrajectoryKey, node: str) -> None:
        """Record what the scheduler loop answered."""
        if trajectory not in self._closing:
            _record(self._nodes, trajectory, node)

    def forget(self, trajectory: TrajectoryKey) -> None:
        """Drop a trajectory whose node does not hold it any more."""
        self._nodes.pop(trajectory, None)

    def clear(self) -> None:
        """Drop all: an entry of the journal could not be read."""
        self._nodes.clear()
        self._actions.clear()
        self._closing.clear()

    def of(self, trajectory: TrajectoryKey) -> str | None:
        """Return the node of an environment; None when it is not in the cache."""
        return self._nodes.get(trajectory)

    def grant_of(self, action_id: ActionId) -> asyncio.Future[str]:
        """Return a future of the node of an action; `discard` it when it is not needed any more."""
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        node = self._actions.get(action_id)
        if node is not None:
            future.set_result(node)
        else:
            self._waiters[action_id].append(future)
        return future

    def discard(self, action_id: ActionId, future: asyncio.Future[str]) -> None:
        """Drop a future; idempotent."""
        waiting = self._waiters.get(action_id, [])
        if future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._waiters[action_id]


def _record(cache: OrderedDict[Key, str], key: Key, node: str) -> None:
    cache[key] = node
    cache.move_to_end(key)
    if len(cache) > MOST:
        cache.popitem(last=False)
