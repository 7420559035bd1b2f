"""Queries of the scheduler loop, and file transfers: requests with one reply on the channel of this process."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import redis
import redis.asyncio

from contract.fleet_status import FleetsStatus
from contract.pool_demands import PoolDemand
from contract.receipts import TrajectoryDetails, TrajectoryReceipt
from contract.responses import ActionResponse, DecisionsResponse, QueuesResponse
from contract.rollout_status import RolloutsStatus
from contract.selector_status import SelectorsStatus
from contract.status import NodeLoad, SystemStatus
from domain.codec import Reply, decode_reply, encode
from domain.errors import CapacityError, Conflict, InvalidRequest, NotFound, Unavailable
from domain.events import (
    OPEN_FILES,
    ActionQueried,
    DecisionsQueried,
    FileRequested,
    NodeLoadsQueried,
    PoolDemandsQueried,
    QueuesQueried,
    StatusQueried,
    TrajectoriesForked,
    TrajectoriesQueried,
    TrajectoryQueried,
)
from domain.fleet_events import FleetsQueried
from domain.forks import REFUSE, STORAGE_FULL, ForkReport
from domain.ids import ActionId
from domain.redis_keys import QUESTIONS, Keys
from domain.rollout_events import RolloutsQueried
from domain.selector_events import SelectorsQueried
from domain.selectors import Parallelism, SelectorStage, StageLoad
from domain.snapshots import SnapshotReport
from scheduler.runtime.gateway.http import HttpError
from scheduler.runtime.gateway.request_parsing import packed
from scheduler.runtime.gateway.submitter import Submitter
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.confirmation import unavailable

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
TRANSFER_SECONDS = 30.0
#: Longest wait for a fork, and for one that follows actions or copies files.
FORK_SECONDS = 60.0
FORK_WAIT_SECONDS = 900.0
RETRY_SECONDS = 0.2

_views = msgspec.msgpack.Decoder(ActionResponse)
_decisions = msgspec.msgpack.Decoder(DecisionsResponse)
_queues = msgspec.msgpack.Decoder(QueuesResponse)
_trajectories = msgspec.msgpack.Decoder(TrajectoryDetails)
_listed_trajectories = msgspec.msgpack.Decoder(list[TrajectoryReceipt])
_snapshot_reports = msgspec.msgpack.Decoder(SnapshotReport)
_fork_reports = msgspec.msgpack.Decoder(ForkReport)
_loads = msgspec.msgpack.Decoder(dict[str, NodeLoad])
_demands = msgspec.msgpack.Decoder(dict[str, PoolDemand])
_statuses = msgspec.msgpack.Decoder(SystemStatus)
_fleets = msgspec.msgpack.Decoder(FleetsStatus)
_selectors = msgspec.msgpack.Decoder(SelectorsStatus)
_rollouts = msgspec.msgpack.Decoder(RolloutsStatus)

#: Longest wait for a reply of any query; then the connection is looked at again.
LISTEN_SECONDS: Final = 10.0


class NotLive(Exception):
    """The action is not live: it finished before ``journal_id``, or does not exist."""

    def __init__(self, journal_id: str) -> None:
        super().__init__(journal_id)
        self.journal_id = journal_id


class SchedulerQueries:
    """Queries of this process, and the futures of their replies."""

    def __init__(
        self, client: redis.asyncio.Redis, keys: Keys, submitter: Submitter, process: str
    ) -> None:
        self._client = client
        self._keys = keys
        self._submitter = submitter
        self.channel = keys.replies(process)
        self._open: dict[str, asyncio.Future[Reply]] = {}
        #: Set while the channel is subscribed; a query before that would miss its reply.
        self._listening = asyncio.Event()

    async def run(self) -> None:
        """Receive replies until cancelled."""
        while keep_running():
            try:
                async with self._client.pubsub() as pubsub:
                    await pubsub.subscribe(self.channel)
                    while keep_running():
                        self._take(await pubsub.get_message(timeout=LISTEN_SECONDS))
            except redis.RedisError as error:
                log.warning("replies cannot be received: %s", error)
                self._listening.clear()
                await asyncio.sleep(RETRY_SECONDS)

    def _take(self, message: dict[str, Any] | None) -> None:
        if message is None:
            return
        if message["type"] == "subscribe":
            self._listening.set()
        elif message["type"] == "message":
            try:
                reply = decode_reply(message["data"])
            except msgspec.DecodeError as error:  # of a leader of another version
                log.error("a reply cannot be read: %s", error)
            else:
                self._resolve(reply)

    def _resolve(self, reply: Reply) -> None:
        future = self._open.pop(reply.request_id, None)
        if future is not None and not future.done():
            future.set_result(reply)

    async def action(self, action_id: str, project: str | None) -> ActionResponse:
        """Return a live action. Raises NotLive, Unavailable."""
        request_id = secrets.token_hex(8)
        question = ActionQueried(
            action_id=ActionId(action_id),
            project=project or "",
            request_id=request_id,
            reply_to=self.channel,
        )
        reply = await self._ask(request_id, encode(question), ANSWER_SECONDS, project or "")
        if not reply.ok:
            raise NotLive(reply.detail)
        return _views.decode(reply.body)

    async def trajectory(self, project: str, name: str) -> TrajectoryDetails:
        """Return the state of a trajectory. Raises NotFound, Unavailable."""
        request_id = secrets.token_hex(8)
        question = TrajectoryQueried(
            project=project, trajectory=name, request_id=request_id, reply_to=self.channel
        )
        reply = await self._ask(request_id, encode(question), ANSWER_SECONDS, project)
        if not reply.ok:
            raise NotFound(f"there is no trajectory {name!r} open or finished lately")
        return _trajectories.decode(reply.body)

    async def trajectories(self, project: str | None, door: str) -> list[TrajectoryReceipt]:
        """Return the open trajectories of a facade, of a project or of all. Raises Unavailable."""
        request_id = secrets.token_hex(8)
        question = TrajectoriesQueried(
            project=project or "", door=door, request_id=request_id, reply_to=self.channel
        )
        reply = await self._ask(request_id, encode(question), ANSWER_SECONDS, project or "")
        return _listed_trajectories.decode(reply.body)

    async def status(self) -> SystemStatus:
        """Return the status of the system. Raises Unavailable."""
        request_id = secrets.token_hex(8)
        question = StatusQueried(request_id=request_id, reply_to=self.channel)
        reply = await self._ask_first(request_id, encode(question))
        return _statuses.decode(reply.body)

    async def node_loads(self) -> dict[str, NodeLoad]:
        """Return what hangs on each node. Raises Unavailable."""
        request_id = secrets.token_hex(8)
        question = NodeLoadsQueried(request_id=request_id, reply_to=self.channel)
        reply = await self._ask_first(request_id, encode(question))
        if not reply.ok:
            raise Unavailable(reply.detail)
        return _loads.decode(reply.body)

    async def pool_demands(self, pools: tuple[str, ...]) -> dict[str, PoolDemand]:
        """Return what waits and runs in pools. Raises Unavailable."""
        request_id = secrets.token_hex(8)
        question = PoolDemandsQueried(request_id=request_id, reply_to=self.channel, pools=pools)
        reply = await self._ask_first(request_id, encode(question))
        if not reply.ok:
            raise Unavailable(reply.detail)
        return _demands.decode(reply.body)

    async def decisions(self, limit: int) -> DecisionsResponse:
        """Return recent decisions of policies. Raises Unavailable."""
        request_id = secrets.token_hex(8)
        question = DecisionsQueried(request_id=request_id, reply_to=self.channel, limit=limit)
        reply = await self._ask_first(request_id, encode(question))
        return _decisions.decode(reply.body)

    async def queues(self, limit: int) -> QueuesResponse:
        """Return the wait queues. Raises Unavailable."""
        request_id = secrets.token_hex(8)
        question = QueuesQueried(request_id=request_id, reply_to=self.channel, limit=limit)
        reply = await self._ask_first(request_id, encode(question))
        return _queues.decode(reply.body)

    async def rollouts(
        self,
        *,
        project: str = "",
        rollout_id: str = "",
        rollout_ids: tuple[str, ...] = (),
        task: str = "",
        group: str = "",
        door: str = "",
        backends: tuple[str, ...] = (),
        limit: int = 100,
    ) -> RolloutsStatus:
        """Return live rollouts, and the backends of pools (``*``: of all). Raises Unavailable."""
        request_id = secrets.token_hex(8)
        question = RolloutsQueried(
            request_id=request_id,
            reply_to=self.channel,
            project=project,
            rollout_id=rollout_id,
            rollout_ids=rollout_ids,
            task=task,
            group=group,
            door=door,
            backends=backends,
            limit=limit,
        )
        reply = await self._ask(request_id, encode(question), ANSWER_SECONDS)
        return _rollouts.decode(reply.body)

    async def engines(self) -> FleetsStatus:
        """Return all fleets with the engines of their own workers. Raises Unavailable."""
        request_id = secrets.token_hex(8)
        question = FleetsQueried(request_id=request_id, reply_to=self.channel, engines=True)
        reply = await self._ask(request_id, encode(question), ANSWER_SECONDS)
        _raise_refusal(reply)
        return _fleets.decode(reply.body)

    async def fleets(
        self,
        fleet: str,
        *,
        limit: int = 0,
        projects: tuple[str, ...] | None = None,
        plan: bool = False,
        plan_limit: int = 0,
    ) -> FleetsStatus:
        """Return a fleet with trajectories of ``projects``, or of all, and what an arrangement would change. Raises Unavailable."""
        request_id = secrets.token_hex(8)
        question = FleetsQueried(
            request_id=request_id,
            reply_to=self.channel,
            fleet=fleet,
            limit=limit,
            projects=projects,
            plan=plan,
            plan_limit=plan_limit,
        )
        reply = await self._ask(request_id, encode(question), ANSWER_SECONDS)
        return _fleets.decode(reply.body)

    async def selectors(
        self,
        selector: str = "",
        *,
        cells: bool = False,
        history: bool = False,
        load: StageLoad | None = None,
        stage: SelectorStage = SelectorStage.ROLLOUT,
        observed: bool = False,
        pin: Parallelism | None = None,
        forced: bool = False,
    ) -> SelectorsStatus:
        """Return a selector or all, and what would be chosen for a load. Raises Unavailable."""
        request_id = secrets.token_hex(8)
        question = SelectorsQueried(
            request_id=request_id,
            reply_to=self.channel,
            selector=selector,
            cells=cells,
            history=history,
            load=load,
            stage=stage,
            observed=observed,
            pin=pin,
            forced=forced,
        )
        reply = await self._ask(request_id, encode(question), ANSWER_SECONDS)
        return _selectors.decode(reply.body)

    async def open_files(self, project: str, trajectory: str) -> None:
        """Place a trajectory, and make its environment on its node. Raises NotFound, Conflict, CapacityError."""
        request_id = secrets.token_hex(8)
        try:
            await self._transfer(request_id, project, trajectory, OPEN_FILES, "")
        except Conflict as error:
            if error.code != "conflict":
                raise
            # It is being finished; a moment later it is not known any more.
            raise NotFound(f"there is no open trajectory {trajectory!r}: {error}") from None

    async def fork(
        self,
        project: str,
        source: str,
        children: tuple[str, ...],
        on_busy: str,
        metadata: dict[str, Any],
        door: str = "",
    ) -> ForkReport:
        """Fork a trajectory. Raises NotFound, Conflict, CapacityError, HttpError, Unavailable."""
        request_id = secrets.token_hex(8)
        event = TrajectoriesForked(
            project=project,
            source=source,
            children=children,
            request_id=request_id,
            reply_to=self.channel,
            on_busy=on_busy,
            metadata=metadata,
            door=door,
        )
        seconds = FORK_SECONDS if on_busy == REFUSE else FORK_WAIT_SECONDS
        reply = await self._ask(request_id, packed(event), seconds, project)
        _raise_refusal(reply)
        return _fork_reports.decode(reply.body)

    async def snapshot(
        self, project: str, trajectory: str, name: str, on_busy: str
    ) -> SnapshotReport:
        """Take a snapshot of a trajectory. Raises as `fork` does."""
        request_id = secrets.token_hex(8)
        event = TrajectoriesForked(
            project=project,
            source=trajectory,
            children=(),
            request_id=request_id,
            reply_to=self.channel,
            on_busy=on_busy,
            snapshot=name,
        )
        seconds = FORK_SECONDS if on_busy == REFUSE else FORK_WAIT_SECONDS
        reply = await self._ask(request_id, encode(event), seconds, project)
        _raise_refusal(reply)
        return _snapshot_reports.decode(reply.body)

    async def _transfer(
        self, request_id: str, project: str, trajectory: str, verb: str, path: str
    ) -> None:
        event = FileRequested(
            project=project,
            trajectory=trajectory,
            request_id=request_id,
            verb=verb,
            path=path,
            reply_to=self.channel,
        )
        reply = await self._ask(request_id, encode(event), TRANSFER_SECONDS, project)
        _raise_refusal(reply)

    async def _ask(
        self, request_id: str, message: bytes, timeout_seconds: float, project: str = ""
    ) -> Reply:
        """Send a query in its place among the submissions of ``project``, and return its reply. Raises Unavailable."""

        async def send() -> None:
            await self._submitter.append([message], follows=project)

        return await self._answered(request_id, send, timeout_seconds)

    async def _ask_first(self, request_id: str, message: bytes) -> Reply:
        """Send a query about the whole system, which waits for no submission. Raises Unavailable."""

        async def send() -> None:
            try:
                await self._client.xadd(self._keys.questions, {"0": message}, maxlen=QUESTIONS)
            except redis.RedisError as error:
                raise unavailable(error) from None

        return await self._answered(request_id, send, ANSWER_SECONDS)

    async def _answered(
        self, request_id: str, send: Callable[[], Awaitable[None]], timeout_seconds: float
    ) -> Reply:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._open[request_id] = future
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._listening.wait()
                await send()
                reply = await future
        except TimeoutError:
            raise Unavailable("the scheduler does not answer; is a loop running?") from None
        finally:
            self._open.pop(request_id, None)
        if reply.code == "failed":
            raise Unavailable(reply.detail)
        return reply


def _raise_refusal(reply: Reply) -> None:
    if reply.ok:
        return
    if reply.code == "not_found":
        raise NotFound(reply.detail)
    if reply.code in {"conflict", "busy_environment", "exists"}:
        raise Conflict(reply.detail, code=reply.code)
    if reply.code == "busy":
        raise CapacityError(reply.detail)
    if reply.code == STORAGE_FULL:
        raise HttpError(507, reply.code, reply.detail)
    if reply.code == "expired":
        raise Unavailable(reply.detail)
    raise InvalidRequest(reply.detail, code=reply.code)
