"""Library of a node's images, as web processes use it (`domain.ports.NodeImages`): uploads, uses, removal."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from domain.errors import InvalidRequest, StorageFull
from domain.ports.images import MAX_IMAGE_BYTES, ImageOnNode, WarmFacts, Warming
from managers.cpu.tree.images import ImageFacts, ImageStore, check_name
from managers.cpu.tree.records import all_records


class ImageLibrary:
    """The images of one driver."""

    def __init__(self, state: Path, store: ImageStore) -> None:
        self._state, self._store = state, store
        #: Prepared environments, once the driver is open; None: it keeps none.
        self.prepared: Warming | None = None
        #: Imports are one after another: each takes a core and the disk.
        self._importing = asyncio.Lock()

    async def all(self) -> list[ImageOnNode]:
        """Return all names, in order."""
        return await asyncio.to_thread(self._list)

    async def import_archive(self, name: str, archive: AsyncIterator[bytes]) -> ImageOnNode:
        """Store an image under a name. Raises InvalidRequest, StorageFull."""
        check_name(name)
        place = await asyncio.to_thread(self._store.receive)
        try:
            await _receive(archive, place)
            async with self._importing:
                facts = await asyncio.to_thread(self._store.import_archive, name, place)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull("the disk of the node is full") from error
            raise
        finally:
            place.unlink(missing_ok=True)
        return self._shown(name, facts, 0, 0.0)

    async def remove(self, name: str) -> None:
        """Delete a name. Raises NotFound, Conflict while it is used."""
        await asyncio.to_thread(lambda: self._store.remove(name, self._used()))

    def keep_warm(self, wanted: Mapping[str, int]) -> None:
        """Keep so many prepared environments from now on, image → number."""
        if self.prepared is not None:
            self.prepared.keep_warm(wanted)

    def warm_facts(self) -> dict[str, WarmFacts]:
        """Return what is kept prepared, by image."""
        return {} if self.prepared is None else self.prepared.warm_facts()

    def warm(self, image: str) -> WarmFacts:
        """Return what is kept prepared of one image."""
        return self.warm_facts().get(image, WarmFacts())

    def _list(self) -> list[ImageOnNode]:
        used = self._used()
        return [
            self._shown(each.name, self._store.facts(each.digest), used[each.digest], each.used_at)
            for each in self._store.names()
        ]

    def _shown(
        self, name: str, facts: ImageFacts, environments: int, used_at: float
    ) -> ImageOnNode:
        return ImageOnNode(
            name, facts.digest, facts.bytes, facts.files, environments, used_at, self.warm(name)
        )

    def _used(self) -> Counter[str]:
        records = all_records(self._state).values()
        return Counter(each.digest for each in records if each.digest)


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
