"""GPU services in memory, by node and chunk, and the log of their loads and evictions.

A grant names the services to evict and to load; the report of the node states the result
(`domain.events.ChunkReport`) and takes precedence.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from domain.allocation import Allocation, Home
from domain.decisions import Evict, Prepare
from domain.events import ActionFinished, ChunkReport, ServicePrepared
from domain.inventory import NodeInventory
from tangram_web.live.capacity import as_ranges

#: Entries of the log.
MAX_LOG: Final = 50


@dataclass
class _Resident:
    since: float
    used_at: float
    uses: int = 0


class GpuResidents:
    """Services in the memory of GPUs, by node and chunk."""

    def __init__(self) -> None:
        self.revision = 0
        self._nodes: dict[str, dict[Home, _Resident]] = {}
        self._log: deque[dict[str, Any]] = deque(maxlen=MAX_LOG)

    def join(self, inventory: NodeInventory, at: float) -> None:
        """Replace the residents of a node by those that it reports when it joins."""
        gpu = inventory.resources.get("gpu")
        found = gpu.residents if gpu is not None else ()
        if found or inventory.name in self._nodes:
            self.revision += 1
            self._nodes[inventory.name] = {Home(*home): _Resident(at, at) for home in found}

    def forget(self, node: str) -> None:
        """Remove the residents of a node."""
        if self._nodes.pop(node, None) is not None:
            self.revision += 1

    def grant(self, node: str | None, allocations: Iterable[Allocation], at: float) -> None:
        """Apply the evictions and the load of a grant."""
        for allocation in allocations:
            hosting = allocation.hosting
            if node is None or hosting is None:
                continue
            self.revision += 1
            for home in hosting.evicted:
                self._remove(node, Home(*home), "evicted", at)
            if hosting.service:
                home = Home(hosting.service, allocation.units)
                there = self._nodes.setdefault(node, {})
                if home not in there:
                    there[home] = _Resident(at, at)
                    self._log_row("restored", node, home, at)
                there[home].used_at = at
                there[home].uses += 1

    def evict(self, decision: Evict, at: float) -> None:
        """Remove a service that an operator evicts."""
        self.revision += 1
        self._remove(decision.node, Home(*decision.home), "evicted", at)

    def prepare(self, decision: Prepare, at: float) -> None:
        """Add a service that is loaded before an action is granted its chunk."""
        if not decision.awake:
            return
        self.revision += 1
        home = Home(*decision.home)
        self._nodes.setdefault(decision.node, {})[home] = _Resident(at, at)
        self._log_row("ahead", decision.node, home, at)

    def report(self, event: ActionFinished, held: Iterable[Allocation], at: float) -> None:
        """Apply the report of a node, and record how long a restore for ``held`` took."""
        if event.chunk is None:
            return
        self._remove_gone(event.node, event.chunk, at)
        for each in held:
            if each.hosting is not None and each.hosting.service and not each.hosting.cached:
                home = Home(each.hosting.service, each.units)
                self._record_seconds(event.node, "restored", home, event.chunk.restore_seconds)

    def prepared(self, event: ServicePrepared, at: float) -> None:
        """Apply the result of a load before a grant, and record how long it took."""
        if event.awake:
            self._record_seconds(event.node, "ahead", Home(*event.home), event.seconds)
        elif not event.failed:
            self._log_row("prepared", event.node, Home(*event.home), at)
            self._record_seconds(event.node, "prepared", Home(*event.home), event.seconds)
        self._remove_gone(event.node, event.chunk or ChunkReport(), at)

    def _remove_gone(self, node: str, news: ChunkReport, at: float) -> None:
        self.revision += 1
        for home in news.gone:
            self._remove(node, Home(*home), "gone", at)

    def _record_seconds(self, node: str, what: str, home: Home, seconds: float) -> None:
        """Write the duration to the newest matching log row, if it has none yet."""
        wanted = (node, what, home.service, as_ranges(home.units))
        for row in reversed(self._log):
            if (row["node"], row["what"], row["service"], row["units"]) == wanted:
                row["seconds"] = row["seconds"] or seconds
                return

    def restores_since(self, at: float) -> dict[str, int]:
        """Return how often each service was restored since ``at``, as far back as the log goes."""
        recent = (row for row in self._log if row["at"] >= at)
        return dict(
            Counter(row["service"] for row in recent if row["what"] in ("restored", "ahead"))
        )

    def rows(self, wall_offset: float) -> dict[str, Any]:
        """Return the residents by node and chunk, and the log, newest first."""
        return {
            "residents": [
                {
                    "node": node,
                    "service": home.service,
                    "units": as_ranges(home.units),
                    "since": resident.since + wall_offset,
                    "used": resident.used_at + wall_offset,
                    "uses": resident.uses,
                }
                for node, there in sorted(self._nodes.items())
                for home, resident in sorted(there.items(), key=lambda item: item[0].units)
            ],
            "log": [row | {"at": row["at"] + wall_offset} for row in reversed(self._log)],
        }

    def _remove(self, node: str, home: Home, what: str, at: float) -> None:
        if self._nodes.get(node, {}).pop(home, None) is not None:
            self._log_row(what, node, home, at)

    def _log_row(self, what: str, node: str, home: Home, at: float) -> None:
        self._log.append(
            {
                "at": at,
                "what": what,
                "node": node,
                "service": home.service,
                "units": as_ranges(home.units),
                "seconds": 0.0,
            }
        )
