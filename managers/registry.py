"""Registry of managers: the built-in ones, and those of installed packages.

A package registers a `Manager` under the entry-point group ``tangram.managers``. A broken entry
point costs only itself: it is reported and left out. Two managers for one resource are an error
that names both; the built-in one, else the first by name of the package's object, stays.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from domain.errors import InvalidRequest
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.ports import Driver, DriverContext, Ledger, LedgerFactory, Manager
from managers.cpu.ledger import CpuLedger
from managers.cpu.probe import probe_cpu, probe_memory
from managers.gpu.probe import probe_gpu
from managers.llm.fleet_ledger import SlotLedger
from managers.llm.ledger import LlmLedger
from managers.quota.ledger import ApiLedger, CounterLedger

GROUP: Final = "tangram.managers"

_log = logging.getLogger(__name__)


def _cpu_driver(context: DriverContext) -> Driver:
    """Make the driver that the node's setting ``backend`` names."""
    # Imported here: the scheduler's loop needs ledgers only, on any operating system.
    backend = context.settings.get("backend") or "process"
    if backend == "process":
        from managers.cpu.process import ProcessDriver

        return ProcessDriver(context)
    if backend == "docker":
        from managers.cpu.containers import ContainerDriver

        return ContainerDriver(context)
    raise InvalidRequest(f"backend is {backend!r}: give process or docker")


def _chunk_ledger(resource: ResourceId, inventory: ResourceInventory) -> Ledger:
    # Imported here: it loads numpy, which only the scheduler's loop needs.
    from managers.gpu.ledger import ChunkLedger

    return ChunkLedger(resource, inventory)


def _call_driver(context: DriverContext) -> Driver:
    from managers.quota.call_driver import CallDriver

    return CallDriver(context)


def _gpu_driver(context: DriverContext) -> Driver:
    from managers.gpu.driver import GpuDriver

    return GpuDriver(context)


BUILT_IN: Final = (
    Manager(
        "cpu",
        CpuLedger,
        make_driver=_cpu_driver,
        probe=probe_cpu,
        description="cores of a node; runs commands on them",
    ),
    Manager(
        "gpu",
        _chunk_ledger,
        make_driver=_gpu_driver,
        probe=probe_gpu,
        description="GPUs of a node, in aligned chunks of 1, 2, 4 and 8; calls services there",
    ),
    Manager("memory", CounterLedger, probe=probe_memory, description="memory of a node, in bytes"),
    Manager(
        "api",
        ApiLedger,
        make_driver=_call_driver,
        description="calls of an API: open at once, and per period",
    ),
    Manager("llm", LlmLedger, description="seats of the backends of a language model"),
    Manager("fleet", SlotLedger, description="slots of the workers behind one model name"),
)


@dataclass(frozen=True)
class Registry:
    """Managers by the resource they own, and the problems of those that were left out."""

    managers: Mapping[str, Manager]
    #: One sentence for each entry point that was left out.
    problems: tuple[str, ...] = field(default=())

    def ledger_factory(self, kind: str) -> LedgerFactory:
        """Return the ledger factory of ``kind``; a kind without a manager is counted."""
        manager = self.managers.get(kind)
        return CounterLedger if manager is None else manager.make_ledger

    def make_ledger(self, resource: ResourceId, inventory: ResourceInventory) -> Ledger:
        """Make the ledger of one resource, as in ``cpu:n1``."""
        return self.ledger_factory(resource.partition(":")[0])(resource, inventory)


def load(found: Iterable[EntryPoint] | None = None) -> Registry:
    """Collect the built-in managers and those of ``found`` (default: all installed packages)."""
    if found is None:
        found = entry_points(group=GROUP)
    managers = {manager.resource: manager for manager in BUILT_IN}
    origins = dict.fromkeys(managers, "the built-in manager")
    problems: list[str] = []
    for entry in sorted(found, key=lambda entry: (entry.name, entry.value)):
        origin = f"{entry.name} = {entry.value}"
        manager = _resolve(entry, origin, problems)
        if manager is None or managers.get(manager.resource) is manager:
            continue
        taken = origins.get(manager.resource)
        if taken is not None:
            problems.append(
                f"two managers for resource {manager.resource!r}: {taken} (kept) and {origin};"
                " uninstall one of them"
            )
            continue
        managers[manager.resource] = manager
        origins[manager.resource] = origin
    return Registry(managers, tuple(problems))


def discover() -> dict[str, Manager]:
    """Return all usable managers by resource; problems go to the log."""
    registry = load()
    for problem in registry.problems:
        _log.error("manager left out: %s", problem)
    return dict(registry.managers)


def _resolve(entry: EntryPoint, origin: str, problems: list[str]) -> Manager | None:
    try:
        loaded = entry.load()
    except Exception as error:  # whatever a foreign module does on import
        problems.append(f"{origin} cannot be loaded: {type(error).__name__}: {error}")
        return None
    if not isinstance(loaded, Manager):
        problems.append(f"{origin} is a {type(loaded).__name__}, not a domain.ports.Manager")
        return None
    return loaded
