"""The client for asyncio programs: thousands of trajectories in one thread.

    async with AsyncClient() as client:
        async with client.trajectory("trj-1", task="swe") as trajectory:
            test = await trajectory.exec("pytest -q", cpu=[1, 2, 4], reward="exit_code")

The same calls as `client.Client`; `submit` calls of one moment travel as one batch (`batching.py`).
"""

from __future__ import annotations

from functools import cached_property
from typing import Self

from tangram_client import _calls
from tangram_client._async_calls import AnyAction, AsyncCalls, AsyncTrajectory
from tangram_client.batching import Batcher
from tangram_client.models import ActionView

__all__ = ["AnyAction", "AsyncClient", "AsyncTrajectory"]


class AsyncClient(AsyncCalls):
    """The client of one Tangram. Without arguments: the one that `context.find_context` finds."""

    @cached_property
    def _batcher(self) -> Batcher:
        return Batcher(
            lambda item: self.send(_calls.submit_action(item)),
            lambda items: self.send(_calls.submit_batch(items)),
        )

    async def submit(
        self,
        action: AnyAction,
        *,
        wait_seconds: float | None = None,
        idempotency_key: str | None = None,
    ) -> ActionView:
        """Submit an action; return its id and state without waiting for its end.

        Calls of one moment travel as one batch, unless they wait or bring a key of their own.
        """
        if wait_seconds is None and idempotency_key is None:
            return await self._batcher.submit(_calls.encode(self._owned(action)))
        return await super().submit(
            action, wait_seconds=wait_seconds, idempotency_key=idempotency_key
        )

    async def close(self) -> None:
        """Send the submissions that are pending, then close all connections."""
        await self._batcher.close()
        await super().close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
