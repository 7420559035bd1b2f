"""Host memory of GPU services: the copies that a node prepares, and services that do not fit.

Pure. A node keeps part of its host memory for GPU services (`ResourceInventory.host_memory_bytes`).
Declarations are checked against the nodes that have joined; a node that joins later holds as many
copies as fit (`managers.gpu.host_memory`).
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
    """A copy of a service in host memory, for one chunk."""

    home: Home
    #: Memory of each GPU that it needs when loaded.
    memory_bytes: int
    #: Host memory of the copy.
    host_bytes: int


def eager_copies(have: ResourceInventory, services: Mapping[str, GpuService]) -> Iterator[Copy]:
    """Yield a copy per aligned chunk of healthy GPUs and fitting degree of each eager service."""
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
    """Return why a ``changed`` service does not fit into host memory; empty if all fit.

    ``nodes`` has the GPU inventory of each node. Nodes without GPUs or without a limit on host
    memory have room.
    """
    gpus = {name: have for name, have in nodes.items() if have.capacity}
    for name in sorted(changed & services.keys()):
        if services[name].quarantined:
            continue
        if why := _no_copy(name, services[name], gpus) or _not_all(name, services, gpus):
            return why
    return ""


def _no_copy(name: str, service: GpuService, gpus: Mapping[str, ResourceInventory]) -> str:
    """Return an error if no node can hold an instance of a service."""
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
        return ""  # no GPU is large enough: its calls are refused with that reason
    least = min(service.host_bytes(each.gpus) for each in service.degrees)
    return (
        f"service {name} takes {_gib(least)} of host memory, and node {where}, the largest, keeps"
        f" {_gib(most)} for services: declare its actual host_memory_bytes, or set"
        f" {_SETTING} of the node"
    )


def _not_all(
    name: str, services: Mapping[str, GpuService], gpus: Mapping[str, ResourceInventory]
) -> str:
    """Return an error if a node cannot hold the copies of all eager services, ``name`` among them."""
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
                " services: declare its actual host_memory_bytes, declare fewer"
                f" services eager, or set {_SETTING} of the node"
            )
    return ""


def _fits(have: ResourceInventory, memory_bytes: int) -> bool:
    return not have.memory_bytes or memory_bytes <= have.memory_bytes


def _gib(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"
