"""Assignments of one rollout worker, as the journal has them: what it runs, what was withdrawn, and the backends.

A reducer beside the tail of the journal (`scheduler.runtime.gateway.journal_tail`), in the process of the worker.

Rules
1. `check` raises `Superseded` for a rollout that is not the worker's in that attempt, from the journal entry on
   that took it away.
2. A worker that the loop counts as lost has no rollouts. It joins again, in the same incarnation.
3. A later incarnation of the same name, or an entry that cannot be read, ends the process (`failed`): what it has
   would be a guess.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from domain.backends import BackendPool, LlmBackend
from domain.decisions import AssignRollout, FinishRollout, SetBackends, WithdrawRollout
from domain.journal_reducer import JournalReducer, on
from domain.rollout_events import RolloutWorkerJoined, RolloutWorkerLost
from domain.rollouts import Rollout
from rollout.ports import Assigned, Seat, Superseded, Withdrawn


class WorkerReplaced(Exception):
    """This process is not the rollout worker of its name any more."""


class Assignments(JournalReducer):
    """Rollouts of one incarnation of a worker."""

    def __init__(self, worker: str, incarnation: int) -> None:
        super().__init__()
        self.worker, self.incarnation = worker, incarnation
        #: Rollout → its attempt here.
        self.held: dict[str, int] = {}
        #: Pool → its backends, once the journal or a query has said.
        self.pools: dict[str, BackendPool] = {}
        #: Set while the loop counts this worker as live.
        self.joined = asyncio.Event()
        self.lost = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = loop.create_future()
        self._queue: asyncio.Queue[Assigned | Withdrawn] = asyncio.Queue()
        self._ends: dict[str, asyncio.Future[bool]] = {}

    async def changes(self) -> AsyncIterator[Assigned | Withdrawn]:
        """Yield assignments and withdrawals in their order."""
        while True:
            yield await self._queue.get()

    def check(self, rollout: Rollout, attempt: int | None = None) -> None:
        """Raise Superseded unless the rollout is this worker's, in ``attempt``."""
        held = self.held.get(rollout.id)
        if held is None or attempt not in (None, held):
            now = "not this worker's any more" if held is None else f"in attempt {held}"
            raise Superseded(f"{rollout.id} is {now}")

    def end_of(self, rollout: Rollout) -> asyncio.Future[bool]:
        """Return a future: True once the rollout is finished, False once it is not this worker's."""
        return self._ends.setdefault(rollout.id, asyncio.get_running_loop().create_future())

    def skipped(self) -> None:
        """An entry could not be read: it may concern this worker."""
        self._fail("an entry of the journal cannot be read")

    @on(RolloutWorkerJoined)
    def _worker_joined(self, event: RolloutWorkerJoined) -> None:
        if event.worker != self.worker:
            return
        if event.incarnation > self.incarnation:
            self._fail(f"another process is rollout worker {self.worker} now; give it another name")
        elif event.incarnation == self.incarnation:
            self.joined.set()

    @on(RolloutWorkerLost)
    def _worker_lost(self, event: RolloutWorkerLost) -> None:
        if (event.worker, event.incarnation) != (self.worker, self.incarnation):
            return
        self.joined.clear()
        self.lost.set()
        for rollout in list(self.held):
            self._withdraw(rollout, event.reason)

    @on(AssignRollout)
    def _assigned(self, decided: AssignRollout) -> None:
        rollout = decided.rollout
        if (decided.worker, decided.incarnation) == (self.worker, self.incarnation):
            self.held[rollout.id] = decided.attempt
            self._queue.put_nowait(Assigned(rollout, decided.attempt))
        elif rollout.id in self.held:
            self._withdraw(rollout.id, f"assigned to {decided.worker}")

    @on(WithdrawRollout)
    def _withdrawn(self, decided: WithdrawRollout) -> None:
        if (decided.worker, decided.incarnation) == (self.worker, self.incarnation):
            self._withdraw(decided.rollout_id, decided.reason, parked=decided.parked)

    @on(FinishRollout)
    def _finished(self, decided: FinishRollout) -> None:
        end = self._ends.pop(decided.rollout_id, None)
        if end is not None and not end.done():
            self.held.pop(decided.rollout_id, None)
            end.set_result(True)
        else:
            self._withdraw(decided.rollout_id, f"it is {decided.result.outcome}")

    @on(SetBackends)
    def _set_backends(self, decided: SetBackends) -> None:
        if decided.backends == BackendPool():
            self.pools.pop(decided.pool, None)  # it may be forgotten without a decision
        else:
            self.pools[decided.pool] = decided.backends

    def _withdraw(self, rollout: str, reason: str, *, parked: bool = False) -> None:
        attempt = self.held.pop(rollout, None)
        if attempt is None:
            return
        if (end := self._ends.pop(rollout, None)) is not None and not end.done():
            end.set_result(False)
        self._queue.put_nowait(Withdrawn(rollout, attempt, reason, parked))

    def _fail(self, why: str) -> None:
        if not self.failed.done():
            self.failed.set_exception(WorkerReplaced(why))


def seat_of(pool: str, backend: LlmBackend) -> Seat:
    """Return the seat of a backend, as a rollout gets it."""
    return Seat(
        pool,
        backend.name,
        backend.address,
        backend.weights_version,
        backend.dialect,
        backend.model,
        backend.number,
    )
