"""Windows of one pool: its last minutes in the journal, and the pool as a cluster that plays them.

All actions of the pool are played, because its projects share it. Initial conditions are those of decision 0040:
- the present nodes, with the services that were resident in GPU memory when the play begins;
- the holders and grants at the begin of the window: the time before it is played, too;
- quota use from before the journal: the scheduler reports one sum for each quota. The part that is
  not played counts throughout where the quota reaches back that far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, Final

import msgspec
import redis
from django.db.models import QuerySet
from msgspec.structs import replace

from domain.errors import InvalidRequest, Unavailable
from domain.inventory import Config, ProjectConfig, ResourceInventory
from domain.resources import MILLI
from simulator.request import Variant
from tangram_web.lib import bus, scheduler_client
from tangram_web.live.gpu_history import GpuHistoryStore
from tangram_web.records.models import NodeRecord
from tangram_web.simulations.inputs import JournalWindow, WindowReader
from tangram_web.simulations.resident_services import Residents

#: Name of the pool in a simulation.
POOL: Final = "default"
#: Kinds that the simulator has ledgers of.
_KINDS: Final = ("cpu", "memory", "gpu")


def nodes_of(pool: str) -> QuerySet[NodeRecord]:
    """Return the nodes of a pool that are not lost."""
    return NodeRecord.objects.filter(pool=pool).exclude(state="lost").order_by("name")


def read_window(
    config: Config,
    pool: str,
    seconds: int,
    before_seconds: int,
    most_bytes: int | None = None,
) -> JournalWindow:
    """Return the last ``seconds`` with the actions of all projects of a pool, and the time before.

    Raises InvalidRequest for an empty window, WindowTooLarge, Unavailable without Redis.
    """
    names = {name for name, each in config.projects.items() if each.default_pool == pool}
    known = {"cpu", *(name for name, milli in config.resources.items() if milli >= 1000)}
    if any("gpu" in node.resources for node in nodes_of(pool)):
        known.add("gpu")
    reader = WindowReader(
        lambda action: action.project in names and action.pool in ("", pool), known
    )
    content = reader.read(seconds, f"no action of pool {pool}", before_seconds, most_bytes)
    limits = dict.fromkeys(reader.used - {"cpu", "gpu"}, 0)
    return JournalWindow(
        content, reader.actions, reader.foreign, limits, reader.restores, reader.services,
        reader.counts_from, reader.before, reader.before_seconds,
        {name: reader.granted[name] for name in sorted(limits)},
        _of_pool(residents_of(reader), pool),
    )  # fmt: skip


def _of_pool(residents: Residents, pool: str) -> Residents:
    names = set(nodes_of(pool).values_list("name", flat=True))
    return {node: homes for node, homes in residents.items() if node in names}


def variant_of(
    config: Config, pool: str, window: JournalWindow, *, paused: bool = False
) -> Variant:
    """Return the pool of ``config`` as a cluster; the sizes are for display, see `machines_of`.

    Raises InvalidRequest where no node would take its actions.
    """
    if pool not in config.pools:
        raise InvalidRequest(f"pool {pool} is deleted: its actions would wait forever")
    nodes = [node for node in nodes_of(pool) if node.name not in config.drained_nodes]
    if not nodes:
        raise InvalidRequest(
            f"no node of pool {pool} is in service: all actions would wait forever"
        )

    def most(kind: str, member: str = "capacity") -> int:
        return max(int(node.resources.get(kind, {}).get(member, 0)) for node in nodes)

    projects = {
        name: ProjectConfig(name, POOL)
        for name, each in config.projects.items()
        if each.default_pool == pool
    }
    served = {
        name: replace(each, quarantined=False, env={}) for name, each in config.services.items()
    }
    gpus = sum(int(node.resources.get("gpu", {}).get("capacity", 0)) // 1000 for node in nodes)
    return Variant(
        config=replace(
            config,
            projects=projects,
            pools={POOL: replace(config.pools[pool], name=POOL, paused=paused)},
            resources={
                name: config.resources[name]
                for name in sorted(window.limits)
                if config.resources.get(name, 0) >= 1000
            },
            apis={},
            services=served if gpus else {},
            drained_nodes=config.drained_nodes & {node.name for node in nodes_of(pool)},
        ),
        nodes=len(nodes),
        cores=max(1, most("cpu") // 1000),
        memory_gib=max(1, most("memory") // 2**30),
        gpus=gpus,
        gpu_memory_bytes=most("gpu", "memory_bytes") or 80 * 2**30,
        restores=window.restores,
    )


def machines_of(
    nodes: Iterable[NodeRecord], residents: Residents
) -> dict[str, dict[str, ResourceInventory]]:
    """Return the inventory of each node, with its cores and GPUs by locality and its residents."""
    return {
        node.name: {
            kind: msgspec.structs.replace(
                msgspec.convert(node.resources[kind], ResourceInventory),
                residents=residents.get(node.name, ()) if kind == "gpu" else (),
            )
            for kind in _KINDS
            if kind in node.resources
        }
        for node in nodes
    }


def residents_of(reader: WindowReader) -> Residents:
    """Return the services in GPU memory at the first action that ``reader`` has read."""
    if reader.began_at is None:
        return {}
    try:
        scene = GpuHistoryStore(bus.redis_client(), bus.keys()).at(reader.began_at)
    except redis.RedisError as error:
        raise Unavailable(f"redis does not answer: {error}") from error
    return reader.in_memory.residents(scene.residents if scene is not None else ())


def used_before(
    config: Config, window: JournalWindow
) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """Return the milli-units of each quota used before the play, and resources without an answer."""
    played = window.before_seconds
    reaching = {
        name: [quota.counted_seconds or inf for quota in config.limits[name].quotas]
        for name in window.limits
        if name in config.limits
    }
    long = {name: reach for name, reach in reaching.items() if any(r > played for r in reach)}
    if not long:
        return {}, ()
    try:
        status: Mapping[str, Any] = scheduler_client.status().get("resources", {})
    except Unavailable:
        return {}, tuple(sorted(long))
    used = {
        name: tuple(
            max(0, round(use["used"] * MILLI) - window.granted.get(name, 0)) if r > played else 0
            for use, r in zip(status[name]["quotas"], reach, strict=False)
        )
        for name, reach in long.items()
        if "quotas" in status.get(name, {})
    }
    return {name: amounts for name, amounts in used.items() if any(amounts)}, ()
