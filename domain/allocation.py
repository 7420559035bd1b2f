"""What a grant hands out: which units, what happens in their memory first, and until when."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from domain.ids import ResourceId


class Home(NamedTuple):
    """Where a GPU service is."""

    service: str
    #: The chunk in whose memory it lies.
    units: tuple[int, ...]


class Hosting(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happens in the memory of a chunk before its holder can work there."""

    #: The service that works for the holder; empty: the holder brings its own program.
    service: str = ""
    #: What the service needs of each GPU.
    memory_bytes: int = 0
    #: The service is there already.
    cached: bool = False
    #: Who has to leave first, in this order.
    evicted: tuple[Home, ...] = ()


class Allocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Concrete units of one resource held by one holder."""

    resource: ResourceId
    #: Milli-units, or bytes for memory.
    amount: int
    #: Ids of the units (core numbers) when they have identity.
    units: tuple[int, ...] = ()
    #: The units are shared with other light holders.
    shared: bool = False
    #: Of a chunk of GPUs whose memory is looked after.
    hosting: Hosting | None = None


class Placement(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where an action runs."""

    node: str | None = None
    cpus: tuple[int, ...] = ()
    #: The cores are shared with other light actions.
    shared: bool = False
    #: Numbers of its GPUs on the node.
    gpus: tuple[int, ...] = ()
