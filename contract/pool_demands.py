"""What waits and runs in a pool: the loop's answer to `domain.events.PoolDemandsQueried`, by which node groups grow and shrink.

Amounts of resources are in milli-units, memory is in bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: Rows of a pool, at most: what exceeds them is one row with the means of its members.
MOST_ROWS: Final = 64
#: Bars of nodes of a pool, at most, and one more for each shape: what exceeds them is the mean of its shape.
MOST_BARS: Final = 32


class DemandRow(msgspec.Struct, frozen=True):
    """Actions of one pool with the same minimum amounts, and predicted durations within a factor of two."""

    #: Resource of nodes → the least that an action is admitted with; of GPUs, those of its whole chunk.
    needs: dict[str, int]
    #: Memory that a first action of a trajectory reserves with its grant, for its environment.
    memory_bytes: int
    #: They run on the node of their environment alone: a further node takes none of them.
    bound: bool
    #: Mean predicted duration with these amounts.
    seconds: float
    waiting: int = 0
    running: int = 0
    #: Mean of what is left of those that run.
    residual_seconds: float = 0.0
    #: Sum of 1 / duration of those that run: as many end each second.
    ending_per_second: float = 0.0


class NodesAlike(msgspec.Struct, frozen=True):
    """Nodes of one pool that take work, with about the same capacity and about as much free: a bar of a histogram."""

    #: Beginning of their names, as in `PoolDemand.capacity`.
    begins: str
    count: int
    #: Resource → amount of each of them; the mean where they differ.
    capacity: dict[str, int]
    free: dict[str, int]
    #: Free chunks of 1, 2, 4 and 8 GPUs on each of them; empty: not known.
    chunks: tuple[int, ...] = ()


class PoolDemand(msgspec.Struct, frozen=True):
    """One pool."""

    rows: list[DemandRow]
    #: Beginning of the node's name up to its last ``-`` → resource → amount of its nodes that take work.
    capacity: dict[str, dict[str, int]]
    #: Memory that environments hold, on all nodes.
    memory_held: int = 0
    #: Trajectories that have their environment on a node.
    trajectories: int = 0
    #: What is free on nodes that take work, since an action runs on one node. Empty: a loop of an earlier version does not say.
    nodes: list[NodesAlike] = []
