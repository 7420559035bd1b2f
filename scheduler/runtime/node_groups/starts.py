"""NodeStarts: how long nodes of a group take from their launch until they join, and which are starting. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from contract.node_group_reports import InstanceReport
from scheduler.runtime.node_groups.pool_sight import START_SECONDS

#: Weight of the latest start in the mean.
_LATEST: Final = 0.3


@dataclass
class NodeStarts:
    """Of one group."""

    #: Mean of what was measured.
    seconds: float = START_SECONDS
    #: The longest of them; 0: none was measured.
    longest: float = 0.0
    _measured: bool = False
    #: Node → since when it starts; `_own`: those whose launch was seen.
    _since: dict[str, float] = field(default_factory=dict)
    _own: set[str] = field(default_factory=set)

    def launched(self, node: str, now: float) -> None:
        """Note that the engine took the launch of ``node``."""
        self._since[node] = now
        self._own.add(node)

    def look(self, instances: Iterable[InstanceReport], now: float) -> bool:
        """Note which instances have joined, and return whether one has whose launch was seen.

        One that was launched by another keeper counts from the moment it is seen.
        """
        awaited, has_joined = set(), False
        for each in instances:
            if each.joined:
                if each.name in self._own:
                    has_joined = True
                    self._add(now - self._since[each.name])
            elif each.state in {"pending", "running"}:
                awaited.add(each.name)
                self._since.setdefault(each.name, now)
        self._since = {node: at for node, at in self._since.items() if node in awaited}
        self._own &= awaited
        return has_joined

    def ages(self, now: float) -> tuple[float, ...]:
        """Return for how long each of the nodes has been starting."""
        return tuple(now - at for at in self._since.values())

    def _add(self, seconds: float) -> None:
        self.seconds += (_LATEST if self._measured else 1.0) * (seconds - self.seconds)
        self.longest = max(self.longest, seconds)
        self._measured = True
