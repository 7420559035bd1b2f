"""The modelled node behind the port of real drivers: asyncio, and the same duration function.

The event heap of `engine` is what makes simulations fast; this is the same model for code that
expects a `domain.ports.Driver` (a node worker without hardware, the conformance suite). Time is
the event loop's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from domain.action import Action
from domain.ports import RunOrder
from managers.cpu.fake import FakeDriver, FakeStorage, Play, read_command
from simulator.overheads import NONE, Overheads
from simulator.work import ActionWork, declared_work, granted_milli

WorkOf = Callable[[Action], ActionWork | None]


class ModelledDriver(FakeDriver):
    """Runs orders for as long as their work takes on the units that were granted."""

    isolation = "simulated"

    def __init__(
        self,
        work_of: WorkOf = declared_work,
        overheads: Overheads = NONE,
        storage: FakeStorage | None = None,
    ) -> None:
        """``work_of`` None for an action: its command says how long it takes, as ``sleep 3``."""
        super().__init__(self._play, storage)
        self._work_of = work_of
        self._overheads = overheads

    def _play(self, order: RunOrder) -> Play:
        play = replace(read_command(order), preparing_seconds=self._overheads.environment_seconds)
        work = self._work_of(order.action)
        if work is None:
            return play
        seconds = work.seconds(granted_milli(order.allocations, work.key))
        return replace(play, seconds=seconds, exit_code=0)
