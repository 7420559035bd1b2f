"""Endpoints of images: each request goes to the doors of several nodes, an upload to all of them at once.

An upload is read as fast as the slowest node takes it, and is never kept: a node that fails is left out while
the others go on. Only where no node did what was asked, its error is that of the request. What the client has put into
the object store, or a node puts there, each node pulls; what was imported for all nodes, those that join later pull, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec
import redis

from contract.image_routes import ImageChange, ImageDescription, ImageList
from domain.errors import Conflict, InvalidRequest, NotFound, TangramError, Unavailable
from domain.ports.images import MAX_IMAGE_BYTES, ImageOnNode
from domain.principals import Principal
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.endpoints.stored_transfers import check_all_projects, no_store
from scheduler.runtime.gateway.http import HttpRequest, HttpResponse
from scheduler.runtime.gateway.node_connection import Body
from scheduler.runtime.object_store.contents import stored_content
from scheduler.runtime.object_store.objects import (
    ALL_PROJECTS,
    IMAGES,
    ContentDigest,
    ObjectStore,
    object_key,
)
from scheduler.runtime.redis.confirmation import unavailable
from scheduler.runtime.redis.image_registry import ImageRegistry, StoredImage

#: An import is silent while it unpacks.
UNPACK_SECONDS: Final = 1800.0
_PIECES: Final = 8
_listing = msgspec.json.Decoder(list[ImageOnNode])
_stored = msgspec.json.Decoder(ImageOnNode)
_contents = msgspec.json.Decoder(ContentDigest)
_NOTHING: Final[Mapping[str, str]] = {}
log = logging.getLogger(__name__)

T = TypeVar("T")


class _Wanted(NamedTuple):
    """Image and nodes of a request."""

    name: str
    nodes: list[str]
    #: No nodes were named: those that join later have it, too.
    everywhere: bool


class Images:
    """Handlers of images."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._registry = ImageRegistry(context.client, context.keys, context.confirmed)

    async def show(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """GET /images."""
        await request.body()
        found, failed = await self._on_all(await self._context.node_door.nodes(), self._listed)
        merged: dict[tuple[str, str], ImageDescription] = {}
        for node, images in found.items():
            for each in images:
                _merge(merged, node, each)
        for stored in await self._registered():
            _mark_stored(merged, stored)
        described = [merged[key] for key in sorted(merged)]
        return HttpResponse(200, ImageList(described, _texts(failed)))

    async def _registered(self) -> list[StoredImage]:
        try:
            return await self._registry.all()
        except redis.exceptions.NoPermissionError:  # a user of Redis of an earlier version
            return []
        except redis.RedisError as error:
            raise unavailable(error) from None

    async def store(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """PUT /images: the body is an archive, or the client has stored it, or a node has the image."""
        wanted = await self._asked(request, principal)
        sha256, source = request.query().get("stored"), request.query().get("from")
        kept: ContentDigest | str
        if sha256 is None and source is None:
            done, failed = await self._sent(request, wanted)
            kept = next(iter(done), "")
        else:
            await request.body()
            if source is not None:
                sha256 = (await self._kept(source, wanted.name)).sha256
            store = self._context.objects
            if store is None:
                raise no_store()
            key = object_key(IMAGES, ALL_PROJECTS, sha256 or "")
            content = await stored_content(store, key, MAX_IMAGE_BYTES)
            done, failed = await self._on_all(
                wanted.nodes, partial(self._pulled, wanted.name, store, key)
            )
            kept = ContentDigest(sha256 or "", content.size_bytes)
        digest = next(iter(done.values())).digest if done else ""
        if done and wanted.everywhere:
            await self._register(wanted.name, digest, kept)
        return _changed(201, wanted.name, digest, list(done), failed)

    async def _sent(
        self, request: HttpRequest, wanted: _Wanted
    ) -> tuple[dict[str, ImageOnNode], dict[str, TangramError]]:
        """Send the body to all nodes at once."""
        nodes = wanted.nodes
        copies = Copies(len(nodes))
        own = dict(zip(nodes, copies.readers, strict=True))

        async def send(node: str) -> ImageOnNode:
            try:
                return _stored.decode(await self._ask("PUT", node, wanted.name, own[node]()))
            finally:
                copies.leave(nodes.index(node))

        reading = asyncio.ensure_future(copies.read(request.chunks(MAX_IMAGE_BYTES)))
        try:
            done, failed = await self._on_all(nodes, send)
            if not done and reading.done() and (error := reading.exception()) is not None:
                raise error
            return done, failed
        finally:
            reading.cancel()  # a node may refuse an archive before it has all of it
            await asyncio.gather(reading, return_exceptions=True)

    async def _pulled(self, name: str, store: ObjectStore, key: str, node: str) -> ImageOnNode:
        """Have a node pull an archive; send it to a node that does not reach the store."""
        try:
            more = {"stored": key.rpartition("/")[2]}
            return _stored.decode(await self._ask("PUT", node, name, more=more))
        except (Conflict, Unavailable) as error:
            if isinstance(error, Conflict) and error.code != "no_object_store":
                raise
        return _stored.decode(await self._ask("PUT", node, name, store.get(key)))

    async def _kept(self, node: str, name: str) -> ContentDigest:
        """Have a node put one of its images into the store."""
        path = "/images/objects"
        return _contents.decode(await self._ask("POST", node, name, path=path))

    async def _register(self, name: str, digest: str, kept: ContentDigest | str) -> None:
        """Let nodes that join later pull an image: ``kept`` in the store, or to be put there by the node of that name."""
        try:
            if isinstance(kept, str):
                await self._registry.remove(name)  # it is another image, perhaps
                if self._context.objects is None:
                    return
                kept = await self._kept(kept, name)
            await self._registry.add(StoredImage(name, kept.sha256, kept.size_bytes, digest))
        except (TangramError, redis.RedisError) as error:
            log.warning("nodes that join later cannot pull image %r: %s", name, error)

    async def remove(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """DELETE /images."""
        await request.body()
        wanted = await self._asked(request, principal)
        known = False
        if wanted.everywhere:
            try:
                known = await self._registry.remove(wanted.name)
            except redis.exceptions.NoPermissionError:
                log.warning("nodes may pull image %r again", wanted.name)
            except redis.RedisError as error:
                raise unavailable(error) from None
        done, failed = await self._on_all(
            wanted.nodes, lambda node: self._ask("DELETE", node, wanted.name)
        )
        if known and not done and all(isinstance(each, NotFound) for each in failed.values()):
            failed = {}  # no node had pulled it
        return _changed(200, wanted.name, "", list(done), failed)

    async def _asked(self, request: HttpRequest, principal: Principal) -> _Wanted:
        """Return what a request is about. Raises InvalidRequest, HttpError 403, Unavailable."""
        check_all_projects(principal)
        query = request.query()
        if not query.get("name"):
            raise InvalidRequest("give the name of the image: ?name=swe:1", pointer="?name")
        known = await self._context.node_door.nodes()
        nodes = [each for each in query.get("nodes", "").split(",") if each] or known
        if strange := sorted(set(nodes) - set(known)):
            raise InvalidRequest(f"there is no node {', '.join(strange)}", pointer="?nodes")
        if not nodes:
            raise Unavailable("no node answers: start one, and import the image then")
        if (source := query.get("from")) is not None and source not in known:
            raise InvalidRequest(f"there is no node {source}", pointer="?from")
        return _Wanted(query["name"], nodes, not query.get("nodes"))

    async def _listed(self, node: str) -> list[ImageOnNode]:
        async with self._context.node_door.on_node(None, node, "GET", "/images") as answer:
            return _listing.decode(await answer.body())

    async def _ask(
        self,
        method: str,
        node: str,
        name: str,
        body: Body | None = None,
        *,
        path: str = "/images",
        more: Mapping[str, str] = _NOTHING,
    ) -> bytes:
        async with self._context.node_door.on_node(
            None, node, method, path, query={"name": name, **more}, body=body,
            idle_seconds=UNPACK_SECONDS,
        ) as answer:  # fmt: skip
            return await answer.body()

    async def _on_all(
        self, nodes: list[str], work: Callable[[str], Awaitable[T]]
    ) -> tuple[dict[str, T], dict[str, TangramError]]:
        """Return what ``work`` returned for each node, and the errors of the others."""
        done: dict[str, T] = {}
        failed: dict[str, TangramError] = {}

        async def on(node: str) -> None:
            try:
                done[node] = await work(node)
            except TangramError as error:
                failed[node] = error

        async with asyncio.TaskGroup() as group:
            for node in nodes:
                group.create_task(on(node))
        return {node: done[node] for node in nodes if node in done}, failed


class Copies:
    """One stream of bytes for several readers, read at the pace of the slowest."""

    def __init__(self, count: int) -> None:
        self._queues: list[asyncio.Queue[bytes | None]] = [
            asyncio.Queue(_PIECES) for _ in range(count)
        ]
        self._left = [False] * count
        #: Each returns the stream of one reader.
        self.readers = [partial(self._pieces, queue) for queue in self._queues]
        self._failure: BaseException | None = None

    async def read(self, source: AsyncIterator[bytes]) -> None:
        """Read the source to its end. Raises what it raises, and so do the readers."""
        try:
            async for piece in source:
                for number, queue in enumerate(self._queues):
                    if not self._left[number]:
                        await queue.put(piece)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            for number, queue in enumerate(self._queues):
                if not self._left[number]:
                    await queue.put(None)

    def leave(self, number: int) -> None:
        """Record that a reader reads no more."""
        self._left[number] = True
        queue = self._queues[number]
        while not queue.empty():  # the source may wait for room
            queue.get_nowait()

    async def _pieces(self, queue: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
        while (piece := await queue.get()) is not None:
            yield piece
        if self._failure is not None:
            raise Unavailable(f"the upload broke off: {self._failure}")


def _merge(merged: dict[tuple[str, str], ImageDescription], node: str, image: ImageOnNode) -> None:
    used_at = datetime.fromtimestamp(image.used_at, UTC).isoformat().replace("+00:00", "Z")
    known = merged.setdefault(
        (image.name, image.digest),
        ImageDescription(image.name, image.digest, image.bytes, image.files, 0, used_at, []),
    )
    known.environments += image.environments
    known.used_at = max(known.used_at, used_at)
    known.nodes.append(node)
    known.warm += image.warm


def _mark_stored(merged: dict[tuple[str, str], ImageDescription], image: StoredImage) -> None:
    unused = ImageDescription(image.name, image.digest, image.size_bytes, 0, 0, "", [])
    merged.setdefault((image.name, image.digest), unused).stored = True


def _texts(failed: dict[str, TangramError]) -> dict[str, str]:
    return {node: str(error) for node, error in failed.items()}


def _changed(
    status: int, name: str, digest: str, nodes: list[str], failed: dict[str, TangramError]
) -> HttpResponse:
    if failed and not nodes:
        raise next(iter(failed.values()))
    return HttpResponse(status, ImageChange(name, digest, nodes, _texts(failed)))
