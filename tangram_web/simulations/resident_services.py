"""GPU services in memory at the start of a simulated window, derived from the journal.

Rules
1. Before the first simulated action, the last entry about a chunk counts; after it the first one,
   because the simulation reproduces what follows. A service that a grant finds resident or evicts was
   resident; a service that is restored or prefetched was not.
2. A restore for an action that is not simulated is ignored, because the simulation would not repeat
   it: if a later action finds the service resident, it counts as resident from the start.
3. The residents that a node reports when it joins are complete. Later entries about that node say
   nothing about the start.
4. For what the journal does not contain, the GPU map of that moment counts, as least recently used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from domain.allocation import Home
from domain.codec import JournalEntry
from domain.decisions import Decision, Evict, Grant, Prepare
from domain.events import ActionFinished, ChunkNews, Event, NodeJoined, ServicePrepared

#: Node → its services, the one used longest ago first.
Residents = dict[str, tuple[Home, ...]]


class ResidentServices:
    """Reads journal entries in their order."""

    def __init__(self, played: Iterable[str]) -> None:
        """``played``: ids of the simulated actions, which the caller adds while entries are read."""
        self._played = played
        #: Node → home of a service → whether it was resident at the start.
        self._known: defaultdict[str, dict[Home, bool]] = defaultdict(dict)
        #: Nodes about which later entries say nothing (rule 3).
        self._closed: set[str] = set()
        self._begun = False

    def take(self, entry: JournalEntry) -> None:
        """Read one entry, after its simulated actions were added to ``played``."""
        self._begun = self._begun or bool(self._played)
        for event in entry.events:
            self._event(event)
        for decision in entry.decisions:
            self._decision(decision)

    def residents(self, scene: Iterable[Mapping[str, Any]] = ()) -> Residents:
        """Return the residents by node; ``scene``: rows of the GPU map of that moment (rule 4)."""
        found: defaultdict[str, list[Home]] = defaultdict(list)
        for row in scene:
            home = Home(row["service"], _numbers(row["units"]))
            if home not in self._known[row["node"]]:
                found[row["node"]].append(home)
        for node, homes in self._known.items():
            found[node] += [home for home, resident in homes.items() if resident]
        return {node: tuple(homes) for node, homes in sorted(found.items()) if homes}

    def _event(self, event: Event) -> None:
        if isinstance(event, NodeJoined):
            self._join(event)
        elif isinstance(event, ActionFinished | ServicePrepared) and not self._begun:
            for home in (event.chunk or ChunkNews()).gone:
                self._set(event.node, home, resident=False)

    def _join(self, event: NodeJoined) -> None:
        name, gpu = event.node.name, event.node.resources.get("gpu")
        if not self._begun:
            self._known[name] = dict.fromkeys(self._known[name], False)
        for home in gpu.residents if gpu is not None else ():
            self._set(name, home, resident=True)
        if self._begun:
            self._closed.add(name)

    def _decision(self, decision: Decision) -> None:
        if isinstance(decision, Evict):
            self._left(decision.node, decision.home)
        elif isinstance(decision, Prepare) and decision.awake:
            self._set(decision.node, decision.home, resident=not self._begun)
        elif isinstance(decision, Grant) and decision.node is not None:
            for held in decision.allocations:
                if held.hosting is None:
                    continue
                for home in held.hosting.evicted:
                    self._left(decision.node, home)
                if held.hosting.service:
                    self._called(
                        decision, Home(held.hosting.service, held.units), held.hosting.cached
                    )

    def _called(self, grant: Grant, home: Home, cached: bool) -> None:
        """Read a grant of a chunk on which a service is resident, or is restored."""
        if cached or not self._begun:
            self._set(grant.node or "", home, resident=True)
        elif grant.action_id in self._played:  # else rule 2
            self._set(grant.node or "", home, resident=False)

    def _left(self, node: str, home: Home) -> None:
        self._set(node, home, resident=self._begun)

    def _set(self, node: str, home: Home, *, resident: bool) -> None:
        known, home = self._known[node], Home(*home)
        if not self._begun:
            known.pop(home, None)  # keeps the order by last use
            known[home] = resident
        elif node not in self._closed:
            known.setdefault(home, resident)


def _numbers(ranges: str) -> tuple[int, ...]:
    """Return the numbers in a text such as ``0-3,8``."""
    parts = (part.partition("-") for part in ranges.split(",") if part)
    return tuple(n for low, _, high in parts for n in range(int(low), int(high or low) + 1))
