"""Images over the node door: ``GET``, ``PUT`` and ``DELETE /images``, the name in the query.

With ``stored`` the archive is an object; ``POST /images/objects`` makes an image of this node one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from domain.errors import InvalidRequest
from domain.ports import Driver
from domain.ports.images import MAX_IMAGE_BYTES, ImageKeeping, NodeImages
from scheduler.runtime.node.door.routes import DoorRequest, DoorResponse, DoorRoutes
from scheduler.runtime.object_store.contents import existing, keep_made, stored_content
from scheduler.runtime.object_store.objects import ALL_PROJECTS, IMAGES, ObjectStore, object_key


def add_routes(routes: DoorRoutes, drivers: Sequence[Driver]) -> None:
    """Add the routes; a node whose driver stores no images has an empty list."""
    keeping = next((driver for driver in drivers if isinstance(driver, ImageKeeping)), None)
    handlers = ImageHandlers(None if keeping is None else keeping.images, routes.objects)
    routes.add("GET", "/images", handlers.show)
    routes.add("PUT", "/images", handlers.store)
    routes.add("DELETE", "/images", handlers.remove)
    routes.add("POST", "/images/objects", handlers.keep)


class ImageHandlers:
    """Handlers of images."""

    def __init__(self, images: NodeImages | None, objects: ObjectStore | None = None) -> None:
        self._images, self._objects = images, objects

    async def show(self, request: DoorRequest) -> DoorResponse:
        """Return the images of this node."""
        found = [] if self._images is None else await self._images.all()
        return DoorResponse(200, msgspec.json.encode(found))

    async def store(self, request: DoorRequest) -> DoorResponse:
        """Store an image. Raises InvalidRequest, StorageFull."""
        images, name = self._known(request)
        archive, sha256 = request.chunks(), request.query.get("stored")
        if sha256 is not None:
            key = object_key(IMAGES, ALL_PROJECTS, sha256)
            content = await stored_content(existing(self._objects), key, MAX_IMAGE_BYTES)
            archive = content.pieces
        stored = await images.import_archive(name, archive)
        return DoorResponse(201, msgspec.json.encode(stored))

    async def keep(self, request: DoorRequest) -> DoorResponse:
        """Put the archive of an image into the store. Raises NotFound, Conflict without a store."""
        images, name = self._known(request)
        make = partial(images.export, name)
        kept = await keep_made(existing(self._objects), IMAGES, ALL_PROJECTS, make)
        return DoorResponse(201, msgspec.json.encode(kept))

    async def remove(self, request: DoorRequest) -> DoorResponse:
        """Delete a name. Raises NotFound, Conflict."""
        images, name = self._known(request)
        await images.remove(name)
        return DoorResponse(200, b"{}")

    def _known(self, request: DoorRequest) -> tuple[NodeImages, str]:
        if self._images is None:
            raise InvalidRequest("this node stores no images; with containers, its engine does")
        return self._images, request.query.get("name", "")
