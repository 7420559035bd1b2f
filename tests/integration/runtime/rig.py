"""The runtime in one process: a real Redis, a loop in a thread, a node with a fake driver, and
the gateway called without a socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import redis
import uvicorn

from contract.responses import ActionResponse, CompletionsResponse
from contract.rollout_views import RolloutCompletions, RolloutView
from domain.action import Outcome
from domain.codec import JournalEntry, encode
from domain.decisions import FinishRollout
from domain.events import TimeAdvanced
from domain.ids import ActionId
from domain.inventory import Config, PoolConfig, ProjectConfig, ResourceInventory
from domain.journal_reducer import JournalReducer, on
from domain.ports import Driver
from domain.principals import Principal, Scope
from domain.project_limits import ProjectLimits
from domain.redis_keys import Keys
from domain.request_text import RequestDetails
from facades import registry
from managers.cpu.fake import FakeDriver
from managers.registry import load
from scheduler.runtime.body_store import BodyStore
from scheduler.runtime.gateway.app import Gateway
from scheduler.runtime.gateway.callbacks import Callbacks
from scheduler.runtime.gateway.context import GatewayBackend, GatewayContext
from scheduler.runtime.gateway.endpoints.event_feeds import PLACES
from scheduler.runtime.gateway.rollout_lookup import finished_view_of
from scheduler.runtime.liveness import process_name
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.loop.scheduler_loop import SchedulerLoop
from scheduler.runtime.node.door.areas import door_routes
from scheduler.runtime.node.door.routes import DoorRoutes
from scheduler.runtime.node.door.server import DoorOptions, EmbeddedServer, NodeDoor
from scheduler.runtime.node.worker import NodeOptions, NodeWorker
from scheduler.runtime.object_store.objects import ObjectStore
from scheduler.runtime.redis.clients import connect, connect_async
from scheduler.runtime.redis.door_addresses import DoorAddresses
from scheduler.runtime.redis.response_streams import RedisResponseStreams
from scheduler.runtime.rollouts.log_store import RolloutLogs
from scheduler.runtime.rollouts.rollout_ends import RolloutEnd
from tangram_client.aio import AsyncClient

CONFIG = Config(
    revision=1,
    projects={"default": ProjectConfig("default"), "other": ProjectConfig("other")},
    pools={"default": PoolConfig("default")},
    resources={"api:search": 2000},
)
TOKENS = {
    "trainer": Principal("trainer", "default", frozenset({Scope.READ, Scope.SUBMIT})),
    "operator": Principal("operator", "default", frozenset(Scope) - {Scope.ADMIN}),
    "cluster": Principal("cluster", None, frozenset(Scope) - {Scope.ADMIN}),
    "reader": Principal("reader", "default", frozenset({Scope.READ})),
    "stranger": Principal("stranger", "other", frozenset({Scope.READ, Scope.SUBMIT})),
}


class LoopThread:
    """A scheduler loop in a thread, as a worker hosts it."""

    def __init__(
        self,
        url: str,
        keys: Keys,
        config: Config = CONFIG,
        *,
        socket: Path | None = None,
        **options: Any,
    ) -> None:
        self._url, self._keys = url, keys
        self._client = connect(url)
        leadership = Leadership(self._client, keys, process_name("loop"), **options)
        self.loop = SchedulerLoop(
            self._client, keys, load(()).make_ledger, leadership, config, socket=socket
        )
        self.stop_event = threading.Event()
        self.thread = threading.Thread(target=self.loop.run, args=(self.stop_event,), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """End it as a clean shutdown does."""
        self.stop_event.set()
        with contextlib.suppress(redis.RedisError), connect(self._url) as waker:
            waker.xadd(self._keys.inbox, {"0": encode(TimeAdvanced())})  # ends its wait
        self.thread.join(120)
        assert not self.thread.is_alive()
        self._client.close()


class Rows:
    """Stands in for the database: what composition roots pass to the gateway."""

    def __init__(self) -> None:
        self.views: dict[str, ActionResponse] = {}
        self.requests: dict[str, RequestDetails] = {}
        #: Names of tasks without a row; all others have one.
        self.unknown_tasks: set[str] = set()

    async def authenticate(self, token: str, address: str) -> Principal | None:
        return TOKENS.get(token)

    async def action_view(self, action_id: str) -> ActionResponse | None:
        return self.views.get(action_id)

    async def action_request(self, action_id: str) -> RequestDetails | None:
        return self.requests.get(action_id)

    async def completions(self, project: str | None, after: int, limit: int) -> CompletionsResponse:
        return CompletionsResponse([], str(after))

    async def facts(self) -> dict[str, Any]:
        return {"leader": "other"}

    async def checks(self) -> dict[str, str]:
        return {"database": ""}

    async def task_exists(self, project: str, task: str) -> bool:
        return task not in self.unknown_tasks


class RolloutRows(JournalReducer):
    """Stands in for the rows of finished rollouts, as the journals of the web processes have them."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: dict[str, tuple[int, RolloutEnd]] = {}
        #: They show nothing yet, as when the projector is busy.
        self.behind = False
        self._seq, self._at = 0, 0.0

    def begin(self, entry: JournalEntry) -> None:
        self._seq, self._at = entry.seq * PLACES, entry.at + entry.wall_offset_seconds

    @on(FinishRollout)
    def _finished(self, finish: FinishRollout) -> None:
        self._seq += 1
        self._ends.setdefault(finish.rollout_id, (self._seq, RolloutEnd(finish, self._at)))

    def skipped(self) -> None:
        """No entry is unreadable here."""

    async def view(self, rollout: str) -> RolloutView | None:
        """Return a rollout that has finished."""
        found = self._ends.get(rollout)
        return None if found is None else finished_view_of(found[1])

    async def of(
        self, ids: Sequence[str], groups: Sequence[str], project: str, task: str
    ) -> list[RolloutView]:
        """Return the finished ones of some rollouts, or of groups of a project."""
        views = [finished_view_of(end) for _, end in self._ends.values()]
        if ids:
            return [view for view in views if view.id in ids]
        return [view for view in views if view.group in groups and view.project == project]

    async def completions(self, project: str | None, after: int, limit: int) -> RolloutCompletions:
        """Return a page of all projects."""
        found = [(place, end) for place, end in self._ends.values() if place > after]
        if self.behind:
            found = []
        page = found[:limit]
        items = [finished_view_of(end) for _, end in page]
        last = page[-1][0] if page else after
        return RolloutCompletions(items, str(last), more=len(page) < len(found))


class Rig:
    """A running system of one node."""

    def __init__(
        self, url: str, keys: Keys, directory: Path, node_url: str = "", web_url: str = ""
    ) -> None:
        """``node_url``, ``web_url``: those of parts with Redis users of their own."""
        self.url, self.keys, self.directory = url, keys, directory
        self.node_url, self.web_url = node_url or url, web_url or url
        self.redis = connect(url)
        # There are no rows here, so none may be waited for.
        self.redis.hset(keys.positions, "projector", f"{10**15}-0")
        self.rows = Rows()
        #: At which nodes reach a leader of this machine; None: all goes through Redis.
        self.socket: Path | None = None
        self.driver = FakeDriver()
        #: For drivers with streamed responses.
        self.response_streams = RedisResponseStreams(connect_async(self.node_url), keys)
        #: Drivers of other kinds, for the next start of the node.
        self.others: list[Driver] = []
        self.loop: LoopThread | None = None
        #: Limits of each project, for gateways that start later.
        self.limits = ProjectLimits()
        self.node_requests = 64
        #: Relayed responses at once, for gateways that start later.
        self.streams = 128
        self._node: asyncio.Task[None] | None = None
        self.worker: NodeWorker | None = None
        #: Routes of the node door, for the next start of the node.
        self.routes = DoorRoutes()
        self._area_routes = 0
        #: Folder of stored bodies, for parts that start later.
        self.bodies_folder: Path | None = None
        #: Logs of rollouts, for gateways that start later.
        self.rollout_logs: RolloutLogs | None = None
        self.rollout_rows = RolloutRows()
        self.callbacks = Callbacks()
        #: Object stores of web processes and nodes, for parts that start later.
        self.web_objects: ObjectStore | None = None
        self.node_objects: ObjectStore | None = None

    async def start_node(self, cpus: int = 4, **more: ResourceInventory) -> NodeWorker:
        """Start the node worker and wait until it has joined."""
        have = {"cpu": ResourceInventory(cpus * 1000), "memory": ResourceInventory(2**30), **more}
        options = NodeOptions(
            "n1", "default", self.directory / "n1", have, leader_socket=self.socket,
            own_user=self.node_url != self.url,
        )  # fmt: skip
        self._node_client = connect_async(self.node_url)
        drivers: list[Driver] = [self.driver, *self.others]
        own = self.routes._routes
        del own[: self._area_routes]
        bodies = BodyStore(self.bodies_folder)
        theirs = door_routes(drivers, self.node_objects, bodies)._routes
        own[:0], self._area_routes = theirs, len(theirs)
        door = NodeDoor(
            DoorAddresses(self._node_client, self.keys, own_key=options.own_user),
            "n1",
            DoorOptions(self.directory / "n1" / "door"),
            self.routes,
        )
        worker = NodeWorker(
            self._node_client, self.keys, options, drivers, door=door, bodies=bodies,
            store=self.node_objects,
        )  # fmt: skip
        self.worker = worker
        self._node = asyncio.create_task(worker.run())
        await asyncio.wait_for(worker.joined.wait(), 120)
        async with asyncio.timeout(120):
            while b'"cpu"' not in cast("bytes", self.redis.get(self.keys.capacity) or b""):
                await asyncio.sleep(0.005)  # the loop has not taken the node in yet
        return worker

    @property
    def node_task(self) -> asyncio.Task[None]:
        """The running node worker."""
        assert self._node is not None
        return self._node

    async def crash_node(self) -> None:
        """End the node worker as ``kill -9`` does; a new driver finds what the old one left."""
        self.driver = FakeDriver(self.driver.script, self.driver.crash())
        await self.stop_node()

    async def stop_node(self) -> None:
        """End the node worker."""
        if self._node is not None:
            self._node.cancel()
            await asyncio.wait({self._node})
            self._node = None
            await self._node_client.aclose()
            self.response_streams.close()

    async def until_started(self, action_id: str) -> None:
        """Wait until the driver has begun an action."""
        async with asyncio.timeout(120):
            while all(order.id != action_id for order in self.driver.storage.marks.values()):
                await asyncio.sleep(0.005)

    async def end_action(self, action_id: str) -> None:
        """Let a command that would go on end now, as by itself."""
        await self.until_started(action_id)
        self.driver.stop(ActionId(action_id), Outcome.COMPLETED, "enough")

    def close(self) -> None:
        """Close what is the rig's own."""
        self.redis.close()

    async def end(self) -> None:
        """End its parts, in order."""
        await self.stop_node()
        if self.loop is not None:
            self.loop.stop()
        self.close()

    @asynccontextmanager
    async def context(self) -> AsyncIterator[GatewayContext]:
        """Return the context of a gateway that follows the journal."""
        backend = GatewayBackend(
            self.rows.authenticate,
            self.rows.action_view,
            self.rows.completions,
            self.rows.checks,
            self.rows.facts,
            self.rows.task_exists,
            action_request=self.rows.action_request,
            rollout_view=self.rollout_rows.view,
            rollout_completions=self.rollout_rows.completions,
            rollouts=self.rollout_rows.of,
        )
        context = GatewayContext(
            connect_async(self.web_url),
            self.keys,
            backend,
            limits=self.limits,
            node_requests=self.node_requests,
            bodies=BodyStore(self.bodies_folder),
            rollout_logs=self.rollout_logs,
            callbacks=self.callbacks,
            streams=self.streams,
            objects=self.web_objects,
        )
        context.tail.also.append(self.rollout_rows)
        await context.start()
        try:
            yield context
        finally:
            await context.stop()

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[Gateway]:
        """Return a gateway that follows the journal."""

        async def nothing_behind(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b"behind"})

        async with self.context() as context:
            yield Gateway(context, nothing_behind, facades=registry.entries())

    @asynccontextmanager
    async def client(self, token: str = "trainer") -> AsyncIterator[httpx.AsyncClient]:
        """Return an HTTP client of a gateway of its own, without a socket between them."""
        async with (
            self.gateway() as gateway,
            httpx.AsyncClient(
                transport=httpx.ASGITransport(gateway),
                base_url="http://tangram/api/v1",
                headers={"Authorization": f"Bearer {token}"},
                timeout=300,
            ) as client,
        ):
            yield client

    @asynccontextmanager
    async def served(self, token: str = "trainer") -> AsyncIterator[AsyncClient]:
        """Return the SDK's client of a gateway behind a real web server."""
        async with self.gateway() as gateway:
            server = EmbeddedServer(
                uvicorn.Config(gateway, port=0, lifespan="off", log_level="warning")
            )
            with socket.socket() as listening:
                listening.bind(("127.0.0.1", 0))
                serving = asyncio.create_task(server.serve([listening]))
                url = f"http://127.0.0.1:{listening.getsockname()[1]}"
                async with AsyncClient(url, token) as client:
                    yield client
                server.end()
                await serving
