"""Many submissions of one moment become one request.

A trainer that starts 500 actions with ``asyncio.gather`` calls ``submit`` 500 times in one turn of
the event loop. The first of them schedules a flush at the end of that turn; the flush sends all
that have gathered as one ``POST /actions/batch`` (several when a limit of the server is reached)
and hands each caller its own answer: the id, or the typed error for this item alone. One alone
goes as ``POST /actions``. There is no timer: a submission does not wait for others.

A caller that is cancelled before the flush is left out; after it the action is on its way and goes
on. Each request has one Idempotency-Key, so a repeated batch repeats no action.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

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
