"""Endpoints of stored transfers: large contents that go between a client and a node by way of the object store.

*Up*: the client learns a signed URL by the digest of its content, stores it there, and names the digest in the request that uses it:
a file or a tree (`endpoints.files`), an image (`endpoints.images`). *Down*: the node stores a file, a tree, or the result of an action, and
the client reads it at a signed URL. This process passes digests and sizes alone. What it refuses, the client sends or reads as without a store.
"""

from __future__ import annotations

from typing import Final

import msgspec

from contract.receipts import SignedObject
from contract.requests import UploadRequest
from domain.bodies import stored_in
from domain.errors import Conflict
from domain.ports.files import MAX_UPLOAD_BYTES
from domain.principals import Principal
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.endpoints.files import CAREFUL, TREE_SECONDS, path_of, to_node
from scheduler.runtime.gateway.http import HttpError, HttpRequest, HttpResponse
from scheduler.runtime.gateway.request_parsing import checked_name, decode, number
from scheduler.runtime.gateway.route_table import Handler
from scheduler.runtime.object_store.contents import small
from scheduler.runtime.object_store.objects import (
    ALL_PROJECTS,
    FILES,
    IMAGES,
    ContentDigest,
    ObjectStore,
    object_key,
)

#: A signed URL is valid for so long.
SIGNED_SECONDS: Final = 900.0

_uploads = msgspec.json.Decoder(UploadRequest)
_contents = msgspec.json.Decoder(ContentDigest)


class StoredTransfers:
    """Handlers of stored transfers."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def upload_url(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """POST /uploads: where the client can store a content."""
        wanted = decode(_uploads, await request.body())
        if wanted.kind == "image":
            check_all_projects(principal)
            area, project = IMAGES, ALL_PROJECTS
        else:
            if wanted.size_bytes > MAX_UPLOAD_BYTES:
                raise HttpError(
                    413, "too_large", f"a file or tree has at most {MAX_UPLOAD_BYTES} bytes"
                )
            area, project = FILES, await self._context.project(request, principal)
        key = object_key(area, project, wanted.sha256)
        url = await self._store().upload_url(key, SIGNED_SECONDS)
        return _signed(url, ContentDigest(wanted.sha256, wanted.size_bytes))

    async def file_url(self, request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
        """POST /trajectories/{id}/downloads: the node stores the file, or the archive of the tree."""
        await request.body()
        query = {"path": path_of(request), "least_bytes": str(_least(request))}
        if request.query().get("tree") == "true":
            query["tree"] = "true"
        checked_name(name, "trajectory")
        project, store = await self._context.project(request, principal), await self._reached()
        async with to_node(
            self._context, project, name, "POST", "/objects", query=query, idle_seconds=TREE_SECONDS
        ) as answer:
            body = await answer.body()
        if answer.status == 200:  # a small archive
            return HttpResponse(200, raw=body, content_type=b"application/x-tar", headers=CAREFUL)
        return await _download(store, project, _contents.decode(body))

    async def result_url(
        self, request: HttpRequest, principal: Principal, action_id: str
    ) -> HttpResponse:
        """POST /actions/{id}/downloads: its node stores its result, which has a body of its own."""
        await request.body()
        least, store = _least(request), await self._reached()
        view = await self._context.find(request, principal, action_id, largest_bytes=0)
        stored = stored_in(view.result)
        if stored is None or stored.bytes < least:
            raise small(f"the result of {action_id}", 0 if stored is None else stored.bytes)
        if view.placement is None or not view.placement.node:
            raise Conflict(f"action {action_id} ran on no node", code="no_object")
        project = view.project or ""
        query = {"project": project, "sha256": stored.sha256, "size_bytes": str(stored.bytes)}
        async with self._context.node_door.on_node(
            project, view.placement.node, "POST", "/results", query=query, idle_seconds=TREE_SECONDS
        ) as answer:
            found = _contents.decode(await answer.body())
        return await _download(store, project, found)

    def _store(self) -> ObjectStore:
        if self._context.objects is None:
            raise no_store()
        return self._context.objects

    async def _reached(self) -> ObjectStore:
        """Return the store. Raises Conflict where clients do not reach it, before a node does anything."""
        store = self._store()
        if await store.download_url(object_key(FILES, ALL_PROJECTS, "0" * 64), 1.0) is None:
            raise no_store()
        return store


def transfer_handlers(context: GatewayContext) -> dict[str, Handler]:
    """Return the handlers of stored transfers by their operations."""
    transfers = StoredTransfers(context)
    return {
        "files_upload_url": transfers.upload_url,
        "files_download_url": transfers.file_url,
        "actions_download_url": transfers.result_url,
    }


def check_all_projects(principal: Principal) -> None:
    """Raise HttpError 403 for a token of one project: images are shared by all."""
    if principal.project is not None:
        raise HttpError(
            403, "all_projects", "images are shared by all projects: use a token of all projects"
        )


def _least(request: HttpRequest) -> int:
    return int(number(request.query().get("least_bytes", "0"), "least_bytes"))


def no_store() -> Conflict:
    """Return the refusal where clients reach no store."""
    return Conflict(
        "this Tangram has no object store that clients reach: send contents through the web process,"
        " or set TANGRAM_OBJECT_STORE=s3://…",
        code="no_object_store",
    )


async def _download(store: ObjectStore, project: str, content: ContentDigest) -> HttpResponse:
    url = await store.download_url(object_key(FILES, project, content.sha256), SIGNED_SECONDS)
    return _signed(url, content)


def _signed(url: str | None, content: ContentDigest) -> HttpResponse:
    if url is None:
        raise no_store()
    signed = SignedObject(url, content.sha256, content.size_bytes, SIGNED_SECONDS)
    return HttpResponse(201, signed)
