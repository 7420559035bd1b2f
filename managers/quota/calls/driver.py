"""The driver of calls: one request per order, many at a time, in the node worker's event loop.

Theory of operation. An order is one attempt. Whether it is made again is the core's decision, which
knows the quotas and the retry budget of the API; so what a server receives is what was granted. A
call that must not be made twice is marked on disk before its first byte goes out, so a worker that
died in between does not repeat it. The secret is read where it is used, and left out of everything
that comes back.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpcore

from domain.action import Kind, Outcome
from domain.allocation import Allocation
from domain.apis import ApiConfig, Reach, check_call
from domain.errors import InvalidRequest, NotFound
from domain.ids import ActionId, TrajectoryKey
from domain.ports import DriverContext, Leftover, RunOrder, RunReport
from managers.marks import MarkLog, SharedMarks
from managers.quota.calls.exchange import Attempt, exchange
from managers.quota.calls.guard import GuardedNetwork
from managers.quota.calls.secrets import Secrets

MOST_CONNECTIONS: Final = 1024
IDLE_SECONDS: Final = 15.0


@dataclass
class _Running:
    order: RunOrder
    task: asyncio.Task[RunReport]
    stopped: asyncio.Future[tuple[Outcome, str]]


class CallDriver:
    """Calls declared APIs."""

    kinds = frozenset({Kind.CALL})
    isolation = "none"

    def __init__(self, context: DriverContext, secrets: Secrets | None = None) -> None:
        self._directory = context.state_directory
        self._secrets = secrets or Secrets(context.settings.get("secrets_directory", ""))
        self._passages = context.passages
        self._pools: dict[Reach, httpcore.AsyncConnectionPool] = {}
        self._running: dict[ActionId, _Running] = {}

    async def open(self) -> list[Leftover]:
        """Return which calls a predecessor may have made without a report."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = MarkLog(self._directory / "marks.log")
        left = [mark.rpartition("#") for mark in log.open()]
        self._marks, self._forgotten = SharedMarks(log), set[str]()
        return [Leftover(ActionId(name), int(attempt), ended=False) for name, _, attempt in left]

    async def run(self, order: RunOrder, started: Callable[[], None]) -> RunReport:
        """Make one attempt. An order that is under way is not begun twice."""
        while (known := self._running.get(order.id)) and known.order.mark != order.mark:
            await asyncio.wait([known.task])
        if known is None:
            stopped = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._attend(order, started, stopped))
            known = self._running[order.id] = _Running(order, task, stopped)
            task.add_done_callback(lambda _: self._leave(order))
        try:
            return await asyncio.shield(known.task)
        except asyncio.CancelledError:
            self.stop(order.id, Outcome.CANCELLED, "the node worker gave it up")
            await asyncio.wait([known.task])
            raise

    async def _attend(
        self,
        order: RunOrder,
        started: Callable[[], None],
        stopped: asyncio.Future[tuple[Outcome, str]],
    ) -> RunReport:
        """Make the attempt, or end it when it is stopped: its connection is closed then."""
        try:
            attempt = self._attempt(order, started)
        except (InvalidRequest, NotFound) as error:
            return RunReport(Outcome.INFRA_FAILED, 0.0, detail=str(error))
        work = asyncio.ensure_future(exchange(self._pool(attempt.api), attempt))
        either: set[asyncio.Future[Any]] = {work, stopped}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        work.cancel()
        await asyncio.wait({work})
        if not work.cancelled():
            return work.result()
        outcome, reason = stopped.result()
        return RunReport(outcome, attempt.seconds(), detail=reason, never_started=not attempt.sent)

    def _attempt(self, order: RunOrder, started: Callable[[], None]) -> Attempt:
        """Check once more what was accepted: the API may be declared otherwise by now."""
        call, api = order.action.call, order.api
        if call is None or api is None:
            target = call.target if call is not None else "nothing"
            raise InvalidRequest(f"{target} is not an API that is declared now")
        check_call(call, api)
        secret = self._secrets.find(api.secret) if api.secret else ""
        limit = min(api.timeout_seconds, order.action.timeout_seconds or api.timeout_seconds)

        async def sending() -> None:
            if not order.action.replay_safe:
                await self._marks.add(order.mark)
            started()

        passage = None
        if call.stream and self._passages is not None:
            passage = self._passages.open(order.id)
        return Attempt(call, api, secret, limit, sending, passage)

    def _pool(self, api: ApiConfig) -> httpcore.AsyncConnectionPool:
        pool = self._pools.get(api.reach)
        if pool is None:
            pool = self._pools[api.reach] = httpcore.AsyncConnectionPool(
                ssl_context=ssl.create_default_context(),
                max_connections=MOST_CONNECTIONS,
                max_keepalive_connections=MOST_CONNECTIONS,
                keepalive_expiry=IDLE_SECONDS,
                network_backend=GuardedNetwork(api.reach),
            )
        return pool

    def stop(self, action_id: ActionId, outcome: Outcome, reason: str) -> None:
        """End a call; its report carries ``outcome`` unless the answer was there before."""
        known = self._running.get(action_id)
        if known is not None and not known.stopped.done():
            known.stopped.set_result((outcome, reason))

    def resize(self, action_id: ActionId, attempt: int, allocation: Allocation) -> None:
        """Do nothing: a call is what it is."""

    def forget(self, marks: Sequence[str]) -> None:
        """These attempts will not be ordered again: their marks may go, once they have ended."""
        running = {known.order.mark for known in self._running.values()}
        self._forgotten |= running & set(marks)
        self._marks.remove([mark for mark in marks if mark not in running])

    def _leave(self, order: RunOrder) -> None:
        self._running.pop(order.id, None)
        if order.mark in self._forgotten:
            self._forgotten.discard(order.mark)
            self._marks.remove([order.mark])

    async def remove_environment(self, trajectory: TrajectoryKey) -> None:
        """End the calls of a trajectory."""
        mine = [k for k in self._running.values() if k.order.action.trajectory_key == trajectory]
        await self._end(mine, Outcome.CANCELLED, "its trajectory is over")

    async def put_file(self, trajectory: TrajectoryKey, path: str, content: bytes) -> None:
        """Refuse: calls have no environment."""
        raise InvalidRequest("calls have no files", pointer="/path")

    async def get_file(self, trajectory: TrajectoryKey, path: str, limit_bytes: int) -> bytes:
        """Refuse: calls have no environment."""
        raise InvalidRequest("calls have no files", pointer="/path")

    async def close(self) -> None:
        """End all calls and connections."""
        reason = "the node worker is shutting down"
        await self._end(list(self._running.values()), Outcome.INFRA_FAILED, reason)
        for pool in self._pools.values():
            await pool.aclose()
        self._pools.clear()
        self._marks.close()

    async def _end(self, chosen: Sequence[_Running], outcome: Outcome, reason: str) -> None:
        for known in chosen:
            self.stop(known.order.id, outcome, reason)
        if chosen:
            await asyncio.wait([known.task for known in chosen])
