"""Capacity of the system, as the leader stores it for the admission of web processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from domain.apis import ApiConfig
from domain.fleets import (
    DEFAULT_PREDICTOR,
    FleetEngine,
    FleetSpec,
    FleetWorker,
    TransferAdapter,
)
from domain.ids import task_key
from domain.node_groups import capacities_of_groups
from domain.project_limits import ProjectBounds
from domain.services import GpuService
from scheduler.core.state.demand import PoolCapacity

if TYPE_CHECKING:  # the core with numpy, which a web process never needs
    from scheduler.core.state.model import State


class FleetCapacity(msgspec.Struct, frozen=True, omit_defaults=True):
    """What routers of generations need to know of a fleet."""

    engine: FleetEngine
    #: Model that its workers know; empty: the name of the fleet.
    source: str = ""
    transfer: TransferAdapter = TransferAdapter.PROBED
    workers: tuple[FleetWorker, ...] = ()
    #: Its declaration, where that has workers of our own (`_own`).
    own: FleetSpec | None = None
    #: Predictor of the lengths of its trajectories.
    predictor: str = DEFAULT_PREDICTOR


class CapacityView(msgspec.Struct):
    """Most that each pool can give; the admission refuses what can never fit."""

    revision: int
    #: Project → its default pool.
    projects: dict[str, str]
    #: Pool → capacities of each of its nodes, by resource.
    pools: dict[str, list[dict[str, int]]]
    resources: dict[str, int]
    apis: dict[str, ApiConfig] = {}
    services: dict[str, GpuService] = {}
    fleets: dict[str, FleetCapacity] = {}
    #: Pool → memory of its largest GPU.
    gpu_memory_bytes: dict[str, int] = {}
    #: Pool → most host memory that one of its nodes keeps for services; a pool with a node that does
    #: not count it is left out.
    service_memory_bytes: dict[str, int] = {}
    #: Pool → networks that its environments may use.
    networks: dict[str, tuple[str, ...]] = {}
    #: Task key → the pool it is bound to; only where that pool has other networks than its project's.
    bound_tasks: dict[str, str] = {}
    #: Pool → what a node of each of its node groups offers: actions that fit there may wait for one.
    group_nodes: dict[str, list[dict[str, int]]] = {}
    #: Project → its own limits, where it has any.
    project_bounds: dict[str, ProjectBounds] = {}

    def pool_of_task(self, project: str, task: str) -> str:
        """Return the pool of an action of ``task`` that names none, as far as networks differ."""
        return self.bound_tasks.get(task_key(project, task), self.projects[project])


class OffersOfPools:
    """What the nodes of pools offer, for the view that was asked for last: few nodes of a large pool differ."""

    def __init__(self) -> None:
        self._view: CapacityView | None = None
        self._known: dict[str, PoolCapacity] = {}

    def of(self, view: CapacityView, pool: str) -> PoolCapacity:
        """Return what the nodes of ``pool`` and its node groups offer; equal nodes are one."""
        if view is not self._view:
            self._view, self._known = view, {}
        if pool not in self._known:
            nodes = view.pools.get(pool, [])
            groups = view.group_nodes.get(pool, []) if nodes else []
            different = {tuple(each.items()): each for each in (*nodes, *groups)}
            self._known[pool] = PoolCapacity(tuple(different.values()))
        return self._known[pool]


def capacity_of(state: State) -> CapacityView:
    """Return the capacity of all nodes that are known, and what the configuration declares."""
    pools: dict[str, list[dict[str, int]]] = {name: [] for name in state.config.pools}
    gpu_memory: dict[str, int] = {}
    service_memory: dict[str, int] = {}
    uncounted: set[str] = set()
    for node in state.supply.nodes.values():
        pool, resources = node.inventory.pool, node.inventory.resources
        pools.setdefault(pool, []).append({kind: r.capacity for kind, r in resources.items()})
        if (gpus := resources.get("gpu")) is None:
            continue
        gpu_memory[pool] = max(gpu_memory.get(pool, 0), gpus.memory_bytes)
        if gpus.host_memory_bytes is None:
            uncounted.add(pool)
        else:
            service_memory[pool] = max(service_memory.get(pool, 0), gpus.host_memory_bytes)
    config = state.config
    return CapacityView(
        revision=config.revision,
        projects={project.name: project.default_pool for project in config.projects.values()},
        pools=pools,
        group_nodes={
            name: found
            for name in config.pools
            if (found := capacities_of_groups(config.node_groups.values(), name))
        },
        resources={name: config.most(name) or 0 for name in config.resources},
        apis=config.apis,
        services=config.services,
        fleets={
            name: FleetCapacity(
                fleet.spec.engine,
                fleet.spec.source,
                fleet.spec.transfer,
                fleet.workers,
                _own(fleet.spec),
                fleet.spec.predictor or DEFAULT_PREDICTOR,
            )
            for name, fleet in state.generations.fleets.items()
        },
        gpu_memory_bytes=gpu_memory,
        networks={pool.name: pool.networks for pool in config.pools.values()},
        bound_tasks=_bound_tasks(state),
        project_bounds={
            project.name: project.limits
            for project in config.projects.values()
            if project.limits != ProjectBounds()
        },
        service_memory_bytes={n: most for n, most in service_memory.items() if n not in uncounted},
    )


def _own(spec: FleetSpec) -> FleetSpec | None:
    """Return the part of a declaration that workers of our own need: times only where there is a choice of degrees."""
    if not spec.gpus:
        return None
    return replace(spec, workers=(), profile=spec.profile if len(spec.degrees) > 1 else None)


def _bound_tasks(state: State) -> dict[str, str]:
    pools, projects = state.config.pools, state.config.projects

    def networks(pool: str) -> tuple[str, ...]:
        return pools[pool].networks if pool in pools else ()

    found = {}
    for key, pool in state.steering.pools.items():
        owner = projects.get(key.partition("/")[0])
        if owner is None or networks(pool) != networks(owner.default_pool):
            found[key] = pool
    return found
