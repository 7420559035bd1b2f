"""Wait queues: actions that can only be admitted alike stand in one line.

Two queued actions with the same pool, place and minimum needs fit or do not fit together, so a
cycle looks at the head of each line alone (after Kueue's scheduling-equivalence classes). A line
is a list by (-priority, arrival): most come last, and so at its end. Leaving a line is lazy: an entry
counts only while its action says that it stands in this very line, at this very place; the others
are swept out when they are the majority, or when somebody wants to see more than the head.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from domain.ids import ActionId, ResourceId, node_resource
from scheduler.core.state.demand import Needs

if TYPE_CHECKING:
    from scheduler.core.state.model import LiveAction, Order

#: A line shorter than this is not worth sweeping.
_SWEEP_FROM = 64


Need = tuple[ResourceId, int]


class QueueKey(NamedTuple):
    """What makes actions equal for admission."""

    pool: str
    #: The node the trajectory is bound to; None: any node of the pool, or none at all.
    node: str | None
    needs: Needs
    #: Memory to reserve with the first grant of a trajectory.
    memory_bytes: int = 0
    #: The paused task whose line it is; empty for everybody else.
    held: str = ""


#: Makes such a key, or hands out the one that was made before: what is equal is then also the same,
#: and found without comparing its parts.
queue_key: Final = lru_cache(maxsize=4096)(QueueKey)


class WaitReason(NamedTuple):
    """Why the head of a line was not admitted in the last cycle."""

    code: str
    #: What it waits for: a resource, or the node or pool that takes nobody.
    subject: str | None = None
    blocked_by: ActionId | None = None


class WaitQueue:
    """One line."""

    __slots__ = (
        "_first", "_members", "_on_node", "_units_on", "in_cluster", "key", "lone", "reason", "size",
        "sticky_node",
    )  # fmt: skip

    def __init__(self, key: QueueKey) -> None:
        self.key = key
        self.reason: WaitReason | None = None
        #: Node for which the present head saves up units; keeps it from starving.
        self.sticky_node: str | None = None
        self.size = 0
        #: What each of its actions takes of cluster-wide resources.
        self.in_cluster: list[Need] = [(ResourceId(name), n) for name, n in key.needs.in_cluster]
        #: The one thing that each of its actions takes, when that is of the cluster.
        self.lone: Need | None = None
        if len(self.in_cluster) == 1 and not key.needs.on_node and not key.memory_bytes:
            self.lone = self.in_cluster[0]
        self._on_node: dict[str, list[Need]] = {}
        self._units_on: dict[str, list[Need]] = {}
        #: Rising by order; nobody before `_first` is in line any more.
        self._members: list[tuple[Order, LiveAction]] = []
        self._first = 0

    def on_node(self, node: str) -> list[Need]:
        """Return what each of its actions takes on ``node``."""
        needs = self._on_node.get(node)
        if needs is None:
            needs = [(node_resource(kind, node), amount) for kind, amount in self.key.needs.on_node]
            if self.key.memory_bytes:
                needs.append((node_resource("memory", node), self.key.memory_bytes))
            self._on_node[node] = needs
        return needs

    def units_on(self, node: str | None) -> list[Need]:
        """Return what each of its actions is granted on ``node``, if on any, and cluster-wide."""
        if node is None:
            return self.in_cluster
        needs = self._units_on.get(node)
        if needs is None:
            on_node = [(node_resource(kind, node), n) for kind, n in self.key.needs.on_node]
            needs = self._units_on[node] = self.in_cluster + on_node
        return needs

    def push(self, live: LiveAction) -> None:
        """Put ``live`` at its place by order."""
        live.queue = self.key
        live.needs = self.key.needs  # equal; one of them is enough to keep
        self.size += 1
        members, order = self._members, live.order
        if not members or members[-1][0] < order:
            members.append((order, live))
        else:
            self._insert(order, live)
        if len(members) > max(_SWEEP_FROM, 2 * self.size):
            self._sweep()

    def _insert(self, order: Order, live: LiveAction) -> None:
        members = self._members
        place = bisect_left(members, (order,))
        if place < len(members) and members[place][0] == order:
            members[place] = order, live  # it left and comes back: nobody else has this order
        else:
            members.insert(place, (order, live))
        self._first = min(self._first, place)

    def _sweep(self) -> None:
        """Forget the entries of all who have left."""
        if len(self._members) != self.size:
            key = self.key
            self._members = [
                entry
                for entry in self._members
                if entry[1].queue is key and entry[1].order == entry[0]
            ]
            self._first = 0

    def leave(self, live: LiveAction) -> None:
        """Take ``live`` out, wherever it stands."""
        live.queue = None
        self.size -= 1

    @property
    def out_of_share(self) -> bool:
        """Its actions wait for the share of their project: units that are free are not for them."""
        return self.reason is not None and self.reason.code == "share"

    def head(self) -> LiveAction | None:
        """Return who is next."""
        members, first, key = self._members, self._first, self.key
        while first < len(members):
            order, live = members[first]
            # Who left and came back with another priority is here twice; its order says where.
            if live.queue is key and order == live.order:
                self._first = first
                return live
            first += 1
        members.clear()
        self._first = 0
        return None

    def ahead_of(self, order: Order) -> int:
        """Count who is served before ``order``."""
        self._sweep()
        return bisect_left(self._members, (order,))

    def in_order(self, first: int = 0, most: int | None = None, every: int = 1) -> list[LiveAction]:
        """Return who is in line, first come first: ``most`` at most, each ``every``-th from ``first``."""
        self._sweep()
        end = None if most is None else first + most * every
        return [live for _, live in self._members[first:end:every]]
