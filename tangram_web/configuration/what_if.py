"""What-if: simulation of the last minutes under the present and the edited configuration.

All actions of the pool are played, because its projects share it; one project owns the result. Both
variants get the same actions with the same durations, and the same initial conditions:
- the present nodes, with the services that were resident in GPU memory when the play begins;
- the holders and grants at the begin of the window: the minutes before it are played, too, under the
  present configuration, and are not counted;
- quota use from before the journal: the scheduler reports one sum for each quota. The part that is
  not played counts throughout where the quota reaches back that far.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from math import inf
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import redis
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from msgspec.structs import replace

from domain.errors import InvalidRequest, Unavailable
from domain.inventory import Config, ProjectConfig, ResourceInventory
from domain.resources import MILLI
from simulator.request import SimulationRequest, Variant
from tangram_web.audit.services import actor_at
from tangram_web.lib import bus, scheduler_client
from tangram_web.live.gpu_history import GpuHistoryStore
from tangram_web.pools import applying
from tangram_web.pools.applying import Change
from tangram_web.pools.manifests import Wanted
from tangram_web.pools.selectors import current_config
from tangram_web.records.models import NodeRecord
from tangram_web.simulations.inputs import JournalWindow, WindowReader, WindowTooLarge
from tangram_web.simulations.models import Simulation
from tangram_web.simulations.resident_services import Residents
from tangram_web.simulations.services import simulation_create

#: Kind → members that the simulator plays.
PLAYED: Final = {
    "Pool": {"policy", "shares", "light_by_default"},
    "Resource": {"limit_units", "quotas", "shares"},
    "GpuService": {"degrees", "max_concurrency"},
    "Fleet": set(),
    "Node": {"drained"},
}
#: Kind → reason why its other members are not playable.
_WHY: Final = {
    "Pool": "a simulated node never loses its heartbeat and needs no sandbox, and a paused pool would"
    " never finish",
    "Resource": "answers of an API are replayed as recorded",
    "GpuService": "restores and calls take as long as they were measured",
    "Fleet": "a recorded window has no prompts; `tangram sim` plays fleets with the workload trajectories",
    "Node": "it is a note that changes nothing",
}
_ABSENT: Final = object()


class Playability(NamedTuple):
    """Whether any change is playable, and the changes that are not, with the reason."""

    anything: bool
    not_played: tuple[str, ...]


def playability(changes: Iterable[Change], pool: str, used: Mapping[str, Set[str]]) -> Playability:
    """Return which of ``changes`` a simulation of a window of ``pool`` can evaluate.

    ``used``: kind (``Resource``, ``GpuService``, ``Node``) → names that occur in the window.
    """
    anything, not_played = False, []
    for change in changes:
        for member, why in _members(change, pool, used):
            if why:
                not_played.append(f"{change.kind} {change.name}{member}: {why}")
            anything |= not why
    return Playability(anything, tuple(not_played))


def _members(change: Change, pool: str, used: Mapping[str, Set[str]]) -> Iterator[tuple[str, str]]:
    """Yield each changed member, with the reason why it is not playable; empty if it is."""
    if change.kind == "Pool" and change.name != pool:
        yield "", f"the window is of pool {pool}"
    elif change.kind == "Node" and change.name not in used["Node"]:
        yield "", f"it is no present node of pool {pool}"
    elif change.kind == "Node":
        yield "", ""
    elif change.kind == "Project":
        yield "", "the window is of one pool, with its present projects"
    elif change.name not in used.get(change.kind, {change.name}):
        yield "", "no action of the last minutes uses it"
    elif change.after is None:
        yield "", "it is deleted: actions that use it would wait forever"
    elif change.after.get("limit_units") == 0:
        yield " limit_units", "no grants: actions that use it would wait forever"
    else:
        before = change.before or {}
        for member in sorted({*before, *change.after}):
            values = [each.get(member, _ABSENT) for each in (before, change.after)]
            if values[0] != values[1]:
                yield f" {member}", "" if member in PLAYED[change.kind] else _WHY[change.kind]


T = TypeVar("T")

WINDOW_SECONDS: Final = 300
#: Time played before the window, as far as the journal has it.
BEFORE_SECONDS: Final = 600
#: Name of the pool in a simulation.
POOL: Final = "default"
NOW: Final = "as it is"
THEN: Final = "as it would be"
#: Kinds that the simulator has ledgers of.
_KINDS: Final = ("cpu", "memory", "gpu")


def what_if(
    http: HttpRequest, wanted: Wanted, changes: list[applying.Change], project: str, *, prune: bool
) -> Simulation:
    """Create the simulation of ``changes`` on the last minutes.

    Raises InvalidRequest if no change is playable, or no action ran.
    """
    config = current_config()
    pool = config.projects[project].default_pool
    if not changes:
        raise InvalidRequest("nothing changes")
    window = _window(config, pool)
    there = {"Resource": set(window.limits), "GpuService": set(window.services),
             "Node": set(_nodes(pool).values_list("name", flat=True))}  # fmt: skip
    playable = playability(changes, pool, there)
    if not playable.anything:
        raise InvalidRequest(f"a simulation cannot show this: {'; '.join(playable.not_played)}")
    after = _without_removals(_afterwards(http, wanted, prune=prune), config)
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
        untold=playable.not_played,
    )
    source = f"the last {WINDOW_SECONDS // 60} minutes, {window.actions:,} actions of pool {pool}"
    if window.foreign:
        source += (
            f"; {window.foreign:,} left out: they need resources that are not declared any more"
        )
    return simulation_create(
        http=http, project=project, request=request, window=window, source=source,
        title=f"What if, after revision {config.revision}",
    )  # fmt: skip


class _RolledBack(Exception):
    """Ends the transaction of a trial."""


def _afterwards(http: HttpRequest, wanted: Wanted, *, prune: bool) -> Config:
    """Return the configuration after saving: applied and rolled back in one transaction."""
    found: list[Config] = []
    try:
        with transaction.atomic():
            found.append(applying.apply(wanted, actor=actor_at(http), prune=prune)[0])
            raise _RolledBack
    except _RolledBack:
        return found[0]


def _without_removals(config: Config, before: Config) -> Config:
    """Return ``config`` with the objects that it removes: removals are not played."""
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
    """Return the window with the time before it; without that time if it is too large."""
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
    """Return the pool of ``config`` as a cluster; the sizes are for display, see `machines_of`."""
    if pool not in config.pools:
        raise InvalidRequest(f"pool {pool} is deleted: its actions would wait forever")
    nodes = [node for node in _nodes(pool) if node.name not in config.drained_nodes]
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


def assumptions(
    *,
    before: int,
    before_seconds: float,
    used: Mapping[str, tuple[int, ...]],
    unknown: Collection[str],
    unseen: Collection[str],
    residents: int = 0,
) -> tuple[str, ...]:
    """Return the initial conditions as sentences, with the guesses among them.

    ``unknown``: resources whose earlier use is not known; ``unseen``: services without a recorded
    restore; ``residents``: number of chunks with a service in memory.
    """
    found = []
    if before_seconds > 0:
        found.append(
            f"{before:,} actions of the {before_seconds / 60:.2g} minutes before the window are played "
            "under the present configuration and not counted. Actions that started earlier are missing"
        )
    else:
        found.append("at first no unit is held and no quota is used: the journal starts here")
    for name, amounts in sorted(used.items()):
        most = max(amounts) / MILLI
        found.append(f"{most:g} units of {name} were used before that, and count throughout")
    if names := ", ".join(sorted(unknown)):
        found.append(f"earlier use of {names} is not known and taken as 0")
    if names := ", ".join(sorted(unseen)):
        found.append(f"no restore of {names} is recorded: each is assumed to take a second")
    there = f"on {residents} chunks" if residents else "on no chunk"
    found.append(f"GPU services are in memory {there} at first; drained nodes are not used")
    return tuple(found)
