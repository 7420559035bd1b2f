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
from domain.decisions import Evict, Grant, Prepare
from domain.events import ActionFinished, ChunkReport, NodeJoined, ServicePrepared
from domain.journal_reducer import JournalReducer, on

#: Node → its services, in order of last use.
Residents = dict[str, tuple[Home, ...]]


class ResidentServices(JournalReducer):
    """Reads journal entries in their order."""

    def __init__(self, played: Iterable[str]) -> None:
        """``played``: ids of the simulated actions, which the caller adds while entries are read."""
        super().__init__()
        self._played = played
        #: Node → home of a service → whether it was resident at the start.
        self._known: defaultdict[str, dict[Home, bool]] = defaultdict(dict)
        #: Nodes about which later entries say nothing (rule 3).
        self._closed: set[str] = set()
        self._begun = False

    def begin(self, entry: JournalEntry) -> None:
        """Prepare for an entry whose simulated actions are in ``played`` already."""
        self._begun = self._begun or bool(self._played)

    def residents(self, snapshot: Iterable[Mapping[str, Any]] = ()) -> Residents:
        """Return the residents by node; ``snapshot``: rows of the GPU map of that moment (rule 4)."""
        found: defaultdict[str, list[Home]] = defaultdict(list)
        for row in snapshot:
            home = Home(row["service"], _numbers(row["units"]))
            if home not in self._known[row["node"]]:
                found[row["node"]].append(home)
        for node, homes in self._known.items():
            found[node] += [home for home, resident in homes.items() if resident]
        return {node: tuple(homes) for node, homes in sorted(found.items()) if homes}

    @on(ActionFinished, ServicePrepared)
    def _reported(self, event: ActionFinished | ServicePrepared) -> None:
        if not self._begun:
            for home in (event.chunk or ChunkReport()).gone:
                self._record(event.node, home, resident=False)

    @on(NodeJoined)
    def _joined(self, event: NodeJoined) -> None:
        name, gpu = event.node.name, event.node.resources.get("gpu")
        if not self._begun:
            self._known[name] = dict.fromkeys(self._known[name], False)
        for home in gpu.residents if gpu is not None else ():
            self._record(name, home, resident=True)
        if self._begun:
            self._closed.add(name)

    @on(Evict)
    def _evicted(self, decision: Evict) -> None:
        self._left(decision.node, decision.home)

    @on(Prepare)
    def _prepared(self, decision: Prepare) -> None:
        if decision.awake:
            self._record(decision.node, decision.home, resident=not self._begun)

    @on(Grant)
    def _granted(self, grant: Grant) -> None:
        if grant.node is None:
            return
        for held in grant.allocations:
            if held.hosting is None:
                continue
            for home in held.hosting.evicted:
                self._left(grant.node, home)
            if held.hosting.service:
                home = Home(held.hosting.service, held.units)
                self._called(grant, home, cached=held.hosting.cached)

    def _called(self, grant: Grant, home: Home, *, cached: bool) -> None:
        """Record a grant of a chunk on which a service is resident, or is restored."""
        if cached or not self._begun:
            self._record(grant.node or "", home, resident=True)
        elif grant.action_id in self._played:  # else rule 2
            self._record(grant.node or "", home, resident=False)

    def _left(self, node: str, home: Home) -> None:
        self._record(node, home, resident=self._begun)

    def _record(self, node: str, home: Home, *, resident: bool) -> None:
        known, home = self._known[node], Home(*home)
        if not self._begun:
            known.pop(home, None)  # keeps the order of last use
            known[home] = resident
        elif node not in self._closed:
            known.setdefault(home, resident)


def _numbers(ranges: str) -> tuple[int, ...]:
    """Return the numbers of ``0-3,8``."""
    parts = (part.partition("-") for part in ranges.split(",") if part)
    return tuple(n for low, _, high in parts for n in range(int(low), int(high or low) + 1))
