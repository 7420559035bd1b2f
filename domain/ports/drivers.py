"""Drivers: the hands of managers on nodes.

Rules
1. `run` returns exactly one report for an order and raises nothing but cancellation. When it
   returns, nothing of the action is left running, or the report's detail says what is.
2. `started` is called at most once, before the report, when the work has been spawned.
3. `stop` is idempotent, returns at once, and makes `run` return soon; an unknown id is ignored.
4. Waiting inside the driver (slow environment creation) counts as overhead, not as execution.
5. A driver ends only what it created, and can prove it did (I7).
6. `resize` is idempotent and returns at once; what runs goes on with the new units, and what is
   being prepared starts with them. An id or attempt that does not run is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from domain.action import Kind, Outcome
from domain.allocation import Allocation
from domain.ids import ActionId, TrajectoryKey
from domain.ports.orders import Leftover, RunOrder, RunReport

#: Largest file that a driver accepts or returns.
MAX_FILE_BYTES = 16 * 1024 * 1024


class Driver(Protocol):
    """The hands of a manager on one node. All coroutines run in the node worker's event loop."""

    kinds: frozenset[Kind]

    @property
    def isolation(self) -> str:
        """How work is kept apart from the node: ``bwrap``, ``process``; known once it is open."""

    async def open(self) -> list[Leftover]:
        """End what a dead predecessor left running; return what it had started. Called once."""

    async def run(self, order: RunOrder, started: Callable[[], None]) -> RunReport:
        """Run one action to its end."""

    def stop(self, action_id: ActionId, outcome: Outcome, reason: str) -> None:
        """End a run; its report carries ``outcome`` unless it ended by itself before."""

    def resize(self, action_id: ActionId, attempt: int, allocation: Allocation) -> None:
        """Let a run go on with another allocation of one of its resources."""

    def forget(self, marks: Sequence[str]) -> None:
        """These attempts (`RunOrder.mark`) will not be ordered again: their marks may go."""

    async def remove_environment(self, trajectory: TrajectoryKey) -> None:
        """End what runs in it and delete it. An unknown trajectory is not an error."""

    async def put_file(self, trajectory: TrajectoryKey, path: str, content: bytes) -> None:
        """Write a file below the workspace. Raises InvalidRequest for a path that leaves it."""

    async def get_file(self, trajectory: TrajectoryKey, path: str, limit_bytes: int) -> bytes:
        """Read a file below the workspace. Raises InvalidRequest (leaves it, too large), NotFound."""

    async def close(self) -> None:
        """End everything this driver runs."""


class Passage(Protocol):
    """The way of one answer to whoever reads it while it comes. Raises nothing but cancellation."""

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Tell how the answer begins; once."""

    async def write(self, data: bytes) -> None:
        """Pass on what came. Waits while the reader is behind: so should whoever sends it."""

    async def end(self) -> None:
        """Tell that the answer is whole."""


class Passages(Protocol):
    """Opens passages."""

    def open(self, action_id: ActionId) -> Passage:
        """Return the way to whoever reads this action's answer."""


@runtime_checkable
class Repairing(Protocol):
    """A driver that restores what somebody else changed about its work."""

    #: How often it did since it was made.
    repairs: int
