"""Host memory of one node that services may take: their copies, and whoever works from one.

Pure. A service counts from its start on a chunk to the end of its process, awake or asleep: an engine
may drop its copy while it is awake, and needs the room again to sleep. What a service takes is declared
or follows from its GPU memory (`GpuService.host_bytes`). One that keeps no copy takes nothing.

Rules
1. No service is started for which there is no room. Room is made for a call by ending who sleeps, the
   one used longest ago first, then who is cached; nobody is ended for what comes for nobody.
2. The sum never passes the capacity; without a capacity nothing is counted against anything.
"""

from __future__ import annotations

from collections.abc import Callable

from managers.gpu.engines import EngineFailed

Units = tuple[int, ...]
#: Where a service is: its name and its GPUs.
Home = tuple[str, Units]

_CURE = "declare the host_memory_bytes that it really takes, or give services of the node more"
_SETTING = "TANGRAM_NODE_SERVICE_MEMORY_BYTES"


class NoRoom(EngineFailed):
    """The memory that it needs is not free now; it may be later, or elsewhere."""


class TooLarge(EngineFailed):
    """It takes more host memory than the node has for all services together."""


class HostMemory:
    """Who takes how much."""

    def __init__(self, capacity_bytes: int | None, needs: Callable[[Home], int]) -> None:
        """``needs`` says how many bytes a service takes at a home; None: as much as there is."""
        self.capacity_bytes = capacity_bytes
        self._needs = needs
        #: The one used longest ago first.
        self._taken: dict[Home, int] = {}

    @property
    def used_bytes(self) -> int:
        """Bytes that are taken."""
        return sum(self._taken.values())

    def check(self, home: Home) -> None:
        """Raise TooLarge when there would be no room even if nobody took any."""
        needed = self._needs(home)
        if self.capacity_bytes is not None and needed > self.capacity_bytes:
            raise TooLarge(
                f"it needs {needed} bytes of host memory, and the node has {self.capacity_bytes} for"
                f" all services: {_CURE} ({_SETTING})"
            )

    def fits(self, home: Home) -> bool:
        """Say whether there is room for a service, or it has its room already."""
        if home in self._taken or self.capacity_bytes is None:
            return True
        return self.used_bytes + self._needs(home) <= self.capacity_bytes

    def take(self, home: Home) -> None:
        """Let a service have its room, and be the one used last. Raises NoRoom."""
        if not self.fits(home):
            raise self.full(home)
        taken = self._taken.pop(home, None)
        self._taken[home] = self._needs(home) if taken is None else taken

    def give_back(self, home: Home) -> None:
        """A service has ended; one that took nothing is no error."""
        self._taken.pop(home, None)

    def oldest(self) -> list[Home]:
        """Return who takes any, the one used longest ago first."""
        return [home for home, taken in self._taken.items() if taken]

    def full(self, home: Home) -> NoRoom:
        """Return the failure of a service for which there is no room."""
        return NoRoom(
            f"it needs {self._needs(home)} bytes of host memory, and of {self.capacity_bytes} for"
            f" services {self.used_bytes} are in use by {len(self.oldest())} of them: {_CURE}"
            f" ({_SETTING})"
        )
