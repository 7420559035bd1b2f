"""The driver of calls to declared APIs.

A call is checked once more where it is made. Whether it is made again is the core's decision, which
knows the quotas and the retry budget of the API; so what a server receives is what was granted. The
secret is read where it is used, and left out of everything that comes back.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

import httpcore

from domain.apis import Reach, check_call
from domain.errors import InvalidRequest
from domain.ports import DriverContext, RunOrder, RunReport
from managers.common.api_calls.exchange import Attempt, exchange
from managers.common.api_calls.guard import GuardedNetwork
from managers.common.api_calls.secrets import Secrets
from managers.common.request_driver import RequestDriver

MOST_CONNECTIONS: Final = 1024
IDLE_SECONDS: Final = 15.0


class _Call:
    """One attempt at a call."""

    def __init__(self, attempt: Attempt, pool: httpcore.AsyncConnectionPool) -> None:
        self._attempt = attempt
        self._pool = pool

    @property
    def sent(self) -> bool:
        """The first byte of the request may have gone out."""
        return self._attempt.sent

    def seconds(self) -> float:
        """Return how long the request has been with the API."""
        return self._attempt.seconds()

    async def run(self) -> RunReport:
        """Make the attempt."""
        return await exchange(self._pool, self._attempt)

    def stopped(self, report: RunReport) -> RunReport:
        """Add nothing."""
        return report


class CallDriver(RequestDriver):
    """Calls declared APIs."""

    def __init__(self, context: DriverContext, secrets: Secrets | None = None) -> None:
        super().__init__(context.state_directory)
        self._secrets = secrets or Secrets(context.settings.get("secrets_directory", ""))
        self._passages = context.passages
        self._pools: dict[Reach, httpcore.AsyncConnectionPool] = {}

    def begin(self, order: RunOrder, started: Callable[[], None]) -> _Call:
        """Check once more what was accepted: the API may be declared otherwise by now."""
        call, api = order.action.call, order.api
        if call is None or api is None:
            target = call.target if call is not None else "nothing"
            raise InvalidRequest(f"{target} is not an API that is declared now")
        check_call(call, api)
        secret = self._secrets.find(api.secret) if api.secret else ""
        limit = min(api.timeout_seconds, order.action.timeout_seconds or api.timeout_seconds)
        passage = None
        if call.stream and self._passages is not None:
            passage = self._passages.open(order.id)
        attempt = Attempt(call, api, secret, limit, self.sending(order, started), passage)
        return _Call(attempt, self._pool(api.reach))

    def _pool(self, reach: Reach) -> httpcore.AsyncConnectionPool:
        if reach not in self._pools:
            self._pools[reach] = open_connections(reach)
        return self._pools[reach]

    async def close(self) -> None:
        """End all calls and connections."""
        await super().close()
        for pool in self._pools.values():
            await pool.aclose()
        self._pools.clear()


def open_connections(reach: Reach) -> httpcore.AsyncConnectionPool:
    """Return a pool of connections to addresses within ``reach``."""
    return httpcore.AsyncConnectionPool(
        ssl_context=ssl.create_default_context(),
        max_connections=MOST_CONNECTIONS,
        max_keepalive_connections=MOST_CONNECTIONS,
        keepalive_expiry=IDLE_SECONDS,
        network_backend=GuardedNetwork(reach),
    )
