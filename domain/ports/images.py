"""Images of a node: root file systems that environments without a container engine begin from."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Final, Protocol, runtime_checkable

import msgspec

#: Largest archive of an image.
MAX_IMAGE_BYTES: Final = 64 * 2**30


class WarmFacts(msgspec.Struct, frozen=True):
    """Prepared environments of an image."""

    #: How many a node is to keep, and keeps now.
    wanted: int = 0
    kept: int = 0
    #: How many trajectories took, and how many were prepared, since the node worker started.
    taken: int = 0
    made: int = 0
    #: Why the last one could not be prepared.
    problem: str = ""
    #: Memory that those that wait use.
    memory_bytes: int = 0

    def __add__(self, other: WarmFacts) -> WarmFacts:
        """Return the sum over two nodes."""
        return WarmFacts(
            self.wanted + other.wanted, self.kept + other.kept,
            self.taken + other.taken, self.made + other.made,
            self.problem or other.problem, self.memory_bytes + other.memory_bytes,
        )  # fmt: skip


class WarmOrder(msgspec.Struct, frozen=True):
    """Prepared environments that a node is to keep: image → number; ``""`` is none."""

    images: dict[str, int]


class ImageOnNode(msgspec.Struct, frozen=True):
    """An image and its name on one node."""

    name: str
    #: Of its files and variables: the same files have the same digest everywhere.
    digest: str
    bytes: int
    files: int
    #: Environments that are upon it.
    environments: int
    #: When an environment began with it last, in seconds since 1970.
    used_at: float
    warm: WarmFacts = WarmFacts()


class Warming(Protocol):
    """Prepared environments of one node."""

    def keep_warm(self, wanted: Mapping[str, int]) -> None:
        """Keep so many from now on, image → number. Does not block."""

    def warm_facts(self) -> dict[str, WarmFacts]:
        """Return what is kept, by image."""


class NodeImages(Protocol):
    """The images of one node."""

    async def all(self) -> list[ImageOnNode]:
        """Return all names, in order."""

    async def import_archive(self, name: str, archive: AsyncIterator[bytes]) -> ImageOnNode:
        """Store an image under a name: a tar of a root file system, of ``docker save`` or an OCI layout.

        Raises InvalidRequest for a bad archive or name, StorageFull.
        """

    def export(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield the archive of an image, the same each time. Raises NotFound, InvalidRequest."""

    async def remove(self, name: str) -> None:
        """Delete a name, and its image with the last one. Raises NotFound, Conflict while it is used."""


@runtime_checkable
class ImageKeeping(Protocol):
    """A driver that stores images."""

    images: NodeImages


@runtime_checkable
class KeepsPrepared(Protocol):
    """A driver that keeps prepared environments."""

    prepared: Warming
