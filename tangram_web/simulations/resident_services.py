"""Which GPU services lay in memory when what is played began, as a journal and the GPU map tell it.

Rules
1. Until the first action that is played, the last word on a chunk counts; from then on the first one,
   for what happens later comes about by playing. Whom a grant finds there, or makes leave, was there;
   who is restored or brought ahead was not.
2. A restore for an action that is not played (it came before) would never be played either. So it is
   passed over: who finds the service there later finds it there from the beginning on.
3. What a node says when it joins is all that is there. What is said of it afterwards tells nothing of
   the beginning.
4. Of what the journal is silent about, the map of GPUs at that moment counts, if there is one. It was
   used longest ago.
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
    """Reads entries in their order."""

    def __init__(self, played: Iterable[str]) -> None:
        """``played``: ids of the actions that are played, which grows while entries are read."""
        self._played = played
        #: Node → where a service was at the beginning, or was not.
        self._known: defaultdict[str, dict[Home, bool]] = defaultdict(dict)
        #: Nodes of which nothing more can be known.
        self._closed: set[str] = set()
        self._begun = False

    def take(self, entry: JournalEntry) -> None:
        """Read one entry, of which ``played`` knows already."""
        self._begun = self._begun or bool(self._played)
        for event in entry.events:
            self._event(event)
        for decision in entry.decisions:
            self._decision(decision)

    def residents(self, scene: Iterable[Mapping[str, Any]] = ()) -> Residents:
        """Return who was there; ``scene``: rows of the GPU map of that moment (rule 4)."""
        found: defaultdict[str, list[Home]] = defaultdict(list)
        for row in scene:
            home = Home(row["service"], _numbers(row["units"]))
            if home not in self._known[row["node"]]:
                found[row["node"]].append(home)
        for node, homes in self._known.items():
            found[node] += [home for home, there in homes.items() if there]
        return {node: tuple(homes) for node, homes in sorted(found.items()) if homes}

    def _event(self, event: Event) -> None:
        if isinstance(event, NodeJoined):
            self._join(event)
        elif isinstance(event, ActionFinished | ServicePrepared) and not self._begun:
            for home in (event.chunk or ChunkNews()).gone:
                self._say(event.node, home, there=False)

    def _join(self, event: NodeJoined) -> None:
        name, gpu = event.node.name, event.node.resources.get("gpu")
        if not self._begun:
            self._known[name] = dict.fromkeys(self._known[name], False)
        for home in gpu.residents if gpu is not None else ():
            self._say(name, home, there=True)
        if self._begun:
            self._closed.add(name)

    def _decision(self, decision: Decision) -> None:
        if isinstance(decision, Evict):
            self._left(decision.node, decision.home)
        elif isinstance(decision, Prepare) and decision.awake:
            self._say(decision.node, decision.home, there=not self._begun)
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
        """Note that somebody is granted a chunk where a service is, or is brought to."""
        if cached or not self._begun:
            self._say(grant.node or "", home, there=True)
        elif grant.action_id in self._played:  # else rule 2
            self._say(grant.node or "", home, there=False)

    def _left(self, node: str, home: Home) -> None:
        self._say(node, home, there=self._begun)

    def _say(self, node: str, home: Home, *, there: bool) -> None:
        known, home = self._known[node], Home(*home)
        if not self._begun:
            known.pop(home, None)  # the one used last stands last
            known[home] = there
        elif node not in self._closed:
            known.setdefault(home, there)


def _numbers(ranges: str) -> tuple[int, ...]:
    """Return what ``0-3,8`` stands for."""
    parts = (part.partition("-") for part in ranges.split(",") if part)
    return tuple(n for low, _, high in parts for n in range(int(low), int(high or low) + 1))
