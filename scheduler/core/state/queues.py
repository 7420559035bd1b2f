"""Wait queues: actions that can only be admitted alike share a queue.

Two queued actions with the same pool, node and minimum needs fit or do not fit together, so a
cycle examines the head of each queue alone (after Kueue's scheduling-equivalence classes). A queue
is a list sorted by (-priority, arrival): most actions arrive last, and so are appended. Removal is
lazy: an entry counts only while its action names this queue and this order; stale entries are swept
when they are the majority, or when more than the head is read.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from domain.ids import ActionId, ResourceId, node_resource
from scheduler.core.state.demand import Need, QueueKey
from scheduler.core.state.live import LiveAction, Order

#: A shorter queue is never swept.
_SWEEP_FROM: Final = 64
#: Empty queues that are kept for reuse.
_RETIRED_KEPT: Final = 1024


class WaitReason(NamedTuple):
    """Why the head of a queue was not admitted in the last cycle."""

    code: str
    #: What it waits for: a resource, or the node or pool that takes no actions.
    subject: str | None = None
    blocked_by: ActionId | None = None


class WaitQueue:
    """One queue, sorted by `Order`."""

    __slots__ = (
        "_first", "_members", "_on_node", "_units_on", "in_cluster", "key", "lone", "reason", "size",
        "sticky_node",
    )  # fmt: skip

    def __init__(self, key: QueueKey) -> None:
        self.key = key
        self.reason: WaitReason | None = None
        #: Node on which the head reserves units until it fits; keeps it from starving.
        self.sticky_node: str | None = None
        self.size = 0
        #: What each of its actions takes of cluster-wide resources.
        self.in_cluster: list[Need] = [(ResourceId(name), n) for name, n in key.needs.in_cluster]
        #: The only need of each of its actions, when that is cluster-wide.
        self.lone: Need | None = None
        if len(self.in_cluster) == 1 and not key.needs.on_node and not key.memory_bytes:
            self.lone = self.in_cluster[0]
        self._on_node: dict[str, list[Need]] = {}
        self._units_on: dict[str, list[Need]] = {}
        #: Rising by order; entries before `_first` are stale.
        self._members: list[tuple[Order, LiveAction]] = []
        self._first = 0

    def on_node(self, node: str) -> list[Need]:
        """Return the needs of each of its actions on ``node``, memory included."""
        needs = self._on_node.get(node)
        if needs is None:
            needs = [(node_resource(kind, node), amount) for kind, amount in self.key.needs.on_node]
            if self.key.memory_bytes:
                needs.append((node_resource("memory", node), self.key.memory_bytes))
            self._on_node[node] = needs
        return needs

    def units_on(self, node: str | None) -> list[Need]:
        """Return the units that each of its actions is granted on ``node``, if on any, and cluster-wide."""
        if node is None:
            return self.in_cluster
        needs = self._units_on.get(node)
        if needs is None:
            on_node = [(node_resource(kind, node), n) for kind, n in self.key.needs.on_node]
            needs = self._units_on[node] = self.in_cluster + on_node
        return needs

    def push(self, live: LiveAction) -> None:
        """Insert ``live`` by its order."""
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
            members[place] = order, live  # it left and returns: orders are unique
        else:
            members.insert(place, (order, live))
        self._first = min(self._first, place)

    def _sweep(self) -> None:
        """Drop stale entries."""
        if len(self._members) != self.size:
            key = self.key
            self._members = [
                entry
                for entry in self._members
                if entry[1].queue is key and entry[1].order == entry[0]
            ]
            self._first = 0

    def remove(self, live: LiveAction) -> None:
        """Remove ``live``, wherever it is."""
        live.queue = None
        self.size -= 1

    @property
    def out_of_share(self) -> bool:
        """Its actions wait for their project's share: they cannot use free units."""
        return self.reason is not None and self.reason.code == "share"

    def head(self) -> LiveAction | None:
        """Return the first action; None for an empty queue."""
        members, first, key = self._members, self._first, self.key
        while first < len(members):
            order, live = members[first]
            # An action that returned with another priority has two entries; its order names the valid one.
            if live.queue is key and order == live.order:
                self._first = first
                return live
            first += 1
        members.clear()
        self._first = 0
        return None

    def ahead_of(self, order: Order) -> int:
        """Count the actions served before ``order``."""
        self._sweep()
        return bisect_left(self._members, (order,))

    def in_order(self, first: int = 0, most: int | None = None, every: int = 1) -> list[LiveAction]:
        """Return the actions in order: each ``every``-th from ``first`` on, ``most`` of them at most."""
        self._sweep()
        end = None if most is None else first + most * every
        return [live for _, live in self._members[first:end:every]]


class Deferral(NamedTuple):
    """Evicted candidates of one group; the policy does not decide about them again before ``until``."""

    #: When the first action that holds the resource is predicted to end.
    until: float
    #: The first one that was evicted; the group from there on waits with it.
    first: Order


@dataclass(slots=True)
class Queues:
    """All wait queues, and the candidates that policies have deferred."""

    active: dict[QueueKey, WaitQueue] = field(default_factory=dict)
    #: Empty queues, kept for what they have computed from their key; not part of a snapshot.
    retired: dict[QueueKey, WaitQueue] = field(default_factory=dict)
    #: By key resource.
    deferrals: dict[ResourceId, Deferral] = field(default_factory=dict)

    def push(self, live: LiveAction, key: QueueKey) -> WaitQueue:
        """Insert ``live`` into the queue ``key``, which is created if there is none."""
        queue = self.active.get(key)
        if queue is None:
            queue = self.retired.pop(key, None) or WaitQueue(key)
            self.active[key] = queue
        queue.push(live)
        return queue

    def retire(self, key: QueueKey) -> None:
        """Remove an empty queue."""
        queue = self.active.pop(key)
        queue.reason = queue.sticky_node = None
        if len(self.retired) >= _RETIRED_KEPT:
            self.retired.clear()
        self.retired[queue.key] = queue

    def forget_node(self, name: str) -> None:
        """Remove the queues of a node that is removed, and the reasons that may refer to it."""
        for key in [key for key in self.active if key.node == name]:
            del self.active[key]  # it is empty: only trajectories with an environment there used it
        for key in [key for key in self.retired if key.node == name]:
            del self.retired[key]
        self.forget_reasons()
        for queue in self.active.values():
            if queue.sticky_node == name:
                queue.sticky_node = None
        self.deferrals.clear()

    def forget_reasons(self) -> None:
        """Let the next cycle find every reason again; cached ones may be outdated."""
        for queue in self.active.values():
            queue.reason = None

    def defer(self, key: ResourceId, until: float, first: Order) -> float:
        """Defer the group ``key`` from the order ``first`` on; return until when.

        It may be deferred already, by another pool or an earlier scan of the cycle: the earlier
        values count.
        """
        before = self.deferrals.get(key)
        if before is not None:
            until, first = min(until, before.until), min(first, before.first)
        self.deferrals[key] = Deferral(until, first)
        return until

    def reconsider(self, key: QueueKey) -> None:
        """End the deferrals of groups that the queue ``key`` belongs to: its members changed."""
        wanted = key.needs.key
        for resource in list(self.deferrals):
            kind, _, node = resource.partition(":")
            if wanted == resource or (wanted == kind and key.node in (None, node)):
                del self.deferrals[resource]
