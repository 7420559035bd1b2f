"""Wait queues: actions that can only be admitted alike stand in one line.

Two queued actions with the same pool, place and minimum needs fit or do not fit together, so a
cycle looks at the head of each line alone (after Kueue's scheduling-equivalence classes). A line
is a heap by (-priority, arrival). Leaving a line is lazy: an entry counts only while its action
says that it stands in this very line, and the dead ones are swept out when they are the majority.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from domain.ids import ActionId, ResourceId, node_resource
from scheduler.core.needs import Needs

if TYPE_CHECKING:
    from scheduler.core.state import LiveAction, Order

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


class WaitReason(NamedTuple):
    """Why the head of a line was not admitted in the last cycle."""

    code: str
    #: What it waits for: a resource, or the node or pool that takes nobody.
    subject: str | None = None
    blocked_by: ActionId | None = None


class WaitQueue:
    """One line."""

    __slots__ = (
        "_heap", "_on_node", "_units_on", "in_cluster", "key", "lone", "reason", "size",
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
        self._heap: list[tuple[Order, LiveAction]] = []

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
        heappush(self._heap, (live.order, live))
        if len(self._heap) > max(_SWEEP_FROM, 2 * self.size):
            self._heap = [(member.order, member) for member in self.waiting()]
            heapify(self._heap)

    def leave(self, live: LiveAction) -> None:
        """Take ``live`` out, wherever it stands."""
        live.queue = None
        self.size -= 1

    @property
    def out_of_share(self) -> bool:
        """Its actions wait for the share of their project: units that are free are not for them."""
        return self.reason is not None and self.reason.code == "share"

    def head(self) -> LiveAction | None:
        """Return who is next; forgets entries that have left."""
        heap = self._heap
        while heap:
            placed, live = heap[0]
            # Who left and came back with another priority is here twice; its order says where.
            if live.queue is self.key and placed is live.order:
                return live
            heappop(heap)
        return None

    def ahead_of(self, order: Order) -> int:
        """Count who is served before ``order``: one plain pass, tens of nanoseconds each."""
        key = self.key
        orders = [placed for placed, live in self._heap if live.queue is key]
        if len(orders) != self.size:  # somebody left and came back, and is here twice
            orders = [live.order for live in self.waiting()]
        return sum([placed < order for placed in orders])

    def in_order(self) -> list[LiveAction]:
        """Return everybody in line, first come first."""
        return sorted(self.waiting(), key=attrgetter("order"))

    def first_ones(self) -> Iterator[LiveAction]:
        """Yield everybody in line, first come first; who is not asked for costs nothing."""
        heap, key, last = self._heap, self.key, None
        ahead = [(heap[0][0], 0)] if heap else []
        while ahead:
            _, place = heappop(ahead)
            live = heap[place][1]
            if live.queue is key and live is not last:  # who left and came back is here twice
                last = live
                yield live
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(heap):
                    heappush(ahead, (heap[child][0], child))

    def waiting(self) -> list[LiveAction]:
        """Return everybody in line, in no particular order."""
        return list({live.id: live for _, live in self._heap if live.queue is self.key}.values())
