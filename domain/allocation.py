"""What a grant hands out: which units, what happens in their memory, and what was used of them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from domain.ids import ResourceId


class Home(NamedTuple):
    """Where a GPU service is."""

    service: str
    #: The chunk in whose memory it lies.
    units: tuple[int, ...]


class Hosting(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What happens in the memory of a chunk before its holder can work there."""

    #: The service that works for the holder; empty: the holder brings its own program.
    service: str = ""
    #: What the service needs of each GPU.
    memory_bytes: int = 0
    #: The service is there already.
    cached: bool = False
    #: Who has to leave first, in this order.
    evicted: tuple[Home, ...] = ()
    #: It was brought there, or is on its way, before anybody was granted the chunk.
    ahead: bool = False


class Allocation(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Concrete units of one resource held by one holder."""

    resource: ResourceId
    #: Milli-units, or bytes for memory.
    amount: int
    #: Ids of the units (core numbers) when they have identity.
    units: tuple[int, ...] = ()
    #: The units are shared with other light holders.
    shared: bool = False
    #: Why so much, when the submitter did not say; for people.
    why: str = ""
    #: Of a chunk of GPUs whose memory is looked after.
    hosting: Hosting | None = None


class UsedResources(msgspec.Struct, frozen=True, omit_defaults=False, gc=False):
    """What a command used of what it was granted, as the kernel counted it."""

    cpu_seconds: float
    #: How long it was kept from running by the quota of a light action.
    throttled_seconds: float
    #: Most memory of its environment while it ran, caches included.
    peak_memory_bytes: int


class Placement(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where an action runs."""

    node: str | None = None
    cpus: tuple[int, ...] = ()
    #: The cores are shared with other light actions.
    shared: bool = False
    #: Why it has so many cores, when the submitter did not say.
    why: str = ""
    #: Numbers of its GPUs on the node.
    gpus: tuple[int, ...] = ()
