"""Allocations: granted units, the services in their memory, and their measured usage."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from domain.ids import ResourceId


class Home(NamedTuple):
    """A GPU service on a chunk."""

    service: str
    #: GPUs of the chunk.
    units: tuple[int, ...]


class Hosting(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Changes in the memory of a chunk before its holder can work there."""

    #: The service that the holder calls; empty: the holder runs its own program.
    service: str = ""
    #: Memory of each GPU that the service needs.
    memory_bytes: int = 0
    #: The service is in memory already.
    cached: bool = False
    #: Services to evict first, in this order.
    evicted: tuple[Home, ...] = ()
    #: It was loaded, or is loading, ahead of any grant of the chunk.
    ahead: bool = False


class Allocation(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Concrete units of one resource held by one holder."""

    resource: ResourceId
    #: Milli-units, or bytes for memory.
    amount: int
    #: Ids of the units when they have identity: core numbers, GPUs, numbers of backends.
    units: tuple[int, ...] = ()
    #: The units are shared with other light actions, or with other holders of seats.
    shared: bool = False
    #: Reason for the amount, where the submitter gave none.
    why: str = ""
    #: The units may be granted to others as well; their holders have a higher weight.
    yields: bool = False
    #: Set for chunks of GPUs whose memory is managed.
    hosting: Hosting | None = None


class UsedResources(msgspec.Struct, frozen=True, omit_defaults=False, gc=False):
    """Resource usage of a command, as counted by the kernel."""

    cpu_seconds: float
    #: Time for which the CPU quota of a light action throttled it.
    throttled_seconds: float
    #: Peak memory of its environment while it ran, caches included.
    peak_memory_bytes: int


class Placement(msgspec.Struct, frozen=True, omit_defaults=True):
    """Node and units of an action."""

    node: str | None = None
    cpus: tuple[int, ...] = ()
    #: The cores are shared with other light actions.
    shared: bool = False
    #: Reason for the count of cores, where the submitter gave none.
    why: str = ""
    #: Indices of its GPUs on the node.
    gpus: tuple[int, ...] = ()
    #: Cluster-wide resource → units: the numbers of backends behind ``llm:POOL``.
    units: dict[str, tuple[int, ...]] = {}
