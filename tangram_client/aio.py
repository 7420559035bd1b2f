"""The client for asyncio programs: thousands of trajectories in one thread.

    async with AsyncClient() as client:
        async with client.trajectory("trj-1", task="swe") as trajectory:
            test = await trajectory.exec("pytest -q", cpu=[1, 2, 4], reward="pytest")

The same calls as `client.Client`; `submit` calls of one moment travel as one batch (`Batcher`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cached_property
from typing import Self

from tangram_client import _calls
from tangram_client._async_batches import AsyncBatchCalls
from tangram_client._async_calls import AnyAction, AsyncCalls, AsyncTrajectory
from tangram_client._async_fleets import AsyncFleetCalls
from tangram_client._async_rollouts import AsyncBackendCalls, AsyncRolloutCalls
from tangram_client._async_selectors import AsyncSelectorCalls
from tangram_client._async_views import AsyncViewCalls
from tangram_client._calls import MAX_BATCH
from tangram_client.errors import BadAnswer, TangramClientError, refusal
from tangram_client.models import ActionView, Batch, BatchItem

#: Below the server's limit of 8 MiB per body.
MAX_BYTES = 7 * 1024 * 1024

Ticket = tuple[bytes, "asyncio.Future[ActionView]"]


class Batcher:
    """Collects the submissions of one turn of the event loop."""

    def __init__(
        self,
        send_one: Callable[[bytes], Awaitable[ActionView]],
        send_many: Callable[[Sequence[bytes]], Awaitable[Batch]],
    ) -> None:
        self._send_one = send_one
        self._send_many = send_many
        self._waiting: list[Ticket] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def submit(self, item: bytes) -> ActionView:
        """Send the JSON of one action with whatever else is sent now."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ActionView] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.append((item, future))
        return await future

    async def close(self) -> None:
        """Let what is on its way arrive."""
        if self._sending:
            await asyncio.wait(self._sending)

    def _flush(self) -> None:
        tickets = [ticket for ticket in self._waiting if not ticket[1].done()]
        self._waiting = []
        for portion in _portions(tickets):
            task = asyncio.create_task(self._send(portion))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, portion: Sequence[Ticket]) -> None:
        try:
            answers = await self._answers([item for item, _ in portion])
        except TangramClientError as error:
            answers = [error] * len(portion)
        except BaseException:
            for _, future in portion:
                future.cancel()
            raise
        for (_, future), answer in zip(portion, answers, strict=True):
            _hand_over(future, answer)

    async def _answers(self, items: Sequence[bytes]) -> list[ActionView | TangramClientError]:
        if len(items) == 1:
            return [await self._send_one(items[0])]
        batch = await self._send_many(items)
        if len(batch.items) != len(items):
            raise BadAnswer(f"{len(items)} actions were answered with {len(batch.items)} items")
        return [_answer(item) for item in batch.items]


def _answer(item: BatchItem) -> ActionView | TangramClientError:
    if item.problem is not None:
        return refusal(item.problem)
    if item.id is None:
        return BadAnswer("an item of a batch was answered without id and without problem")
    return ActionView(item.id, item.state or "queued")


def _hand_over(future: asyncio.Future[ActionView], answer: ActionView | TangramClientError) -> None:
    if future.done():
        return
    if isinstance(answer, TangramClientError):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _portions(tickets: Sequence[Ticket]) -> Iterator[Sequence[Ticket]]:
    portion: list[Ticket] = []
    size = 0
    for ticket in tickets:
        if portion and (len(portion) == MAX_BATCH or size + len(ticket[0]) > MAX_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(ticket)
        size += len(ticket[0]) + 1
    if portion:
        yield portion


__all__ = ["AnyAction", "AsyncClient", "AsyncTrajectory"]


class AsyncClient(AsyncCalls):
    """The client of one Tangram. Without arguments: the one that `context.find_context` finds."""

    @property
    def rollouts(self) -> AsyncRolloutCalls:
        """The rollouts of the client's project."""
        return AsyncRolloutCalls(self, self._project)

    @property
    def backends(self) -> AsyncBackendCalls:
        """The servers of language models."""
        return AsyncBackendCalls(self)

    @property
    def batches(self) -> AsyncBatchCalls:
        """Batches of finished rollouts for the ranks of a trainer, of the client's project."""
        return AsyncBatchCalls(self, self._project, self.url)

    @property
    def fleets(self) -> AsyncFleetCalls:
        """Fleets of language models; trajectories are of the client's project."""
        return AsyncFleetCalls(self, self._project)

    @property
    def selectors(self) -> AsyncSelectorCalls:
        """Selectors of parallelism, which are of all projects."""
        return AsyncSelectorCalls(self)

    @property
    def views(self) -> AsyncViewCalls:
        """Saved views of the explorer; new ones are of the client's project."""
        return AsyncViewCalls(self, self._project)

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
