"""Monitor of backends: each rollout worker asks all of them for their health, and reports what changed.

Lifetimes: one monitor for a worker process. It keeps the checks that failed or succeeded in a row, by address, and nothing else:
the scheduler keeps the verdicts.

Rules
1. A backend is unhealthy after `FAILED_CHECKS` checks in a row without an answer, and healthy after `ANSWERED_CHECKS` with one.
   Drained ones are checked, too, since they may be used again.
2. A verdict is reported while it differs from the registered one, so a report that was lost is repeated.
3. Workers check at times of their own: each pause is drawn between a half and three halves of the interval.
4. A verdict is about the server alone. One that answers its health and samples nonsense is avoided by those that called it
   (`rollout.llm.pool_binding`).
5. A backend whose check fails in an unexpected way counts as one without an answer; the others are checked.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from domain.backends import BackendPool, LlmBackend
from domain.errors import CapacityError
from rollout.llm.engine_client import EngineClient

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 10.0
FAILED_CHECKS: Final = 3
ANSWERED_CHECKS: Final = 2
#: Checks at once.
_AT_ONCE: Final = 64

#: Reports a verdict: pool, backend, and why it is unhealthy (empty: it is healthy). May raise CapacityError.
Judge = Callable[[str, str, str], Awaitable[None]]


class BackendMonitor:
    """Checks the backends of a worker's pools."""

    def __init__(
        self,
        client: EngineClient,
        pools: Callable[[], Mapping[str, BackendPool]],
        judge: Judge,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._pools = pools
        self._judge = judge
        self._interval_seconds = interval_seconds
        self._pause = pause
        #: Address → checks in a row: above 0 answered, below 0 failed.
        self._in_a_row: dict[str, int] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Check at intervals until cancelled."""
        while True:
            await self._pause(self._interval_seconds * random.uniform(0.5, 1.5))
            await self.check()

    async def check(self) -> None:
        """Ask all backends once, and report the verdicts that changed."""
        addresses = {backend.address for _, backend in self._backends()}
        answers = await asyncio.gather(*map(self._answers, sorted(addresses)))
        self._in_a_row = {
            address: _counted(self._in_a_row.get(address, 0), answered)
            for address, answered in zip(sorted(addresses), answers, strict=True)
        }
        for pool, backend in list(self._backends()):
            verdict = self._verdict(backend)
            if verdict is not None and verdict != backend.unhealthy:
                await self._report(pool, backend.name, verdict)

    def _backends(self) -> Iterator[tuple[str, LlmBackend]]:
        for name, pool in self._pools().items():
            for backend in pool.backends:
                yield name, backend

    async def _answers(self, address: str) -> bool:
        async with self._places:
            try:
                return await self._client.healthy(address)
            except Exception:  # the others are checked all the same
                log.exception("the health of %s could not be asked for", address)
                return False

    def _verdict(self, backend: LlmBackend) -> str | None:
        """Return why a backend is unhealthy, empty for a healthy one, None where the checks do not decide."""
        in_a_row = self._in_a_row.get(backend.address, 0)
        if in_a_row <= -FAILED_CHECKS:
            return backend.unhealthy or f"no answer to {FAILED_CHECKS} health checks"
        return "" if in_a_row >= ANSWERED_CHECKS else None

    async def _report(self, pool: str, backend: str, unhealthy: str) -> None:
        try:
            await self._judge(pool, backend, unhealthy)
        except CapacityError as error:
            log.warning("the health of backend %s could not be reported: %s", backend, error)


def _counted(in_a_row: int, answered: bool) -> int:
    return max(in_a_row, 0) + 1 if answered else min(in_a_row, 0) - 1
