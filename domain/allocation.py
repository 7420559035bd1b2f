"""What a grant hands out: which units, and until when."""

from __future__ import annotations

import msgspec

from domain.ids import ResourceId


class Allocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Concrete units of one resource held by one holder."""

    resource: ResourceId
    #: Milli-units, or bytes for memory.
    amount: int
    #: Ids of the units (core numbers) when they have identity.
    units: tuple[int, ...] = ()
    #: The units are shared with other light holders.
    shared: bool = False


class Placement(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where an action runs."""

    node: str | None = None
    cpus: tuple[int, ...] = ()
    #: The cores are shared with other light actions.
    shared: bool = False
