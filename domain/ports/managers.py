"""Registration of managers, and the context of their drivers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from domain.inventory import ResourceInventory
from domain.ports.drivers import Driver, ResponseStreams
from domain.ports.ledgers import LedgerFactory


@dataclass(frozen=True)
class DriverContext:
    """Context that a node worker passes to its drivers."""

    node: str
    #: Private to the driver; survives restarts of the worker.
    state_directory: Path
    #: Declared resources of this node.
    resources: dict[str, ResourceInventory]
    #: ``backend = "process"`` and other settings of this node, as set by its operator.
    settings: dict[str, str]
    #: Streams for responses that are forwarded while they arrive; None: not supported.
    response_streams: ResponseStreams | None = None


@dataclass(frozen=True)
class Manager:
    """Object behind an entry point of the group ``tangram.managers``."""

    #: Name of the resource in costs: ``cpu``. Cluster-wide resources use it as prefix: ``api``.
    resource: str
    make_ledger: LedgerFactory
    #: None: the resource is only counted.
    make_driver: Callable[[DriverContext], Driver] | None = None
    #: Detects the inventory of a node; None: it must be declared.
    probe: Callable[[DriverContext], ResourceInventory] | None = None
    description: str = ""
