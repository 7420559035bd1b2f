"""What a manager is, and what a node worker gives to its driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from domain.inventory import ResourceInventory
from domain.ports.drivers import Driver, Passages
from domain.ports.ledgers import LedgerFactory


@dataclass(frozen=True)
class DriverContext:
    """What a node worker gives to the drivers it makes."""

    node: str
    #: Private to this driver; survives restarts of the worker.
    state_directory: Path
    #: Declared resources of this node.
    resources: dict[str, ResourceInventory]
    #: ``backend = "process"`` and other settings of this node, as given by its operator.
    settings: dict[str, str]
    #: Where answers go that are read while they come; None where nobody can.
    passages: Passages | None = None


@dataclass(frozen=True)
class Manager:
    """What an entry point of the group ``tangram.managers`` must resolve to."""

    #: Name of the resource in costs: ``cpu``. Cluster-wide resources use it as prefix: ``api``.
    resource: str
    make_ledger: LedgerFactory
    #: None: the resource is only counted, no work is done around an action.
    make_driver: Callable[[DriverContext], Driver] | None = None
    #: Says what a node has of this resource; None: it must be declared.
    probe: Callable[[DriverContext], ResourceInventory] | None = None
    description: str = ""
