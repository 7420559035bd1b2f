"""Library of a node's images, as web processes use it (`domain.ports.NodeImages`): uploads, uses, removal."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path

from domain.ports.images import ImageOnNode, WarmFacts, Warming
from managers.cpu.tree.image_arrivals import ImageArrivals
from managers.cpu.tree.images import ImageFacts, ImageStore
from managers.cpu.tree.records import all_records
from managers.cpu.tree.tar_streams import tar_stream
from managers.cpu.tree.unpack import VARIABLES


class ImageLibrary:
    """The images of one driver."""

    def __init__(
        self, state: Path, store: ImageStore, arrivals: ImageArrivals | None = None
    ) -> None:
        self._state, self._store = state, store
        self._arrivals = arrivals or ImageArrivals(store)
        #: Prepared environments, once the driver is open; None: it keeps none.
        self.prepared: Warming | None = None

    async def all(self) -> list[ImageOnNode]:
        """Return all names, in order."""
        return await asyncio.to_thread(self._list)

    async def import_archive(self, name: str, archive: AsyncIterator[bytes]) -> ImageOnNode:
        """Store an image under a name. Raises InvalidRequest, StorageFull."""
        return self._shown(name, await self._arrivals.import_archive(name, archive), 0, 0.0)

    async def export(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield the archive of an image: a tar of its files, with its variables. Raises NotFound, InvalidRequest."""
        facts, tree = await asyncio.to_thread(self._store.tree_of, name)
        variables = base64.b64encode(json.dumps(facts.env).encode()).decode()
        further = f"{VARIABLES}={variables}"
        async with aclosing(
            tar_stream(tree, ["."], further=further, what=f"image {name!r}")
        ) as pieces:
            async for piece in pieces:
                yield piece

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
