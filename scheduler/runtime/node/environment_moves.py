"""Moves of environments on a node: as source it holds and packs them, as target it fetches and begins them.

Source. From the order on the gate of the door is closed for the trajectory, and a file says so (`held_environments`) before anything
is packed: what the target gets is what the environment has until the move ends. The report follows. `EndMove` opens the gate if
the trajectory lives on here; else the environment is removed first, so that requests that waited find it gone.

Target. The archive comes from the door of the source. `EndMove` breaks the fetch off, waits for its end, and removes what it
has made.

Crashes. An order is settled with its report, so the next worker repeats it. It closes the gate for what is held before its door opens, and deletes
packed snapshots that are of no held environment. An order to run shows that the scheduler lets a trajectory live here, whatever is held.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

from domain.decisions import EndMove, MoveEnvironment, ReceiveEnvironment
from domain.errors import Conflict, InvalidRequest, TangramError, Unavailable
from domain.events import EnvironmentPacked, EnvironmentReceived
from domain.ids import TrajectoryKey
from domain.moves import FAILED, IN_USE, is_packed, packed_name
from domain.ports import Archiving, Driver
from domain.ports.moves import EnvironmentMoving, MovesEnvironments
from scheduler.runtime.node.door.gate import EnvironmentGate
from scheduler.runtime.node.held_environments import HeldEnvironment, HeldEnvironments
from scheduler.runtime.node.reporter import Reporter

log = logging.getLogger(__name__)


class FetchesPacked(Protocol):
    """Gets what other nodes have packed."""

    def fetch_from(
        self, node: str, project: str, name: str, trajectory: str
    ) -> AsyncGenerator[bytes, None]:
        """Yield the archive of a snapshot of ``node``. Raises Unavailable."""


class EnvironmentMoves:
    """The moves of one node."""

    def __init__(
        self,
        node: str,
        reporter: Reporter,
        driver: Driver | None,
        fetcher: FetchesPacked,
        gate: EnvironmentGate,
        folder: Path,
    ) -> None:
        self._node = node
        self._reporter = reporter
        self._driver = driver
        self._fetcher = fetcher
        self._gate = gate
        self._held = HeldEnvironments(folder)
        #: Trajectory → set when its environment is neither packed nor received any more.
        self._busy: dict[TrajectoryKey, asyncio.Event] = {}
        #: Kept, so that it is not garbage-collected while it runs.
        self._releasing: asyncio.Future[None] | None = None
        #: Trajectory → set when its fetch is to end.
        self._withdrawn: dict[TrajectoryKey, asyncio.Event] = {}

    @property
    def works(self) -> bool:
        """Whether this node moves environments."""
        return isinstance(self._driver, MovesEnvironments) and self._driver.moving.works

    async def open(self) -> None:
        """Hold what a predecessor has packed, before the door opens; delete what it left of other moves."""
        kept = set()
        for held in await asyncio.to_thread(self._held.open):
            self._gate.close(held.trajectory)
            kept.add((held.project, packed_name(held.trajectory, held.number)))
        if isinstance(self._driver, Archiving):
            for project, name in await self._driver.snapshots():
                if is_packed(name) and (project, name) not in kept:
                    await self._driver.drop_snapshot(project, name)

    async def pack(self, order: MoveEnvironment, settled: Callable[[], None]) -> None:
        """Hold an environment and pack it, and report; what is in use goes on as before."""
        over = self._begin(order.trajectory)
        failed = stays = ""
        try:
            await self._pack(order)
        except (TangramError, OSError) as error:
            failed, stays = str(error) or type(error).__name__, _code_of(error)
            if stays == FAILED:
                log.warning("%s is not packed: %s", order.trajectory, failed)
            await self.release(order.trajectory)
        finally:
            self._end(order.trajectory, over)
        event = EnvironmentPacked(
            trajectory=order.trajectory,
            node=self._node,
            number=order.number,
            failed=failed,
            stays=stays,
        )
        self._reporter.report(event, settled)

    async def _pack(self, order: MoveEnvironment) -> None:
        moving, key = self._moving(), order.trajectory
        self._gate.close(key)
        if uses := self._gate.uses(key):
            raise Conflict(f"{uses} open requests use it", code=IN_USE)
        held = HeldEnvironment(key, order.number, order.project)
        await asyncio.to_thread(self._held.add, held)
        await moving.pack(order)

    async def receive(self, order: ReceiveEnvironment, settled: Callable[[], None]) -> None:
        """Fetch an environment and begin it, and report; nothing is reported of a fetch that was broken off."""
        key = order.trajectory
        over, withdrawn = self._begin(key), asyncio.Event()
        self._withdrawn[key] = withdrawn
        failed = ""
        try:
            name = packed_name(key, order.number)
            pieces = self._fetcher.fetch_from(
                order.source, order.project, name, key.partition("/")[2]
            )
            async with aclosing(_until(withdrawn, pieces)) as archive:
                await self._moving().receive(order, archive)
        except (TangramError, OSError) as error:
            failed = str(error) or type(error).__name__
            log.warning("%s does not come from node %s: %s", key, order.source, failed)
        finally:
            del self._withdrawn[key]
            self._end(key, over)
        if withdrawn.is_set():
            settled()
            return
        event = EnvironmentReceived(
            trajectory=key, node=self._node, number=order.number, failed=failed
        )
        self._reporter.report(event, settled)

    def stays(self, trajectory: TrajectoryKey) -> None:
        """Let requests use an environment again, whose trajectory lives on here."""
        self._gate.open(trajectory)

    def used(self, trajectory: TrajectoryKey | None) -> None:
        """Hold an environment no more in which an action is to run."""
        if trajectory is not None and self._held.of(trajectory) is not None:
            self._gate.open(trajectory)
            self._releasing = asyncio.ensure_future(self.release(trajectory))

    async def end(self, order: EndMove, settled: Callable[[], None]) -> None:
        """Forget what was packed of a trajectory that lives on here."""
        await self.release(order.trajectory, order.number)
        settled()

    async def release(self, trajectory: TrajectoryKey, number: int = 0) -> None:
        """Delete what was packed of a trajectory, and hold it no more. ``number``: of the one move that is meant; 0: any."""
        held = self._held.of(trajectory)
        if held is not None and number not in (0, held.number):
            return  # its next move has begun
        if held is not None:
            if isinstance(self._driver, Archiving):
                name = packed_name(trajectory, held.number)
                await self._driver.drop_snapshot(held.project, name)
            await asyncio.to_thread(self._held.remove, trajectory)
        self._gate.open(trajectory)

    async def ended(self, trajectory: TrajectoryKey) -> None:
        """Wait until an environment is neither packed nor received; a fetch is broken off."""
        if (withdrawn := self._withdrawn.get(trajectory)) is not None:
            withdrawn.set()
        while (over := self._busy.get(trajectory)) is not None:
            await over.wait()

    def _moving(self) -> EnvironmentMoving:
        if isinstance(self._driver, MovesEnvironments) and self._driver.moving.works:
            return self._driver.moving
        raise InvalidRequest("this node moves no environments", code=FAILED)

    def _begin(self, trajectory: TrajectoryKey) -> asyncio.Event:
        over = self._busy[trajectory] = asyncio.Event()
        return over

    def _end(self, trajectory: TrajectoryKey, over: asyncio.Event) -> None:
        over.set()
        if self._busy.get(trajectory) is over:
            del self._busy[trajectory]


def _code_of(error: Exception) -> str:
    """Return why an environment stays: what a refusal says, else that it failed."""
    code = error.code if isinstance(error, Conflict) else FAILED
    return FAILED if code in {"conflict", "exists"} else code


async def _until(
    withdrawn: asyncio.Event, pieces: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Yield the pieces until they are withdrawn. Raises Unavailable then."""
    over = asyncio.ensure_future(withdrawn.wait())
    try:
        while True:
            piece = asyncio.ensure_future(anext(pieces, b""))
            await asyncio.wait({piece, over}, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                piece.cancel()
                await asyncio.wait({piece})
                raise Unavailable("the move has ended")
            if not (content := piece.result()):
                return
            yield content
    finally:
        over.cancel()
        await pieces.aclose()
