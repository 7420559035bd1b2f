"""Which services lie on which chunks, and what came and went: the GPU map's other half.

A grant says who leaves a chunk and who is brought there; a node's report says what really happened
(`domain.events.ChunkNews`), and is believed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from domain.allocation import Allocation, Home
from domain.decisions import Evict, Prepare
from domain.events import ActionFinished, ChunkNews, ServicePrepared
from domain.inventory import NodeInventory
from tangram_web.live.capacity import as_ranges

#: Comings and goings that are kept.
KEPT: Final = 50


@dataclass
class _Resident:
    since: float
    used_at: float
    uses: int = 0


class Residents:
    """Services in the memory of GPUs, by node and chunk."""

    def __init__(self) -> None:
        self.revision = 0
        self._nodes: dict[str, dict[Home, _Resident]] = {}
        self._log: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def join(self, inventory: NodeInventory, at: float) -> None:
        """Believe what a node says is in its memory when it joins."""
        gpu = inventory.resources.get("gpu")
        found = gpu.residents if gpu is not None else ()
        if found or inventory.name in self._nodes:
            self.revision += 1
            self._nodes[inventory.name] = {Home(*home): _Resident(at, at) for home in found}

    def forget(self, node: str) -> None:
        """Nothing is said any more of what lay on a node."""
        if self._nodes.pop(node, None) is not None:
            self.revision += 1

    def grant(self, node: str | None, allocations: Iterable[Allocation], at: float) -> None:
        """Enter what a grant does to the memory of a chunk."""
        for allocation in allocations:
            hosting = allocation.hosting
            if node is None or hosting is None:
                continue
            self.revision += 1
            for home in hosting.evicted:
                self._leave(node, Home(*home), "evicted", at)
            if hosting.service:
                home = Home(hosting.service, allocation.units)
                there = self._nodes.setdefault(node, {})
                if home not in there:
                    there[home] = _Resident(at, at)
                    self._note("restored", node, home, at)
                there[home].used_at = at
                there[home].uses += 1

    def evict(self, decision: Evict, at: float) -> None:
        """Somebody made a service leave."""
        self.revision += 1
        self._leave(decision.node, Home(*decision.home), "evicted", at)

    def prepare(self, decision: Prepare, at: float) -> None:
        """A service is on its way to a chunk that nobody was granted for it."""
        if not decision.awake:
            return
        self.revision += 1
        home = Home(*decision.home)
        self._nodes.setdefault(decision.node, {})[home] = _Resident(at, at)
        self._note("ahead", decision.node, home, at)

    def report(self, event: ActionFinished, held: Iterable[Allocation], at: float) -> None:
        """Enter what a node says against the books, and how long a restore for ``held`` took."""
        if event.chunk is None:
            return
        self._believe(event.node, event.chunk, at)
        for each in held:
            if each.hosting is not None and each.hosting.service and not each.hosting.cached:
                home = Home(each.hosting.service, each.units)
                self._took(event.node, "restored", home, event.chunk.restore_seconds)

    def prepared(self, event: ServicePrepared, at: float) -> None:
        """Enter whether a service that was brought ahead is there, and how long that took."""
        if event.awake:
            self._took(event.node, "ahead", Home(*event.home), event.seconds)
        elif not event.failed:
            self._note("prepared", event.node, Home(*event.home), at)
            self._took(event.node, "prepared", Home(*event.home), event.seconds)
        self._believe(event.node, event.chunk or ChunkNews(), at)

    def _believe(self, node: str, news: ChunkNews, at: float) -> None:
        self.revision += 1
        for home in news.gone:
            self._leave(node, Home(*home), "gone", at)

    def _took(self, node: str, what: str, home: Home, seconds: float) -> None:
        """Write how long it took to the newest row of that, if it does not say so yet."""
        wanted = (node, what, home.service, as_ranges(home.units))
        for row in reversed(self._log):
            if (row["node"], row["what"], row["service"], row["units"]) == wanted:
                row["seconds"] = row["seconds"] or seconds
                return

    def rows(self, wall_offset: float) -> dict[str, Any]:
        """Return who lies where, by node and chunk, and the newest comings and goings first."""
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

    def _leave(self, node: str, home: Home, what: str, at: float) -> None:
        if self._nodes.get(node, {}).pop(home, None) is not None:
            self._note(what, node, home, at)

    def _note(self, what: str, node: str, home: Home, at: float) -> None:
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
