"""Order of nodes: those of each pool by load, least loaded first, kept sorted while loads change.

An admission takes the first node where an action fits. With a thousand nodes, sorting them for each would take 90 % of the
scheduler's time; here a change of load moves one node.

A node is *touched* when its load or its pool may have changed; touched nodes are placed again before the next question. Ledgers of
memory and cores touch their node (`ObservedLedger`). A node with another ledger is placed again at each question.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scheduler.core.state.live import LiveNode

#: Share of memory that is held, share of cores, name: the sort key.
Load = tuple[float, float, str]
#: Kinds of resources that a load counts.
KINDS = ("memory", "cpu")


@dataclass(slots=True)
class _OrderedPool:
    """Sorted loads, and the node of each."""

    loads: list[Load] = field(default_factory=list)
    nodes: list[LiveNode] = field(default_factory=list)


class NodeOrder:
    """Sorted nodes of each pool."""

    def __init__(self, load: Callable[[str], Load]) -> None:
        self._load = load
        self._pools: dict[str, _OrderedPool] = {}
        #: Node → its pool, and its load there.
        self._placed: dict[str, tuple[str, Load]] = {}
        self._touched: set[str] = set()
        #: Nodes with a ledger that does not call back.
        self.unobserved: set[str] = set()

    def touch(self, node: str) -> None:
        """Place ``node`` again before the next question."""
        self._touched.add(node)

    def of(self, pool: str, nodes: Mapping[str, LiveNode]) -> list[LiveNode]:
        """Return a copy of the nodes of ``pool``, least loaded first. ``nodes``: all that there are."""
        if self._touched or self.unobserved:
            for name in self._touched | self.unobserved:
                self._place(name, nodes.get(name))
            self._touched.clear()
        found = self._pools.get(pool)
        return [] if found is None else found.nodes.copy()

    def _place(self, name: str, node: LiveNode | None) -> None:
        before = self._placed.pop(name, None)
        if before is not None:
            pool, load = before
            order = self._pools[pool]
            at = bisect_left(order.loads, load)
            del order.loads[at], order.nodes[at]
        if node is not None:
            pool, load = node.inventory.pool, self._load(name)
            self._placed[name] = pool, load
            order = self._pools.setdefault(pool, _OrderedPool())
            at = bisect_left(order.loads, load)
            order.loads.insert(at, load)
            order.nodes.insert(at, node)
