"""What the endpoints of one process share."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar, cast

import msgspec
import redis
import redis.asyncio

from contract.responses import ActionResponse
from domain.action import ActionState, Kind
from domain.errors import InvalidRequest, NotFound, Unavailable
from domain.principals import Principal
from domain.redis_keys import Keys
from scheduler.runtime.capacity import CapacityView
from scheduler.runtime.gateway.admission import Admission
from scheduler.runtime.gateway.authentication import TokenCache
from scheduler.runtime.gateway.dependencies import Backing
from scheduler.runtime.gateway.http import ClientGone, Request
from scheduler.runtime.gateway.journal_tail import JournalTail
from scheduler.runtime.gateway.scheduler_queries import NotLive, Questions
from scheduler.runtime.gateway.submitter import Submitter
from scheduler.runtime.liveness import process_name
from scheduler.runtime.redis.clients import going_on
from scheduler.runtime.redis.journal import id_parts

log = logging.getLogger(__name__)

T = TypeVar("T")
#: A waiting client's departure is looked for only after this long: most answers are quicker.
QUICK_SECONDS = 0.05
#: How long a row may take to appear behind the journal.
ROW_SECONDS = 2.0
ROW_POLL_SECONDS = 0.05
#: Between two looks at the capacity while Redis does not answer.
RETRY_SECONDS = 0.2

_capacity = msgspec.json.Decoder(CapacityView)


def is_settled(view: ActionResponse) -> bool:
    """Say whether waiting for an action ends here: it is finished, or a lease that is held."""
    if view.state is ActionState.FINISHED:
        return True
    return view.kind is Kind.LEASE and view.state is ActionState.RUNNING


def end_this_process() -> None:
    """Let the web server end in order, and whoever supervises it start it anew."""
    os.kill(os.getpid(), signal.SIGTERM)


class Context:
    """Clients, caches and background readers of one web process.

    A reader that dies takes its process along: without it every request would wait for ever.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: Keys,
        backing: Backing,
        end_process: Callable[[], None] = end_this_process,
    ) -> None:
        self._end_process = end_process
        self.client = client
        self.keys = keys
        self.backing = backing
        self.tokens = TokenCache(backing.authenticate)
        self.admission = Admission()
        self.submitter = Submitter(client, keys)
        self.tail = JournalTail(client, keys, self._capacity_changed)
        self.questions = Questions(client, keys, self.submitter, process_name("web"))
        self._stale = asyncio.Event()
        #: The view of the leader that the admission goes by, as it is stored.
        self._capacity = b""
        self._tasks: list[asyncio.Task[None]] = []
        self._starting = asyncio.Lock()
        self.started = False

    async def start(self) -> None:
        """Begin to follow the journal; called once, before or with the first request."""
        async with self._starting:
            if self.started:
                return
            try:
                await self.tail.start()
                await self._read_capacity()
            except redis.RedisError as error:
                raise Unavailable(f"redis does not answer: {error}") from None
            loop = asyncio.get_running_loop()
            readers = (self.submitter, self.tail, self.questions)
            self._tasks = [loop.create_task(reader.run()) for reader in readers]
            self._tasks.append(loop.create_task(self._follow_capacity()))
            for task in self._tasks:
                task.add_done_callback(self._reader_ended)
            self.started = True

    async def stop(self) -> None:
        """End the readers and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.client.aclose)

    def _reader_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s died; its process ends with it", task.get_coro(), exc_info=error)
            self._end_process()

    def _capacity_changed(self) -> None:
        self._stale.set()

    async def _follow_capacity(self) -> None:
        while going_on():
            await self._stale.wait()
            self._stale.clear()
            # The loop stores the new view right after the entry that was just read.
            try:
                for _ in range(5):
                    await self._read_capacity()
                    await asyncio.sleep(ROW_POLL_SECONDS)
            except redis.RedisError as error:
                log.warning("what may be asked for is not up to date: %s", error)
                self._stale.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def _read_capacity(self) -> None:
        """Go by the newest view of the leader."""
        stored = cast("bytes | None", await self.client.get(self.keys.capacity))
        if stored is None or stored == self._capacity:
            return
        try:
            self.admission.view = _capacity.decode(stored)
        except msgspec.DecodeError as error:  # a leader of another version
            log.error("what may be asked for cannot be read and stays as it was: %s", error)
            return
        self._capacity = stored

    async def admitted(self, admit: Callable[[], T]) -> T:
        """Return what ``admit`` makes of a request by the admission's view. Raises what it raises.

        A refusal may be out of date, right after the configuration or a node was changed: then the
        newest view decides.
        """
        judged_by = self._capacity
        try:
            return admit()
        except (InvalidRequest, NotFound):
            await self._read_capacity()
            if self._capacity == judged_by:  # whoever has read a newer one meanwhile
                raise
        return admit()

    async def project(self, request: Request, principal: Principal) -> str:
        """Return the project that the query names, else the token's. Raises NotFound."""
        asked = request.query().get("project")
        return await self.admitted(lambda: self.admission.project(principal, asked))

    async def settled(
        self,
        request: Request,
        principal: Principal,
        action_id: str,
        future: asyncio.Future[ActionResponse | None],
        seconds: float,
    ) -> ActionResponse | None:
        """Return the finished action or the lease that is now held; None when it takes longer.

        A lease's holder has waited for its grant: the work that follows is its own.
        """
        finished = await self.wait_for(request, future, seconds)
        if finished is not None or not future.done():
            return finished
        return await self.find(request, principal, action_id)

    async def wait_for(
        self, request: Request, future: asyncio.Future[ActionResponse | None], seconds: float
    ) -> ActionResponse | None:
        """Return the finished action, or None when it takes longer (or is a lease, now granted).

        Raises ClientGone.
        """
        await asyncio.wait({future}, timeout=min(seconds, QUICK_SECONDS))
        if future.done():
            return future.result()
        if seconds <= QUICK_SECONDS:
            return None
        gone = asyncio.ensure_future(request.disconnected())
        either: set[asyncio.Future[Any]] = {future, gone}
        try:
            await asyncio.wait(
                either,
                timeout=seconds - QUICK_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            gone.cancel()
        if future.done():
            return future.result()
        if gone.done() and not gone.cancelled():
            raise ClientGone
        return None

    async def find(
        self, request: Request, principal: Principal, action_id: str, seconds: float = 0.0
    ) -> ActionResponse:
        """Return an action, finished if that comes within ``seconds``. Raises NotFound."""
        view = self.tail.recent(action_id)
        if view is None:
            future = self.tail.finish_of(action_id)
            try:
                live = await self.questions.action(action_id, principal.project)
                if seconds:
                    view = await self.settled(request, principal, action_id, future, seconds)
                view = view or live
            except NotLive as answer:
                view = await self._finished_before(action_id, answer.journal_id)
            finally:
                self.tail.discard(action_id, future)
        if view is None or not principal.sees(view.project):
            raise NotFound(f"there is no action {action_id!r}")
        return view

    async def _finished_before(self, action_id: str, journal_id: str) -> ActionResponse | None:
        """Return an action that finished before ``journal_id``: from memory, else from its row.

        Raises Unavailable while rows are too far behind to say that there is none.
        """
        await self.tail.reached(journal_id, ROW_SECONDS)
        view = self.tail.recent(action_id)
        attempts = int(ROW_SECONDS / ROW_POLL_SECONDS)
        while view is None:
            projected = await self._projected(journal_id)
            view = await self.backing.action_view(action_id)
            if view is not None or projected:
                break
            if not attempts:
                raise Unavailable("this action's row is not written yet; ask again")
            attempts -= 1
            await asyncio.sleep(ROW_POLL_SECONDS)
        return view

    async def _projected(self, journal_id: str) -> bool:
        position = await self.client.hget(self.keys.positions, "projector")
        return isinstance(position, bytes) and id_parts(position.decode()) >= id_parts(journal_id)
