"""Client of node doors: direct requests and websockets to the worker of the node that holds an environment.

    async with context.node_door.request(project, trajectory, "GET", "/files/a.txt") as answer:
        async for piece in answer.chunks(): ...

Rules
1. The node of a trajectory is found in the cache (`environment_places`), else by one query of the loop. A
   node that does not hold it answers ``not_here``; then the loop is queried once more.
2. A request is sent again only when no part of it was executed: the connection failed, the secret was
   that of a former start, or the environment was not there; and only if its body is bytes. Anything else that fails is
   `Unavailable` (503), and whether it was executed is unknown.
3. The answer's pieces are read as they are consumed; leaving the context ends the handler on the node.
4. The requests of a project that are open at once in this process are limited (429), so that one project
   cannot occupy all connections.
5. A refusal of the node is raised as the error that the node raised (`node_connection`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Final, TypeVar
from urllib.parse import quote, urlencode

import redis

from domain.errors import CapacityError, Conflict, NotFound, Unavailable
from domain.ids import TrajectoryKey, trajectory_key
from scheduler.runtime.gateway.environment_places import EnvironmentPlaces
from scheduler.runtime.gateway.node_connection import (
    Body,
    DoorAnswer,
    DoorCall,
    ElsewhereNow,
    FormerSecret,
    NodeConnection,
    NodeSocket,
    NotConnected,
    ask_node,
    not_connected,
    open_socket,
    send_request,
)
from scheduler.runtime.redis.door_addresses import DoorAddresses

log = logging.getLogger(__name__)

#: Longest silence of a node in an answer, unless the caller says otherwise.
IDLE_SECONDS: Final = 60.0
#: Requests of a project that are open at once, unless the operator sets another limit.
NODE_REQUESTS: Final = 512
_TRAJECTORY: Final = "tangram-trajectory"

T = TypeVar("T")
#: Project and trajectory → name of the node, empty without an environment. Raises NotFound, Unavailable.
FindNode = Callable[[str, str], Awaitable[str]]
#: What is tried with a node, and once more with a newer address.
Attempt = Callable[[NodeConnection], Awaitable[T]]


class NodeDoorClient:
    """Requests of this web process to node workers."""

    def __init__(
        self,
        addresses: DoorAddresses,
        places: EnvironmentPlaces,
        find_node: FindNode,
        most_per_project: int,
    ) -> None:
        self._addresses = addresses
        self._places = places
        self._find_node = find_node
        self._most = most_per_project
        self._open: Counter[str] = Counter()
        self._nodes: dict[str, NodeConnection] = {}
        self._retiring: set[asyncio.Future[None]] = set()

    @asynccontextmanager
    async def request(
        self,
        project: str,
        trajectory: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        idle_seconds: float | None = IDLE_SECONDS,
    ) -> AsyncIterator[DoorAnswer]:
        """Send a request to the node of a trajectory; ``path`` is not percent-encoded.

        Raises NotFound, Conflict without an environment, CapacityError, Unavailable, and what the node raises.
        """
        key = trajectory_key(project, trajectory)
        target = quote(path) + (f"?{urlencode(query)}" if query else "")
        sent = {**(headers or {}), _TRAJECTORY: quote(key)}
        with self.counted(project):
            call = DoorCall(method, target, sent, body, idle_seconds)
            answer = await self._at_place(key, partial(send_request, call), call.repeatable)
            try:
                yield answer
            finally:
                await answer.close()

    async def ask(
        self,
        project: str,
        trajectory: str,
        path: str,
        query: Mapping[str, str],
        idle_seconds: float = IDLE_SECONDS,
    ) -> bytes:
        """Return the answer to a GET request that is short, at a fifth of the cost of `request`. Raises as `request`."""
        key = trajectory_key(project, trajectory)
        target = f"{quote(path)}?{urlencode(query)}"
        with self.counted(project):
            call = DoorCall("GET", target, {_TRAJECTORY: quote(key)}, None, idle_seconds)
            return await self._at_place(key, partial(ask_node, call, idle_seconds), True)

    @asynccontextmanager
    async def on_node(
        self,
        project: str | None,
        node: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        idle_seconds: float | None = IDLE_SECONDS,
    ) -> AsyncIterator[DoorAnswer]:
        """Send a request to ``node``, for routes without a trajectory. Raises as `request`.

        Without a project the caller counts it.
        """
        with nullcontext() if project is None else self.counted(project):
            target = quote(path) + (f"?{urlencode(query)}" if query else "")
            call = DoorCall(method, target, dict(headers or {}), body, idle_seconds)
            try:
                answer = await self._at_node(node, partial(send_request, call), call.repeatable)
            except ElsewhereNow:
                raise NotFound(f"node {node} does not have it", code="not_here") from None
            try:
                yield answer
            finally:
                await answer.close()

    @asynccontextmanager
    async def websocket(
        self,
        project: str,
        trajectory: str,
        path: str,
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        subprotocols: Sequence[str] = (),
    ) -> AsyncIterator[NodeSocket]:
        """Open a websocket to the node of a trajectory; ``query`` is percent-encoded. Raises as `request`."""
        key = trajectory_key(project, trajectory)
        target = quote(path) + (f"?{query}" if query else "")
        sent = {**(headers or {}), _TRAJECTORY: quote(key)}
        with self.counted(project):
            attempt = partial(open_socket, target, sent, subprotocols)
            socket = await self._at_place(key, attempt, repeatable=True)
            try:
                yield socket
            finally:
                await socket.close()

    async def nodes(self) -> list[str]:
        """Return the names of the nodes that have a door. Raises Unavailable."""
        try:
            return await self._addresses.nodes()
        except redis.RedisError as error:
            raise Unavailable(f"redis does not answer: {error}") from None

    def joined(self, node: str, incarnation: int) -> None:
        """Drop the address of a former start of a node's worker."""
        known = self._nodes.get(node)
        if known is not None and known.address.incarnation != incarnation:
            self._drop(known)

    def _drop(self, node: NodeConnection) -> None:
        if self._nodes.get(node.name) is node:
            del self._nodes[node.name]
            retiring = asyncio.ensure_future(node.retire())
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)

    async def close(self) -> None:
        """Close all connections."""
        for node in list(self._nodes.values()):
            self._drop(node)
        await asyncio.gather(*self._retiring, return_exceptions=True)

    @contextmanager
    def counted(self, project: str) -> Iterator[None]:
        """Count a request of ``project`` while it is open. Raises CapacityError."""
        if self._open[project] >= self._most:
            raise CapacityError(f"project {project!r} has {self._most} requests to nodes open")
        self._open[project] += 1
        try:
            yield
        finally:
            self._open[project] -= 1
            if not self._open[project]:
                del self._open[project]

    async def node_of(self, key: TrajectoryKey, *, fresh: bool = False) -> str:
        """Return the node of an environment; ``fresh``: as the loop has it. Raises NotFound, Conflict."""
        node = None if fresh else self._places.of(key)
        if node is None:
            project, _, name = key.partition("/")
            node = await self._find_node(project, name)
            if not node:
                self._places.forget(key)
                raise Conflict(
                    f"trajectory {name!r} has no environment yet; submit an action to it first",
                    code="no_environment",
                )
            self._places.found(key, node)
        return node

    async def _at_place(self, key: TrajectoryKey, attempt: Attempt[T], repeatable: bool) -> T:
        """Return what ``attempt`` returns for the node of ``key``."""
        try:
            return await self._at_node(await self.node_of(key), attempt, repeatable)
        except ElsewhereNow:
            node = await self.node_of(key, fresh=True)
            if not repeatable:
                raise Unavailable("the environment was not where it was; send it again") from None
        try:
            return await self._at_node(node, attempt, repeatable)
        except ElsewhereNow:
            name = key.partition("/")[2]
            detail = f"trajectory {name!r} has no environment on node {node}"
            raise NotFound(detail, code="no_environment") from None

    async def _at_node(self, name: str, attempt: Attempt[T], repeatable: bool) -> T:
        """Return what ``attempt`` returns; once more with the address that is stored now if it did nothing."""
        node = await self._node(name)
        try:
            return await attempt(node)
        except (NotConnected, FormerSecret) as error:
            failure: Exception = error
        self._drop(node)
        if not repeatable and isinstance(failure, FormerSecret):
            raise Unavailable(f"node {name} was started again; send it again") from None
        again = await self._node(name)
        if again.address == node.address:
            raise Unavailable(not_connected(node, failure)) from failure
        try:
            return await attempt(again)
        except (NotConnected, FormerSecret) as error:
            raise Unavailable(not_connected(again, error)) from error

    async def _node(self, name: str) -> NodeConnection:
        known = self._nodes.get(name)
        if known is None:
            try:
                address = await self._addresses.read(name)
            except redis.RedisError as error:
                raise Unavailable(f"redis does not answer: {error}") from None
            if address is None:
                raise Unavailable(f"node {name} has no worker that answers now")
            known = self._nodes.get(name)  # another request may have read it meanwhile
            if known is None:
                known = self._nodes[name] = NodeConnection(name, address)
        return known
