"""Moves of environments as a driver makes them: the source packs what nothing uses, the target begins from that."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol, runtime_checkable

from domain.decisions import MoveEnvironment, ReceiveEnvironment


class EnvironmentMoving(Protocol):
    """The environments of one driver, as far as they are moved."""

    @property
    def works(self) -> bool:
        """Whether environments can be moved from and to this node, known once the driver is open."""

    async def pack(self, order: MoveEnvironment) -> None:
        """Store the files of an environment on disk, as the snapshot `domain.moves.packed_name`; a repeat does nothing.

        Raises Conflict with a code of `domain.moves` while anything lives in it, StorageFull, CapacityError, OSError.
        """

    async def receive(
        self, order: ReceiveEnvironment, archive: AsyncGenerator[bytes, None]
    ) -> None:
        """Begin the environment with what `Archiving.export_snapshot` of the source yields, on disk, and start it; a repeat does nothing.

        Raises InvalidRequest, Unavailable, StorageFull, OSError; a part of it may be left then.
        """


@runtime_checkable
class MovesEnvironments(Protocol):
    """A driver that moves environments; it is `Archiving`, too."""

    @property
    def moving(self) -> EnvironmentMoving:
        """Its moves."""
