"""What waits and runs in a pool: the loop's answer to `domain.events.PoolDemandsQueried`, by which node groups grow and shrink.

Amounts of resources are in milli-units, memory is in bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: Rows of a pool, at most: what exceeds them is one row with the means of its members.
MOST_ROWS: Final = 64


class DemandRow(msgspec.Struct, frozen=True):
    """Actions of one pool with the same minimum amounts, and predicted durations within a factor of two."""

    #: Resource of nodes → the least that an action is admitted with.
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


class PoolDemand(msgspec.Struct, frozen=True):
    """One pool."""

    rows: list[DemandRow]
    #: Beginning of the node's name up to its last ``-`` → resource → amount of its nodes that take work.
    capacity: dict[str, dict[str, int]]
    #: Memory that environments hold, on all nodes.
    memory_held: int = 0
    #: Trajectories that have their environment on a node.
    trajectories: int = 0
