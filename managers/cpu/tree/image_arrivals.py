"""Arrivals of images at a node: archives that are sent to it, and those that it gets from the object store when an environment names them.

An image is pulled once, however many environments name it at one moment: they wait for one pull, which goes on when some of them, or all,
give up. What fails is raised for all that wait; the next environment pulls again. Imports are one after another: each takes a core and the disk.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

from domain.errors import InvalidRequest, NotFound, StorageFull, TangramError
from domain.ports.drivers import FetchImage
from domain.ports.images import MAX_IMAGE_BYTES
from managers.cpu.tree.images import ImageFacts, ImageMissing, ImageStore, check_name

_log = logging.getLogger(__name__)


class ImageArrivals:
    """What arrives in the images of one driver."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        #: Gets the archive of an image that all nodes may have; None: there are none.
        self.fetch: FetchImage | None = None
        self._importing = asyncio.Lock()
        self._pulling: dict[str, asyncio.Task[None]] = {}

    async def import_archive(self, name: str, archive: AsyncIterator[bytes]) -> ImageFacts:
        """Store an image under a name. Raises InvalidRequest, StorageFull, and what the archive raises."""
        check_name(name)
        place = await asyncio.to_thread(self._store.receive)
        try:
            await _receive(archive, place)
            async with self._importing:
                return await asyncio.to_thread(self._store.import_archive, name, place)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull("the disk of the node is full") from error
            raise
        finally:
            place.unlink(missing_ok=True)

    async def ensure(self, name: str) -> None:
        """Have an image on this node, where it can be pulled. Raises ImageMissing with the reason."""
        if self.fetch is None or self._store.knows(name):
            return
        pull = self._pulling.get(name)
        if pull is None:
            pull = self._pulling[name] = asyncio.create_task(self._pull(name, self.fetch))
            pull.add_done_callback(lambda _: self._pulling.pop(name, None))
            # Those that wait for it may be gone.
            pull.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(pull)

    async def _pull(self, name: str, fetch: FetchImage) -> None:
        try:
            async with aclosing(fetch(name)) as archive:
                facts = await self.import_archive(name, archive)
        except NotFound:
            return  # the environment's own error says how to import it
        except (TangramError, OSError) as error:
            _log.warning("image %r could not be pulled: %s", name, error)
            raise ImageMissing(f"image {name!r} could not be pulled: {error}") from error
        _log.info("image %r was pulled: %d bytes in %d files", name, facts.bytes, facts.files)

    async def close(self) -> None:
        """Break off what is being pulled."""
        pulls = list(self._pulling.values())
        for pull in pulls:
            pull.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)


async def _receive(archive: AsyncIterator[bytes], place: Path) -> None:
    received = 0
    file = await asyncio.to_thread(open, place, "xb")
    try:
        async for piece in archive:
            received += len(piece)
            if received > MAX_IMAGE_BYTES:
                raise InvalidRequest(f"the archive is larger than {MAX_IMAGE_BYTES} bytes")
            await asyncio.to_thread(file.write, piece)
    finally:
        await asyncio.to_thread(file.close)
