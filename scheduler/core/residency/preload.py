"""Eager services: prepared on every feasible chunk when a node joins (paper §5.3), not when first called.

Prepared is who has its copy in host memory and no memory of GPUs. A node is told so once, when it joins
or the service is declared: every aligned chunk of healthy GPUs, for each degree that fits. It does so when
nobody needs these GPUs, and as far as its host memory goes; whoever is called before is brought there as
any other service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from domain.decisions import Decision, Prepare
from domain.host_memory import eager_copies
from domain.inventory import NodeInventory
from domain.services import GpuService
from scheduler.core.residency.service_turns import KIND
from scheduler.core.state.model import State


def prepare_on(state: State, inventory: NodeInventory, decisions: list[Decision]) -> None:
    """Let a node that has joined prepare all eager services."""
    decisions += _everywhere(inventory, state.config.services)


def prepare_declared(
    state: State, before: Mapping[str, GpuService], decisions: list[Decision]
) -> None:
    """Let all nodes prepare the eager services that are declared otherwise than ``before``."""
    services = state.config.services
    fresh = {name: each for name, each in services.items() if before.get(name) != each}
    for node in state.fleet.nodes.values():
        decisions += _everywhere(node.inventory, fresh) if state.fleet.usable(node) else ()


def _everywhere(inventory: NodeInventory, services: Mapping[str, GpuService]) -> Iterator[Prepare]:
    """Yield every chunk of a node for every eager service."""
    have = inventory.resources.get(KIND)
    if have is not None:
        for copy in eager_copies(have, services):
            yield Prepare(inventory.name, copy.home, copy.memory_bytes, awake=False)
