"""What a grant hands out: which units, and what was used of them."""

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
    #: Why so much, when the submitter did not say; for people.
    why: str = ""


class UsedResources(msgspec.Struct, frozen=True, omit_defaults=False):
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
