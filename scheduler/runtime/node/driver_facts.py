"""Facts of drivers that a node worker shows with its sign of life: pages, metrics and the status read them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from domain.ports import Driver, HostDriver, Measuring, Proxying, Repairing, UnitUse
from domain.ports.images import KeepsPrepared


async def driver_facts(drivers: Iterable[Driver]) -> dict[str, Any]:
    """Return the facts of drivers as JSON has them; a member is absent where no driver knows it."""
    facts: dict[str, Any] = {}
    for driver in drivers:
        if isinstance(driver, Repairing):
            facts["repairs"] = facts.get("repairs", 0) + driver.repairs
        if isinstance(driver, Proxying):
            facts["egress"] = driver.egress_facts()
        if isinstance(driver, KeepsPrepared) and (kept := driver.prepared.warm_facts()):
            facts["warm"] = msgspec.to_builtins(kept)
        if isinstance(driver, Measuring) and (uses := await asyncio.to_thread(driver.measured)):
            facts |= _use_of_gpus(uses)
        if isinstance(driver, HostDriver) and driver.host_memory().capacity_bytes is not None:
            facts["service_memory"] = tuple(driver.host_memory())
    return facts


def _use_of_gpus(uses: Mapping[int, UnitUse]) -> dict[str, Any]:
    """Return the use by GPU, as pairs that web processes of earlier versions read, and the memory of each beside it."""
    totals = {str(unit): use.total_bytes for unit, use in uses.items() if use.total_bytes}
    return {
        "gpus": {str(unit): (use.busy_ratio, use.used_bytes) for unit, use in uses.items()},
        **({"gpu_memory": totals} if totals else {}),
    }
