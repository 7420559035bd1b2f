"""What-if: the last minutes of the journal, played under both configurations. Simulated.

All projects of the pool are played, for they share it; a project keeps the result. Both
configurations meet the same actions with the same durations, in one simulation side by side. They
begin alike: with the nodes as they are, the services that lay in the memory of their GPUs, and with what
was held and used when the window began, which comes about by playing the minutes before under the
configuration as it is (`beginning`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from msgspec.structs import replace

from domain.errors import InvalidRequest
from domain.inventory import Config, ProjectConfig
from simulator.request import SimulationRequest, Variant
from tangram_web.audit.services import actor_at
from tangram_web.configuration.beginning import assumptions, machines_of, residents_of, used_before
from tangram_web.configuration.telling import judge
from tangram_web.pools import applying
from tangram_web.pools.manifests import Wanted
from tangram_web.pools.selectors import current_config
from tangram_web.records.models import NodeRecord
from tangram_web.simulations.inputs import JournalWindow, WindowReader, WindowTooLarge
from tangram_web.simulations.models import Simulation
from tangram_web.simulations.resident_services import Residents
from tangram_web.simulations.services import simulation_create

T = TypeVar("T")

WINDOW_SECONDS: Final = 300
#: What leads up to the window, as far as the journal has it.
BEFORE_SECONDS: Final = 600
#: What the pool of a window is called in a simulation.
POOL: Final = "default"
NOW: Final = "as it is"
THEN: Final = "as it would be"


def what_if(
    http: HttpRequest, wanted: Wanted, changes: list[applying.Change], project: str, *, prune: bool
) -> Simulation:
    """Ask for the simulation that tells what ``changes`` would do to the last minutes.

    Raises InvalidRequest where a simulation cannot tell, or nothing ran.
    """
    config = current_config()
    pool = config.projects[project].default_pool
    if not changes:
        raise InvalidRequest("nothing changes")
    window = _window(config, pool)
    there = {"Resource": set(window.limits), "GpuService": set(window.services),
             "Node": set(_nodes(pool).values_list("name", flat=True))}  # fmt: skip
    told = judge(changes, pool, there)
    if not told.anything:
        raise InvalidRequest(f"no simulation tells of this: {'; '.join(told.untold)}")
    after = _kept(_afterwards(http, wanted, prune=prune), config)
    configs = {NOW: config, THEN: after}
    variants = {name: _variant(each, pool, window) for name, each in configs.items()}
    used, unknown = used_before(config, window)
    request = SimulationRequest(
        workload="recorded",
        policies=(NOW, THEN),
        variants=variants,
        machines=machines_of(_nodes(pool), window.residents),
        counts_from=window.counts_from,
        used=used,
        assumed=assumptions(
            before=window.before,
            before_seconds=window.before_seconds,
            used=used,
            unknown=unknown,
            unseen=window.services - set(window.restores),
            residents=sum(map(len, window.residents.values())),
        ),
        untold=told.untold,
    )
    source = f"the last {WINDOW_SECONDS // 60} minutes, {window.actions:,} actions of pool {pool}"
    if window.foreign:
        source += f"; {window.foreign:,} left out: they need what is not declared any more"
    return simulation_create(
        http=http, project=project, request=request, window=window, source=source,
        title=f"What if, after revision {config.revision}",
    )  # fmt: skip


class _TakenBack(Exception):
    """What was applied is not meant."""


def _afterwards(http: HttpRequest, wanted: Wanted, *, prune: bool) -> Config:
    """Return what saving would lead to: saved, looked at and taken back, all in one transaction."""
    found: list[Config] = []
    try:
        with transaction.atomic():
            found.append(applying.apply(wanted, actor=actor_at(http), prune=prune)[0])
            raise _TakenBack
    except _TakenBack:
        return found[0]


def _kept(config: Config, before: Config) -> Config:
    """Return ``config`` with what it would take away altogether as it was: that is not played."""
    gone = {
        name for name, milli in before.resources.items() if milli and not config.resources.get(name)
    }

    def with_gone(now: Mapping[str, T], former: Mapping[str, T]) -> dict[str, T]:
        return {**now, **{name: former[name] for name in gone if name in former}}

    return replace(
        config,
        resources=with_gone(config.resources, before.resources),
        limits=with_gone(config.limits, before.limits),
        shares=with_gone(config.shares, before.shares),
        services={**before.services, **config.services},
    )


def _nodes(pool: str) -> QuerySet[NodeRecord]:
    return NodeRecord.objects.filter(pool=pool).exclude(state="lost").order_by("name")


def _window(config: Config, pool: str) -> JournalWindow:
    """Return the window with what the journal has of the time before; without it if it is too much."""
    try:
        return _read(config, pool, BEFORE_SECONDS)
    except WindowTooLarge:
        return _read(config, pool, 0)


def _read(config: Config, pool: str, before_seconds: int) -> JournalWindow:
    names = {name for name, each in config.projects.items() if each.default_pool == pool}
    known = {"cpu", *(name for name, milli in config.resources.items() if milli >= 1000)}
    if any("gpu" in node.resources for node in _nodes(pool)):
        known.add("gpu")
    reader = WindowReader(
        lambda action: action.project in names and action.pool in ("", pool), known
    )
    content = reader.read(WINDOW_SECONDS, f"no action of pool {pool}", before_seconds)
    limits = dict.fromkeys(reader.used - {"cpu", "gpu"}, 0)
    return JournalWindow(
        content, reader.actions, reader.foreign, limits, reader.restores, reader.services,
        reader.counts_from, reader.before, reader.before_seconds,
        {name: reader.granted[name] for name in sorted(limits)},
        _of_pool(residents_of(reader), pool),
    )  # fmt: skip


def _of_pool(residents: Residents, pool: str) -> Residents:
    names = set(_nodes(pool).values_list("name", flat=True))
    return {node: homes for node, homes in residents.items() if node in names}


def _variant(config: Config, pool: str, window: JournalWindow) -> Variant:
    """Return the pool of ``config`` as a cluster; its sizes are for people, `machines_of` has them."""
    if pool not in config.pools:
        raise InvalidRequest(f"pool {pool} is deleted: what waits there would wait for ever")
    nodes = [node for node in _nodes(pool) if node.name not in config.drained_nodes]
    if not nodes:
        raise InvalidRequest(f"no node of pool {pool} takes work: everything would wait for ever")

    def most(kind: str, member: str = "capacity") -> int:
        return max(int(node.resources.get(kind, {}).get(member, 0)) for node in nodes)

    projects = {
        name: ProjectConfig(name, POOL)
        for name, each in config.projects.items()
        if each.default_pool == pool
    }
    served = {name: replace(each, quarantined=False) for name, each in config.services.items()}
    gpus = sum(int(node.resources.get("gpu", {}).get("capacity", 0)) // 1000 for node in nodes)
    return Variant(
        config=replace(
            config,
            projects=projects,
            pools={POOL: replace(config.pools[pool], name=POOL, paused=False)},
            resources={
                name: config.resources[name]
                for name in sorted(window.limits)
                if config.resources.get(name, 0) >= 1000
            },
            apis={},
            services=served if gpus else {},
            drained_nodes=config.drained_nodes & {node.name for node in _nodes(pool)},
        ),
        nodes=len(nodes),
        cores=max(1, most("cpu") // 1000),
        memory_gib=max(1, most("memory") // 2**30),
        gpus=gpus,
        gpu_memory_bytes=most("gpu", "memory_bytes") or 80 * 2**30,
        restores=window.restores,
    )
