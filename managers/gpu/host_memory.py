"""Host memory of a node for GPU services: their copies of weights, and what running ones need.

Pure. A service counts from its start on a chunk to the end of its process, awake or asleep: an engine
may drop its copy while it is awake, and needs the room again to sleep. The amount is declared or
follows from its GPU memory (`GpuService.host_bytes`). A service that keeps no copy takes nothing.

Rules
1. No service starts without room for it. For a call, room is made by ending sleeping services, the
   least recently used first, then cached ones; a prefetch ends nothing.
2. The sum never passes the capacity; without a capacity everything fits.
"""

from __future__ import annotations

from collections.abc import Callable

from managers.gpu.engines import EngineFailed

Units = tuple[int, ...]
#: A service on a chunk: its name and its GPUs.
Home = tuple[str, Units]

_ADVICE = "declare the host_memory_bytes that it really takes, or give services of the node more"
_SETTING = "TANGRAM_NODE_SERVICE_MEMORY_BYTES"


class NoRoom(EngineFailed):
    """The memory that it needs is not free now; it may be later, or elsewhere."""


class HostMemoryExceeded(EngineFailed):
    """It takes more host memory than the node has for all services together."""


class HostMemory:
    """Bytes taken by each service."""

    def __init__(self, capacity_bytes: int | None, needs: Callable[[Home], int]) -> None:
        """``needs`` returns the bytes of a service at a home; ``capacity_bytes`` None: no limit."""
        self.capacity_bytes = capacity_bytes
        self._needs = needs
        #: The least recently used first.
        self._taken: dict[Home, int] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes that are taken."""
        return sum(self._taken.values())

    def check(self, home: Home) -> None:
        """Raise HostMemoryExceeded when the service would not fit into the empty memory."""
        needed = self._needs(home)
        if self.capacity_bytes is not None and needed > self.capacity_bytes:
            raise HostMemoryExceeded(
                f"it needs {needed} bytes of host memory, and the node has {self.capacity_bytes} for"
                f" all services: {_ADVICE} ({_SETTING})"
            )

    def fits(self, home: Home) -> bool:
        """Say whether there is room for a service, or it is counted already."""
        if home in self._taken or self.capacity_bytes is None:
            return True
        return self.used_bytes + self._needs(home) <= self.capacity_bytes

    def take(self, home: Home) -> None:
        """Count a service, as the last used one. Raises NoRoom."""
        if not self.fits(home):
            raise self.full(home)
        taken = self._taken.pop(home, None)
        self._taken[home] = self._needs(home) if taken is None else taken

    def give_back(self, home: Home) -> None:
        """Stop counting a service that has ended; an unknown one is ignored."""
        self._taken.pop(home, None)

    def oldest(self) -> list[Home]:
        """Return the services that take any, the least recently used first."""
        return [home for home, taken in self._taken.items() if taken]

    def full(self, home: Home) -> NoRoom:
        """Return the failure of a service for which there is no room."""
        return NoRoom(
            f"it needs {self._needs(home)} bytes of host memory, and of {self.capacity_bytes} for"
            f" services {self.used_bytes} are in use by {len(self.oldest())} of them: {_ADVICE}"
            f" ({_SETTING})"
        )
