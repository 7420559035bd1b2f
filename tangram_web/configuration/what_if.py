"""What-if: simulation of the last minutes under the present and the edited configuration.

Both get the same actions of one pool, with the same durations and initial conditions (`simulations.pool_windows`); one
project owns the result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from time import time
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from django.http import HttpRequest
from msgspec.structs import replace

from domain.errors import InvalidRequest
from domain.inventory import Config
from domain.resources import MILLI
from simulator.request import ChangedMember, SimulationRequest
from tangram_web.audit.services import actor_at
from tangram_web.pools import applying
from tangram_web.pools.applying import Change
from tangram_web.pools.manifests import Wanted
from tangram_web.pools.selectors import current_config
from tangram_web.simulations.inputs import JournalWindow, WindowTooLarge
from tangram_web.simulations.models import Simulation
from tangram_web.simulations.pool_windows import (
    machines_of,
    nodes_of,
    read_window,
    used_before,
    variant_of,
)
from tangram_web.simulations.services import simulation_create

#: Kind → members that the simulator plays.
PLAYED: Final = {
    "Pool": {"policy", "shares", "light_by_default"},
    "Resource": {"limit_units", "quotas", "shares"},
    "GpuService": {"degrees", "max_concurrency"},
    "Fleet": set(),
    "Selector": set(),
    "NodeGroup": set(),
    "Node": {"drained"},
}
#: Kind → reason why its other members are not playable.
_WHY: Final = {
    "Pool": "a simulated node never loses its heartbeat and needs no sandbox, and a paused pool would"
    " never finish",
    "Resource": "answers of an API are replayed as recorded",
    "GpuService": "restores and calls take as long as they were measured",
    "Fleet": "a recorded window has no prompts; `tangram sim` plays fleets with the workload trajectories",
    "Selector": "calls of a recorded window are replayed on the degrees that they had",
    "NodeGroup": "a recorded window is replayed on the nodes that it had",
    "Node": "a reason changes nothing, and simulated nodes let no trajectory finish",
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


def changed_members(
    changes: Iterable[Change], pool: str, used: Mapping[str, Set[str]]
) -> tuple[ChangedMember, ...]:
    """Return every changed member with its values, for the page of the result."""
    return tuple(
        ChangedMember(
            change.kind, change.name, member.strip(), _text(change.before, member),
            _text(change.after, member), played=not why,
        )
        for change in changes
        for member, why in _members(change, pool, used)
    )  # fmt: skip


def _text(spec: Mapping[str, Any] | None, member: str) -> str:
    """Return a member as text; without a member, whether the object is there."""
    if not member.strip():
        return "" if spec is None else "declared"
    value = (spec or {}).get(member.strip(), _ABSENT)
    if value is _ABSENT:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


T = TypeVar("T")

WINDOW_SECONDS: Final = 300
#: Time played before the window, as far as the journal has it.
BEFORE_SECONDS: Final = 600
NOW: Final = "as it is"
THEN: Final = "as it would be"


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
             "Node": set(nodes_of(pool).values_list("name", flat=True))}  # fmt: skip
    playable = playability(changes, pool, there)
    if not playable.anything:
        raise InvalidRequest(f"a simulation cannot show this: {'; '.join(playable.not_played)}")
    after = _without_removals(applying.trial(wanted, actor=actor_at(http), prune=prune), config)
    configs = {NOW: config, THEN: after}
    variants = {name: variant_of(each, pool, window) for name, each in configs.items()}
    used, unknown = used_before(config, window)
    request = SimulationRequest(
        workload="recorded",
        policies=(NOW, THEN),
        variants=variants,
        machines=machines_of(nodes_of(pool), window.residents),
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
        changed=changed_members(changes, pool, there),
        window_ends=time(),
        window_seconds=float(WINDOW_SECONDS),
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


def _window(config: Config, pool: str) -> JournalWindow:
    """Return the window with the time before it; without that time if it is too large."""
    try:
        return read_window(config, pool, WINDOW_SECONDS, BEFORE_SECONDS)
    except WindowTooLarge:
        return read_window(config, pool, WINDOW_SECONDS, 0)


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
