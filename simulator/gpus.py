"""Modelled GPU services: their declarations, and how long a restore takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from domain.action import Action
from domain.allocation import Home, Hosting
from domain.decisions import Grant
from domain.elasticity import Elasticity
from domain.resources import MILLI, UnitSet
from domain.services import Degree, Engine, GpuService, service_name
from managers.gpu.ledger import snapshot
from managers.gpu.ledger.residents import Resident

#: GPUs of a node: what a chunk may span at most.
GPUS_PER_NODE: Final = 8


@dataclass(frozen=True)
class GpuModel:
    """A model that is served on one chunk of GPUs at a time, its weights split over them.

    A restore copies each GPU's part of the weights from host memory, all of them at once.
    """

    name: str
    weight_bytes: int
    #: Beside the weights, on each GPU: cache and activations.
    working_bytes: int
    degrees: tuple[int, ...]
    elasticity: Elasticity
    #: Host to one GPU.
    copy_bytes_per_second: float
    #: Of every restore: waking the engine, its communication groups.
    wake_seconds: float
    #: Calls that it works on at once on a chunk; each takes as long as it would alone.
    max_concurrency: int = 1

    @property
    def units(self) -> UnitSet:
        """Its degrees as feasible counts, in milli-units."""
        return tuple(count * MILLI for count in self.degrees)

    def restore_seconds(self, gpus: int) -> float:
        """Return how long it takes until it answers on ``gpus`` GPUs where it was not in memory."""
        return self.wake_seconds + self.weight_bytes / gpus / self.copy_bytes_per_second

    def declared(self) -> GpuService:
        """Return it as the configuration declares it."""
        degrees = tuple(
            Degree(count, self.weight_bytes // count + self.working_bytes) for count in self.degrees
        )
        return GpuService(
            Engine.SGLANG, degrees, source=self.name, max_concurrency=self.max_concurrency
        )


@dataclass(frozen=True)
class DeclaredModel:
    """A model as a configuration declares it, whose restores take as long as they were seen to."""

    spec: GpuService
    seconds: float

    def restore_seconds(self, gpus: int) -> float:
        """Return how long a restore takes, on whatever ``gpus``."""
        return self.seconds

    def declared(self) -> GpuService:
        """Return it as the configuration declares it."""
        return self.spec


class Restorable(Protocol):
    """A model as its node sees it."""

    def restore_seconds(self, gpus: int) -> float:
        """Return how long it takes until it answers on ``gpus`` GPUs where it was not in memory."""
        ...


def in_memory(
    homes: Iterable[Home], services: Mapping[str, GpuService], gpu_memory_bytes: int
) -> bytes:
    """Return the memory of a ledger that has services at ``homes``, the one used longest ago first.

    They need what they declare: of a node that joins all count as taking their GPUs whole.
    """
    residents = [
        Resident(home.service, home.units, min(needed or gpu_memory_bytes, gpu_memory_bytes), used)
        for used, home in enumerate(homes, start=1)
        if home.service in services
        for needed in [services[home.service].memory_bytes(len(home.units))]
    ]
    return snapshot.encode(snapshot.ChunkLedgerSnapshot(len(residents), residents, {}))


def restore_of(grant: Grant, models: Mapping[str, Restorable]) -> float | None:
    """Return how long the node of ``grant`` restores first; None when there is nothing to."""
    for held in grant.allocations:
        hosting: Hosting | None = held.hosting
        if hosting is not None and hosting.service and not hosting.cached:
            return models[hosting.service].restore_seconds(held.amount // MILLI)
    return None


def model_of(action: Action, models: Mapping[str, GpuModel]) -> GpuModel | None:
    """Return which model ``action`` calls; None when it calls none."""
    name = service_name(action.call.target) if action.call is not None else None
    return None if name is None else models.get(name)
