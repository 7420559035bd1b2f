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
from typing import Any, Final

import httpcore

from domain.action import Kind, Outcome
from domain.allocation import Allocation
from domain.apis import ApiConfig, Reach, check_call
from domain.errors import InvalidRequest, NotFound
from domain.ids import ActionId, TrajectoryKey
from domain.ports import DriverContext, Leftover, RunOrder, RunReport
from managers.marks import MarkLog, MarkThread, leftover
from managers.quota.calls.exchange import Attempt, exchange
from managers.quota.calls.guard import GuardedNetwork
from managers.quota.calls.secrets import Secrets
from managers.runs import SHUTTING_DOWN, Runs, StoppableRun

MOST_CONNECTIONS: Final = 1024
IDLE_SECONDS: Final = 15.0


class _Call(StoppableRun):
    """One attempt under way."""

    def __init__(self, order: RunOrder, started: Callable[[], None], driver: CallDriver) -> None:
        super().__init__(order)
        self._started = started
        self._driver = driver

    def resize(self, allocation: Allocation) -> None:
        """Do nothing: a call is what it is."""

    async def live(self) -> RunReport:
        """Make the attempt, or end it when it is stopped: its connection is closed then."""
        try:
            attempt = self._driver.attempt(self.order, self._started)
        except (InvalidRequest, NotFound) as error:
            return RunReport(Outcome.INFRA_FAILED, 0.0, detail=str(error))
        work = asyncio.ensure_future(exchange(self._driver.pool(attempt.api), attempt))
        either: set[asyncio.Future[Any]] = {work, self.stopped}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        work.cancel()
        await asyncio.wait({work})
        if not work.cancelled():
            return work.result()
        outcome, reason = self.stopped.result()
        return RunReport(outcome, attempt.seconds(), detail=reason, never_started=not attempt.sent)


class CallDriver:
    """Calls declared APIs."""

    kinds = frozenset({Kind.CALL})
    isolation = "none"

    def __init__(self, context: DriverContext, secrets: Secrets | None = None) -> None:
        self._directory = context.state_directory
        self._secrets = secrets or Secrets(context.settings.get("secrets_directory", ""))
        self._passages = context.passages
        self._pools: dict[Reach, httpcore.AsyncConnectionPool] = {}
        self._runs: Runs[_Call] = Runs(lambda marks: self._marks.remove(marks))

    async def open(self) -> list[Leftover]:
        """Return which calls a predecessor may have made without a report."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = MarkLog(self._directory / "marks.log")
        left = [leftover(mark, ended=False) for mark in log.open()]
        self._marks = MarkThread(log, "tangram-calls")
        return left

    async def run(self, order: RunOrder, started: Callable[[], None]) -> RunReport:
        """Make one attempt. An order that is under way is not begun twice."""
        return await self._runs.run(order, lambda: _Call(order, started, self))

    def attempt(self, order: RunOrder, started: Callable[[], None]) -> Attempt:
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

    def pool(self, api: ApiConfig) -> httpcore.AsyncConnectionPool:
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
        self._runs.stop(action_id, outcome, reason)

    def resize(self, action_id: ActionId, attempt: int, allocation: Allocation) -> None:
        """Do nothing: a call is what it is."""

    def forget(self, marks: Sequence[str]) -> None:
        """These attempts will not be ordered again: their marks may go, once they have ended."""
        self._runs.forget(marks)

    async def remove_environment(self, trajectory: TrajectoryKey) -> None:
        """End the calls of a trajectory."""
        await self._runs.end_of(trajectory, Outcome.CANCELLED, "its trajectory is over")

    async def put_file(self, trajectory: TrajectoryKey, path: str, content: bytes) -> None:
        """Refuse: calls have no environment."""
        raise InvalidRequest("calls have no files", pointer="/path")

    async def get_file(self, trajectory: TrajectoryKey, path: str, limit_bytes: int) -> bytes:
        """Refuse: calls have no environment."""
        raise InvalidRequest("calls have no files", pointer="/path")

    async def close(self) -> None:
        """End all calls and connections."""
        await self._runs.end_all(SHUTTING_DOWN)
        for pool in self._pools.values():
            await pool.aclose()
        self._pools.clear()
        await asyncio.to_thread(self._marks.close)
