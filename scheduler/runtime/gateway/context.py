"""Context of the gateway: the clients, caches and background readers that all endpoints share."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, TypeVar, cast

import msgspec
import redis
import redis.asyncio

from contract.responses import ActionResponse, CompletionsResponse
from contract.rollout_views import RolloutCompletions, RolloutView
from domain.action import ActionState, Kind
from domain.confirmation import NONE_NEEDED, Confirmation
from domain.errors import Gone, InvalidRequest, NotFound, Unavailable
from domain.principals import Principal
from domain.project_limits import ProjectLimits
from domain.redis_keys import Keys
from domain.request_text import RequestDetails
from scheduler.runtime.body_store import BodyStore
from scheduler.runtime.capacity import CapacityView
from scheduler.runtime.fleet_router.router import FleetRouter
from scheduler.runtime.gateway.admission import MAX_OUTPUT_BYTES, Admission
from scheduler.runtime.gateway.authentication import Authenticate, TokenCache
from scheduler.runtime.gateway.callbacks import Callbacks
from scheduler.runtime.gateway.fair_turns import FairTurns
from scheduler.runtime.gateway.http import ClientGone, HttpRequest
from scheduler.runtime.gateway.journal_tail import JournalTail
from scheduler.runtime.gateway.node_door import NODE_REQUESTS, NodeDoorClient
from scheduler.runtime.gateway.rollout_bounds import LIVE_ROLLOUTS
from scheduler.runtime.gateway.scheduler_queries import NotLive, SchedulerQueries
from scheduler.runtime.gateway.submitter import Submitter
from scheduler.runtime.liveness import process_name
from scheduler.runtime.object_store.objects import ObjectStore
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.confirmation import ConfirmedCalls, unavailable
from scheduler.runtime.redis.door_addresses import DoorAddresses
from scheduler.runtime.redis.journal import id_parts
from scheduler.runtime.rollouts.log_store import RolloutLogs
from scheduler.runtime.rollouts.rollout_ends import RolloutEnds
from scheduler.runtime.stored_actions import with_result

log = logging.getLogger(__name__)

T = TypeVar("T")
#: A waiting client is watched for a disconnect only after this time: most responses are quicker.
QUICK_SECONDS = 1.0
#: Longest lag of a row behind the journal.
ROW_SECONDS = 2.0
ROW_POLL_SECONDS = 0.05
#: Calls of the agents of a project to their models that are open at once in one process.
MOST_CHATS = 4096
#: Feeds of events that one process sends at once, and relayed responses.
MAX_STREAMS = 128
#: Pause before another read of the capacity when Redis fails.
RETRY_SECONDS = 0.2

_capacity = msgspec.json.Decoder(CapacityView)


class FindRolloutCompletions(Protocol):
    """Read a page of the log of finished rollouts."""

    def __call__(
        self, project: str | None, after: int, limit: int
    ) -> Awaitable[RolloutCompletions]: ...


async def _no_rollout(_: str) -> RolloutView | None:
    return None


async def _no_rollouts(project: str | None, after: int, limit: int) -> RolloutCompletions:
    return RolloutCompletions([], str(after))


class FindRollouts(Protocol):
    """Read the rows of rollouts: of any project by their ids, or of some groups of a project, and perhaps of one task."""

    def __call__(
        self, ids: Sequence[str], groups: Sequence[str], project: str, task: str
    ) -> Awaitable[list[RolloutView]]: ...


async def _no_rollouts_found(
    ids: Sequence[str], groups: Sequence[str], project: str, task: str
) -> list[RolloutView]:
    return []


async def _no_request(action_id: str) -> RequestDetails | None:
    return None


class FindCompletions(Protocol):
    """Read a page of the log of finished actions."""

    def __call__(
        self, project: str | None, after: int, limit: int
    ) -> Awaitable[CompletionsResponse]: ...


@dataclass(frozen=True)
class GatewayBackend:
    """Coroutines that read rows and tokens."""

    authenticate: Authenticate
    #: Row of an action of any project; None when there is none.
    action_view: Callable[[str], Awaitable[ActionResponse | None]]
    completions: FindCompletions
    #: Check → its problem, empty when it passes.
    checks: Callable[[], Awaitable[dict[str, str]]]
    #: The leader and the lag of each consumer; shown to people, without a fixed form.
    facts: Callable[[], Awaitable[dict[str, Any]]]
    #: Whether a project has a task of that name; its row may come `ROW_SECONDS` after its first action.
    task_exists: Callable[[str, str], Awaitable[bool]]
    #: Request of an action from its row; None when there is none.
    action_request: Callable[[str], Awaitable[RequestDetails | None]] = _no_request
    #: Row of a rollout of any project; None when there is none.
    rollout_view: Callable[[str], Awaitable[RolloutView | None]] = _no_rollout
    rollout_completions: FindRolloutCompletions = _no_rollouts
    rollouts: FindRollouts = _no_rollouts_found


def is_settled(view: ActionResponse) -> bool:
    """Whether a wait for the action ends: it is finished, or a lease that is held."""
    if view.state is ActionState.FINISHED:
        return True
    return view.kind is Kind.LEASE and view.state is ActionState.RUNNING


def end_this_process() -> None:
    """Shut the web server down in order; its supervisor starts another one."""
    os.kill(os.getpid(), signal.SIGTERM)


class GatewayContext:
    """Clients, caches and background readers of one web process.

    When a reader fails, the process ends: without it every request would wait for ever.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: Keys,
        backend: GatewayBackend,
        end_process: Callable[[], None] = end_this_process,
        limits: ProjectLimits | None = None,
        node_requests: int = NODE_REQUESTS,
        bodies: BodyStore | None = None,
        rollout_logs: RolloutLogs | None = None,
        live_rollouts: int = LIVE_ROLLOUTS,
        callbacks: Callbacks | None = None,
        streams: int = MAX_STREAMS,
        objects: ObjectStore | None = None,
        confirmation: Confirmation = NONE_NEEDED,
    ) -> None:
        self._end_process = end_process
        self.client = client
        self.keys = keys
        self.backend = backend
        self.tokens = TokenCache(backend.authenticate)
        self.admission = Admission()
        self.confirmed = ConfirmedCalls(client, keys, confirmation)
        self.submitter = Submitter(client, keys, limits, confirmation)
        self.turns = FairTurns()
        self.tail = JournalTail(
            client, keys, self._capacity_changed, self.turns.arrived, self._node_joined
        )
        self.queries = SchedulerQueries(client, keys, self.submitter, process_name("web"))
        self.bodies = bodies or BodyStore(None)
        self.objects = objects
        self.rollout_logs = rollout_logs or RolloutLogs(None)
        self.callbacks = callbacks or Callbacks()
        self.rollout_ends = RolloutEnds()
        #: That a project may have.
        self.live_rollouts = live_rollouts
        #: Feeds of events, and relayed responses of calls, that this process sends at once; of each.
        self.streams = streams
        self.tail.also.append(self.rollout_ends)
        self.router = FleetRouter(
            self.submitter.append, lambda: self.admission.view.fleets, self.refresh
        )
        self.tail.also.append(self.router)
        self.node_door = NodeDoorClient(
            DoorAddresses(client, keys), self.tail.places, self._node_of, node_requests
        )
        #: To rollout workers, which are asked by their names.
        self.rollout_door = NodeDoorClient(
            DoorAddresses(client, keys, rollouts=True), self.tail.places, self._node_of, MOST_CHATS
        )
        self._stale = asyncio.Event()
        #: The stored capacity that the admission uses.
        self._capacity = b""
        self._tasks: list[asyncio.Task[None]] = []
        self._starting = asyncio.Lock()
        self.started = False

    async def start(self) -> None:
        """Start the readers; called before or with the first request."""
        async with self._starting:
            if self.started:
                return
            try:
                await self.tail.start()
                await self.bodies.join(self.client, self.keys)
                if self.bodies.writes:
                    self.admission.output_bytes = MAX_OUTPUT_BYTES
                await self._read_capacity()
            except redis.RedisError as error:
                raise unavailable(error) from None
            loop = asyncio.get_running_loop()
            readers = (self.submitter, self.tail, self.queries, self.router)
            self._tasks = [loop.create_task(reader.run()) for reader in readers]
            self._tasks.append(loop.create_task(self._follow_capacity()))
            for task in self._tasks:
                task.add_done_callback(self._reader_ended)
            self.started = True

    async def stop(self) -> None:
        """Stop the readers and close the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.router.close()
        await self.node_door.close()
        await self.rollout_door.close()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.client.aclose)

    def _reader_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed; its process ends with it", task.get_coro(), exc_info=error)
            self._end_process()

    def _capacity_changed(self) -> None:
        self._stale.set()

    def _node_joined(self, node: str, incarnation: int) -> None:
        self.node_door.joined(node, incarnation)

    async def _node_of(self, project: str, trajectory: str) -> str:
        """Return the node of an environment; empty without one. Raises NotFound, Gone, Unavailable."""
        found = await self.queries.trajectory(project, trajectory)
        if found.state != "open":
            raise Gone(f"trajectory {trajectory!r} is {found.state}; its environment is removed")
        return found.node or ""

    async def _follow_capacity(self) -> None:
        while keep_running():
            await self._stale.wait()
            self._stale.clear()
            # The loop stores the new capacity right after the entry that was just read.
            try:
                for _ in range(5):
                    await self._read_capacity()
                    await asyncio.sleep(ROW_POLL_SECONDS)
            except redis.RedisError as error:
                log.warning("the capacity of the admission is not up to date: %s", error)
                self._stale.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def _read_capacity(self) -> None:
        """Read the newest capacity that the leader stored."""
        stored = cast("bytes | None", await self.client.get(self.keys.capacity))
        if stored is None or stored == self._capacity:
            return
        try:
            self.admission.view = view = _capacity.decode(stored)
            self.submitter.bounds = view.project_bounds
        except msgspec.DecodeError as error:  # a leader of another version
            log.error("the capacity cannot be read, the admission keeps the last one: %s", error)
            return
        self._capacity = stored

    async def refresh(self) -> None:
        """Read the newest capacity. Raises Unavailable."""
        try:
            await self._read_capacity()
        except redis.RedisError as error:
            raise unavailable(error) from None

    async def admitted(self, admit: Callable[[], T]) -> T:
        """Return the result of ``admit``. Raises what it raises.

        A refusal may be outdated, right after the configuration or a node changed: then ``admit`` is
        called again with the newest capacity.
        """
        judged_by = self._capacity
        try:
            return admit()
        except (InvalidRequest, NotFound):
            await self._read_capacity()
            if self._capacity == judged_by:  # no other request has read a newer one
                raise
        return admit()

    async def project(self, request: HttpRequest, principal: Principal) -> str:
        """Return the project in the query, else that of the token. Raises NotFound."""
        asked = request.query().get("project")
        return await self.admitted(lambda: self.admission.project(principal, asked))

    async def check_task(self, project: str, task: str) -> None:
        """Raise NotFound for a task that was neither declared nor has had an action."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ROW_SECONDS
        while not await self.backend.task_exists(project, task):
            if loop.time() >= deadline:
                raise NotFound(
                    f"there is no task {task!r} in project {project!r}: it begins with its first action,"
                    " or with POST /tasks"
                )
            await asyncio.sleep(ROW_POLL_SECONDS)

    async def settled(
        self,
        request: HttpRequest,
        principal: Principal,
        action_id: str,
        future: asyncio.Future[ActionResponse | None],
        seconds: float,
        largest_bytes: float = inf,
    ) -> ActionResponse | None:
        """Return the finished action or the lease that is now held; None when it takes longer."""
        if not future.done():
            quick = min(seconds, QUICK_SECONDS)
            timer = future.get_loop().call_later(quick, self.tail.postpone, action_id, future)
            try:
                await future
            finally:
                timer.cancel()
        finished = future.result()
        if isinstance(finished, asyncio.Future):
            later = finished
            try:
                finished = await self._watched(request, later, seconds - QUICK_SECONDS)
            finally:
                self.tail.discard(action_id, later)
            if not later.done():
                return None
        if finished is None:
            return await self.find(request, principal, action_id, largest_bytes=largest_bytes)
        has = finished.result
        return await with_result(finished, self.bodies, largest_bytes) if has else finished

    async def wait_for(
        self, request: HttpRequest, future: asyncio.Future[T | None], seconds: float
    ) -> T | None:
        """Return the result of ``future``, or None when it takes longer (or is a lease, now granted).

        Raises ClientGone.
        """
        await asyncio.wait({future}, timeout=min(seconds, QUICK_SECONDS))
        if future.done():
            return future.result()
        return await self._watched(request, future, seconds - QUICK_SECONDS)

    async def _watched(
        self, request: HttpRequest, future: asyncio.Future[T | None], seconds: float
    ) -> T | None:
        """Do what `wait_for` does, for a client that may disconnect meanwhile."""
        if seconds <= 0:
            return None
        gone = asyncio.ensure_future(request.disconnected())
        either: set[asyncio.Future[Any]] = {future, gone}
        try:
            await asyncio.wait(
                either,
                timeout=seconds,
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
        self,
        request: HttpRequest,
        principal: Principal,
        action_id: str,
        seconds: float = 0.0,
        largest_bytes: float = inf,
    ) -> ActionResponse:
        """Return an action, waiting up to ``seconds`` for its end. Raises NotFound, Unavailable.

        ``largest_bytes``: a larger result that has a stored body stays a preview.
        """
        view = await self._found(request, principal, action_id, seconds)
        if view is None and principal.project is None:
            view = await self._found_later(request, principal, action_id, seconds)
        if view is None or not principal.sees(view.project):
            raise NotFound(f"there is no action {action_id!r}")
        return await with_result(view, self.bodies, largest_bytes)

    async def _found_later(
        self, request: HttpRequest, principal: Principal, action_id: str, seconds: float
    ) -> ActionResponse | None:
        """Return an action that waited outside the inbox when it was asked for. Raises Unavailable."""
        for _ in range(int(ROW_SECONDS / ROW_POLL_SECONDS)):
            if not await self.client.exists(self.keys.arrivals):
                return await self._found(request, principal, action_id, seconds)
            await asyncio.sleep(ROW_POLL_SECONDS)
            view = await self._found(request, principal, action_id, seconds)
            if view is not None:
                return view
        raise Unavailable("actions wait for the scheduler, perhaps this one; try again")

    async def _found(
        self, request: HttpRequest, principal: Principal, action_id: str, seconds: float
    ) -> ActionResponse | None:
        view = self.tail.recent(action_id)
        if view is None:
            future = self.tail.finish_of(action_id)
            try:
                live = await self.queries.action(action_id, principal.project)
                if seconds:
                    # `find` fills its result in.
                    view = await self.settled(request, principal, action_id, future, seconds, 0)
                view = view or live
            except NotLive as answer:
                view = await self._finished_before(action_id, answer.journal_id)
            finally:
                self.tail.discard(action_id, future)
        return view

    async def _finished_before(self, action_id: str, journal_id: str) -> ActionResponse | None:
        """Return an action that finished before ``journal_id``: from memory, else from its row.

        Raises Unavailable while rows lag too far behind to tell that there is none.
        """
        await self.tail.reached(journal_id, ROW_SECONDS)
        view = self.tail.recent(action_id)
        attempts = int(ROW_SECONDS / ROW_POLL_SECONDS)
        while view is None:
            projected = await self._projected(journal_id)
            view = await self.backend.action_view(action_id)
            if view is not None or projected:
                break
            if not attempts:
                raise Unavailable("the row of this action is not written yet; try again")
            attempts -= 1
            await asyncio.sleep(ROW_POLL_SECONDS)
        return view

    async def request_of(self, action_id: str) -> RequestDetails:
        """Return the request of an action that `find` has found; one without members while its row is not written."""
        for _ in range(1 + int(ROW_SECONDS / ROW_POLL_SECONDS)):
            found = await self.backend.action_request(action_id)
            if found is not None:
                return found
            await asyncio.sleep(ROW_POLL_SECONDS)
        missing = "its row is not written yet; try again"
        return RequestDetails("", None, [], None, [], missing)

    async def rows_are_current(self) -> bool:
        """Whether rows show all that the tail of the journal has read."""
        return await self._projected(self.tail.position)

    async def newer_rows(self, seen: str, seconds: float) -> str:
        """Wait until rows show the journal after entry ``seen`` (empty: what is read now), or some time is over; return the entry that they show.

        Rows follow the journal at their own pace, so the entry alone would bring a log of ends no row.
        """
        if self.tail.position == seen:
            await self.tail.next_entries(min(seconds, 1.0))
            await asyncio.sleep(min(seconds, ROW_POLL_SECONDS))  # of a busy journal, not each entry
        position = self.tail.position
        for _ in range(1 + int(min(seconds, ROW_SECONDS) / ROW_POLL_SECONDS)):
            if await self._projected(position):
                break
            await asyncio.sleep(min(seconds, ROW_POLL_SECONDS))
        return position

    async def _projected(self, journal_id: str) -> bool:
        position = await self.client.hget(self.keys.positions, "projector")
        return isinstance(position, bytes) and id_parts(position.decode()) >= id_parts(journal_id)
