"""With what a what-if begins: the nodes as they are with the services in their GPUs, and what was used
before anybody can tell why.

What ran and was granted in the minutes before the window is played (`whatif`). What the journal does
not reach back to is told by the scheduler as a sum alone: what a quota counts now, without what is
played of it, was granted before or to others. It counts from the beginning on, where the quota reaches
back beyond what is played; a shorter one has forgotten it by the time the window begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import Any, Final

import msgspec
import redis

from domain.errors import Unavailable
from domain.inventory import Config, ResourceInventory
from domain.resources import MILLI
from tangram_web.lib import bus, scheduler_client
from tangram_web.live.gpu_history import GpuHistoryStore
from tangram_web.records.models import NodeRecord
from tangram_web.simulations.inputs import JournalWindow, WindowReader
from tangram_web.simulations.resident_services import Residents

#: Kinds that the simulator has ledgers of.
_KINDS: Final = ("cpu", "memory", "gpu")


def machines_of(
    nodes: Iterable[NodeRecord], residents: Residents
) -> dict[str, dict[str, ResourceInventory]]:
    """Return what each node has, with its cores and GPUs by locality and who is in their memory."""
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
    """Return which services lay in GPU memory when what ``reader`` has read begins."""
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
    """Return milli-units of each quota that count when the play begins, and what nobody knows."""
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
        told: Mapping[str, Any] = scheduler_client.status().get("resources", {})
    except Unavailable:
        return {}, tuple(sorted(long))
    used = {
        name: tuple(
            max(0, round(use["used"] * MILLI) - window.granted.get(name, 0)) if r > played else 0
            for use, r in zip(told[name]["quotas"], reach, strict=False)
        )
        for name, reach in long.items()
        if "quotas" in told.get(name, {})
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
    """Say in words what a what-if begins with, and where that is a guess.

    ``unknown``: resources whose use before is not known; ``unseen``: services whose restore nobody saw;
    ``residents``: chunks of GPUs that have a service in memory.
    """
    found = []
    if before_seconds > 0:
        found.append(
            f"{before:,} actions of the {before_seconds / 60:.2g} minutes before are played as it is, and "
            "not counted: so what ran then is held, and what was granted then is used. What ran "
            "longer than that is not there"
        )
    else:
        found.append("nothing is held and no quota used at the beginning: the journal has no more")
    for name, amounts in sorted(used.items()):
        most = max(amounts) / MILLI
        found.append(f"{most:g} units of {name} were used before that, and count throughout")
    if names := ", ".join(sorted(unknown)):
        found.append(f"nobody told what of {names} was used before that: nothing")
    if names := ", ".join(sorted(unseen)):
        found.append(f"no restore of {names} was seen: each is taken to last a second")
    there = (
        f"GPU services are in memory on {residents} chunks"
        if residents
        else "no GPU service is in memory"
    )
    found.append(f"{there} at first; nodes that are drained were never used")
    return tuple(found)
