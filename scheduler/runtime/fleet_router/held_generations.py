"""HeldGenerations: the generations of one web process, as the journal says what becomes of them.

A generation *waits* for its grant, is *served* under it, and may be returned to the queue and granted again. What the scheduler
decides meanwhile (`Abort`, `Requeue`, `Finish`), and a client that leaves, interrupts the serving task in the midst of what it awaits.

Rules
1. A generation is here from its submission to its `Finish`. One whose client left has no task any more: its next grant is
   answered with the report that it was cancelled.
2. Those that are granted here are renewed, until their `Finish`.
3. After a journal entry that cannot be read, those that wait are given up: their grant may have been in it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from domain.action import Action
from domain.decisions import Abort, Finish, Grant, Requeue, SetFleet
from domain.fleets import FleetWorker
from domain.ids import ActionId
from domain.journal_reducer import JournalReducer, on


@dataclass(frozen=True)
class ClientLeft:
    """The client disconnected."""


@dataclass(frozen=True)
class GrantMissed:
    """An entry of the journal could not be read; the grant may have been in it."""


#: What may become of a generation that waits, or is served.
Change = Grant | Abort | Requeue | Finish | ClientLeft | GrantMissed
LEFT: Final = ClientLeft()
MISSED: Final = GrantMissed()


class Interrupted(Exception):
    """The serving of a generation ends here, since something was decided about it."""

    def __init__(self, change: Change) -> None:
        super().__init__(type(change).__name__)
        self.change = change


@dataclass(eq=False)
class HeldGeneration:
    """One generation of this process."""

    action: Action
    #: The grant that it is served under; None: it waits.
    grant: Grant | None = None
    #: The attempt whose end is reported.
    reported: int = 0
    #: Why its client does not wait any more; empty: it does.
    left: str = ""
    _changes: deque[Change] = field(default_factory=deque)
    _waiter: asyncio.Future[None] | None = None
    _serving: Serving | None = None

    def tell(self, change: Change) -> None:
        """Hand over what happened: it interrupts the serving, else waits to be read."""
        if self._serving is not None and not isinstance(change, Grant):
            self._serving.interrupt(change)
            return
        self._changes.append(change)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def client_left(self, watch: asyncio.Future[None]) -> None:
        """Note that a watch for the client's disconnect has ended."""
        if not watch.cancelled():
            self.tell(LEFT)

    async def change(self) -> Change:
        """Return the next change."""
        while not self._changes:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._changes.popleft()

    def served(self) -> Serving:
        """Return a context in which changes interrupt the running task."""
        return Serving(self)

    def set_serving(self, serving: Serving | None) -> None:
        """Note who is to be interrupted."""
        self._serving = serving


class Serving:
    """A context of the serving task that raises Interrupted wherever the task waits."""

    def __init__(self, held: HeldGeneration) -> None:
        self._held = held
        self._change: Change | None = None

    async def __aenter__(self) -> Serving:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._held.set_serving(self)
        return self

    def interrupt(self, change: Change) -> None:
        """Raise Interrupted in the task; the first change counts."""
        if self._change is None:
            self._change = change
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._held.set_serving(None)
        if self._change is None:
            return
        ours = self._task.uncancel() <= self._cancelling
        if ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise Interrupted(self._change) from error


class HeldGenerations(JournalReducer):
    """The generations of this process by their actions, and the workers that the journal names."""

    def __init__(self, cancelled: Callable[[HeldGeneration, int], None]) -> None:
        """``cancelled``: reports the end of an attempt of a generation whose client left."""
        super().__init__()
        self._cancelled = cancelled
        self._held: dict[ActionId, HeldGeneration] = {}
        #: Fleet → its workers by number, as far as they changed since this process began.
        self.workers: dict[str, dict[int, FleetWorker]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def open(self, action: Action) -> HeldGeneration:
        """Add a generation, before it is submitted."""
        held = self._held[action.id] = HeldGeneration(action)
        return held

    def forget(self, held: HeldGeneration) -> None:
        """Drop a generation that never entered the journal."""
        self._held.pop(held.action.id, None)

    def granted(self) -> tuple[ActionId, ...]:
        """Return those that are to be renewed."""
        return tuple(name for name, held in self._held.items() if held.grant is not None)

    def concerns(self, kinds: Set[type]) -> bool:
        """Return whether an entry with decisions of ``kinds`` changes anything here: most processes hold none."""
        return SetFleet in kinds or (bool(self._held) and super().concerns(kinds))

    @on(Grant)
    def _granted(self, grant: Grant) -> None:
        held = self._held.get(grant.action_id)
        if held is None:
            return
        held.grant = grant
        if held.left:
            self._cancelled(held, grant.attempt)
        else:
            held.tell(grant)

    @on(Abort)
    def _aborted(self, abort: Abort) -> None:
        held = self._held.get(abort.action_id)
        if held is None or held.reported == abort.attempt:
            return
        if held.left:
            self._cancelled(held, abort.attempt)
        else:
            held.tell(abort)

    @on(Requeue)
    def _requeued(self, requeue: Requeue) -> None:
        held = self._held.get(requeue.action_id)
        if held is not None:
            held.grant = None
            held.tell(requeue)

    @on(Finish)
    def _finished(self, finish: Finish) -> None:
        held = self._held.pop(finish.action_id, None)
        if held is not None:
            held.grant = None
            held.tell(finish)

    @on(SetFleet)
    def _fleet_set(self, decision: SetFleet) -> None:
        self.workers[decision.fleet] = {each.number: each for each in decision.workers}

    def skipped(self) -> None:
        """Give up those that wait."""
        for name, held in [*self._held.items()]:
            if held.left:
                del self._held[name]
            elif held.grant is None:
                held.tell(MISSED)
