"""Which copies of eager services a node is to hold, and which services its host memory cannot hold.

Pure. A node keeps part of its host memory for GPU services (`ResourceInventory.host_memory_bytes`).
What is declared is checked against the nodes that are there; what joins later holds as much as it can
(`managers.gpu.host_memory`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from domain.allocation import Home
from domain.chunks import SIZES, aligned, level_of
from domain.inventory import ResourceInventory
from domain.resources import MILLI
from domain.services import GpuService

_GIB: Final = 2**30
_SETTING: Final = "TANGRAM_NODE_SERVICE_MEMORY_BYTES"


class Copy(NamedTuple):
    """A service that is to be in host memory for one chunk."""

    home: Home
    #: What it needs of the memory of each GPU once it is there.
    memory_bytes: int
    #: What it takes of the node's host memory.
    host_bytes: int


def eager_copies(have: ResourceInventory, services: Mapping[str, GpuService]) -> Iterator[Copy]:
    """Yield a copy for each aligned chunk of healthy GPUs, for each degree of eager services that fits."""
    for name, service in services.items():
        if not service.eager or service.quarantined:
            continue
        for degree in service.degrees:
            level = level_of(degree.gpus * MILLI)
            if level is None or not _fits(have, degree.memory_bytes):
                continue
            host_bytes = service.host_bytes(SIZES[level])
            for group in have.groups:
                for units in aligned(group, SIZES[level], frozenset(have.unhealthy)):
                    yield Copy(Home(name, units), degree.memory_bytes, host_bytes)


def why_no_room(
    changed: set[str],
    services: Mapping[str, GpuService],
    nodes: Mapping[str, ResourceInventory],
) -> str:
    """Say why one of the ``changed`` services cannot be held as declared; empty when all can.

    ``nodes``: what each node has of GPUs. One that has none, or counts no host memory, has room.
    """
    gpus = {name: have for name, have in nodes.items() if have.capacity}
    for name in sorted(changed & services.keys()):
        if services[name].quarantined:
            continue
        if why := _no_copy(name, services[name], gpus) or _not_all(name, services, gpus):
            return why
    return ""


def _no_copy(name: str, service: GpuService, gpus: Mapping[str, ResourceInventory]) -> str:
    """Say that no node can hold even one instance of a service."""
    most, where = -1, ""
    for node, have in sorted(gpus.items()):
        fitting = [each for each in service.degrees if _fits(have, each.memory_bytes)]
        if not fitting:
            continue
        room = have.host_memory_bytes
        if room is None or any(service.host_bytes(each.gpus) <= room for each in fitting):
            return ""
        if room > most:
            most, where = room, node
    if not where:
        return ""  # no GPU is large enough for it, which its calls are told
    least = min(service.host_bytes(each.gpus) for each in service.degrees)
    return (
        f"service {name} takes {_gib(least)} of host memory, and node {where}, which has most, keeps"
        f" {_gib(most)} for services: declare the host_memory_bytes that it really takes, or set"
        f" {_SETTING} of the node"
    )


def _not_all(
    name: str, services: Mapping[str, GpuService], gpus: Mapping[str, ResourceInventory]
) -> str:
    """Say that a node cannot hold the copies of all eager services, one of which is ``name``."""
    if not services[name].eager:
        return ""
    for node, have in sorted(gpus.items()):
        copies = list(eager_copies(have, services))
        own = [copy for copy in copies if copy.home.service == name]
        needed = sum(copy.host_bytes for copy in copies)
        if own and have.host_memory_bytes is not None and needed > have.host_memory_bytes:
            return (
                f"service {name} is eager: its {len(own)} copies on node {node} take"
                f" {_gib(sum(copy.host_bytes for copy in own))} of host memory, those of all eager"
                f" services {_gib(needed)}, and the node keeps {_gib(have.host_memory_bytes)} for"
                " services: declare the host_memory_bytes that it really takes, declare fewer"
                f" services eager, or set {_SETTING} of the node"
            )
    return ""


def _fits(have: ResourceInventory, memory_bytes: int) -> bool:
    return not have.memory_bytes or memory_bytes <= have.memory_bytes


def _gib(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"
