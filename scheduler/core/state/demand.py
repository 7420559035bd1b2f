"""Demand: the amounts an action is admitted with, its queue key, and whether it can ever fit.

A resource of a cost is *cluster-wide* when the configuration declares it (``api:search``), else it
belongs to nodes (``cpu``), and all node resources of one action come from the same node.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from domain.action import LEASE, Action
from domain.chunks import CHUNKED, whole_chunk
from domain.errors import InvalidRequest, NeverFits
from domain.ids import ResourceId
from domain.inventory import Config, NodeInventory
from domain.resources import MILLI, Cost, UnitSet, units

#: A resource and an amount of it, in milli-units (bytes for memory).
Need = tuple[ResourceId, int]


class Needs(NamedTuple):
    """Amounts that an action is admitted with: sorted (name, amount) pairs. Equal needs share a queue."""

    on_node: tuple[tuple[str, int], ...]
    in_cluster: tuple[tuple[str, int], ...]
    #: The action runs on a node even when it takes nothing there.
    wants_node: bool
    #: Resource whose units a policy may arrange; empty when there is none in whole units.
    key: str = ""
    #: Project whose share is charged; empty where projects share nothing of it.
    project: str = ""
    #: What it uses of the memory that units keep between actions (`residency`); empty for nothing.
    resident: str = ""
    #: Memory of each unit that the resident needs; 0 where that is unknown.
    unit_memory_bytes: int = 0

    @property
    def key_in_cluster(self) -> bool:
        """The key resource is cluster-wide."""
        key = self.key
        for name, _ in self.in_cluster:  # noqa: SIM110  (for every action, a generator costs more)
            if name == key:
                return True
        return False

    @property
    def key_amount(self) -> int:
        """Milli-units of the key resource; 0 without one."""
        key = self.key
        for name, amount in self.on_node:
            if name == key:
                return amount
        for name, amount in self.in_cluster:
            if name == key:
                return amount
        return 0


class QueueKey(NamedTuple):
    """What makes actions equal for admission."""

    pool: str
    #: Node of the trajectory's environment; None: any node of the pool, or no node at all.
    node: str | None
    needs: Needs
    #: Memory to reserve with the first grant of a trajectory.
    memory_bytes: int = 0
    #: The paused task whose queue this is; empty otherwise.
    held: str = ""


#: Return such a key, the same object for equal parts: then it is found without comparing its parts.
queue_key: Final = lru_cache(maxsize=4096)(QueueKey)


def needs_of(
    action: Action,
    config: Config,
    most: Callable[[str], int],
    admits_at: Callable[[str, UnitSet], int],
) -> Needs:
    """Return the needs of ``action``: the smallest counts, except for its key resource.

    ``most`` says how many milli-units of a resource there are in one place; ``admits_at``
    says with which count of its key resource the policy admits it.
    """
    on_node: list[tuple[str, int]] = []
    in_cluster: list[tuple[str, int]] = []
    key = key_resource_of(action, most)
    for name in sorted(action.cost):
        target = in_cluster if name in config.resources else on_node
        counts = action.cost[name]
        amount = admits_at(name, counts) if name == key else counts[0]
        if amount > counts[0]:  # never a count that no place has
            limit = most(name)
            amount = admits_at(name, tuple(n for n in counts if n <= limit) or counts[:1])
        target.append((name, amount))
    wants_node = bool(on_node) or action.kind is not LEASE
    return Needs(tuple(on_node), tuple(in_cluster), wants_node, key)


def plain_needs_of(action: Action, config: Config) -> Needs:
    """Return the needs of an action for which `depends_on_place` is false, as it is for most."""
    wants_node = action.kind is not LEASE
    for name, (amount,) in action.cost.items():
        return _of_one(name, amount, name in config.resources, wants_node)
    return Needs((), (), wants_node)


@lru_cache(maxsize=1024)
def _of_one(name: str, amount: int, in_cluster: bool, wants_node: bool) -> Needs:
    """Return the needs of an action that takes ``amount`` of ``name`` alone; there are few such."""
    key = name if amount >= MILLI else ""
    if in_cluster:
        return Needs((), ((name, amount),), wants_node, key)
    return Needs(((name, amount),), (), True, key)


def depends_on_place(action: Action) -> bool:
    """Return whether the needs of ``action`` may differ between nodes."""
    cost = action.cost
    if len(cost) == 1:
        (counts,) = cost.values()
        return len(counts) > 1
    return bool(cost)


def key_resource_of(action: Action, most: Callable[[str], int]) -> str:
    """Return the key resource: the declared one, else the only elastic one, else the scarcest.

    Scarcest: the one whose smallest count is the largest share of what there is in one place. Empty
    when there is no cost, and for light actions: they share units, which policies do not arrange.
    """
    cost = action.cost
    if action.key in cost:
        key = action.key or ""
    elif len(cost) <= 1:
        key = next(iter(cost), "")
    else:
        several = [name for name in cost if len(cost[name]) > 1]
        names = several if len(several) == 1 else sorted(cost)
        key = max(names, key=lambda name: cost[name][0] / max(1, most(name)))
    return key if key and cost[key][0] >= MILLI else ""


class PoolCapacity(NamedTuple):
    """Capacities of the nodes of one pool; one entry per node."""

    nodes: tuple[dict[str, int], ...]

    def offers(self, name: str) -> bool:
        return any(name in node for node in self.nodes)


def capacity_of(nodes: list[NodeInventory]) -> PoolCapacity:
    """Return the declared capacities of ``nodes``, lost and drained ones included: they may return."""
    return PoolCapacity(
        tuple({kind: have.capacity for kind, have in node.resources.items()} for node in nodes)
    )


def check_feasible(
    cost: Cost, memory_bytes: int, config: Config, pool: str, capacity: PoolCapacity
) -> None:
    """Raise NeverFits, naming the resource and its capacity, when ``cost`` can never fit.

    Actions of a pool without any node wait for one: anything may fit there.
    """
    node_cost = {}
    for name, counts in cost.items():
        limit = config.most(name)
        if limit is None:
            if name == "memory":
                raise InvalidRequest(
                    "memory belongs to the environment: give environment.memory_bytes",
                    pointer="/cost/memory",
                )
            node_cost[name] = whole_chunk(name, counts) if name in CHUNKED else counts[0]
        elif counts[0] > limit:
            raise NeverFits(
                f"{name}: {units(counts[0])} asked, the limit is {units(limit)}",
                pointer=f"/cost/{name}",
            )
    if capacity.nodes:
        _check_on_nodes(node_cost, memory_bytes, pool, capacity)


def _check_on_nodes(
    node_cost: dict[str, int], memory_bytes: int, pool: str, capacity: PoolCapacity
) -> None:
    for name, amount in node_cost.items():
        if not capacity.offers(name):
            known = sorted({kind for node in capacity.nodes for kind in node})
            raise InvalidRequest(
                f"pool {pool!r} has no resource {name!r}; its nodes offer {', '.join(known)}",
                pointer=f"/cost/{name}",
                code="unknown_resource",
            )
        most = max(node.get(name, 0) for node in capacity.nodes)
        if amount > most:
            raise NeverFits(
                f"{name}: {units(amount)} asked, the largest node of pool {pool!r} "
                f"has {units(most)}",
                pointer=f"/cost/{name}",
            )
    wanted = dict(node_cost)
    if memory_bytes:
        wanted["memory"] = memory_bytes
    if not any(all(node.get(k, 0) >= v for k, v in wanted.items()) for node in capacity.nodes):
        raise NeverFits(
            f"no single node of pool {pool!r} is large enough for all of this at once",
            pointer="/environment/memory_bytes" if memory_bytes else "/cost",
        )
