"""Where a node worker, or a rollout worker, serves its door for web processes, as it stores it in Redis."""

from __future__ import annotations

from typing import Final

import msgspec

#: In front of the path of a socket; any other address is ``host:port``.
UNIX: Final = "unix:"
#: Header that each answer of a door has.
DOOR_HEADER: Final = "tangram-door"


class DoorAddress(msgspec.Struct, frozen=True):
    """Where one start of a node worker serves its door."""

    #: ``unix:/path`` or ``host:port``.
    address: str
    #: Bearer secret of this start.
    secret: str
    incarnation: int
    #: Name of the machine, for error messages.
    hostname: str = ""
    #: Opens snapshots alone, for other nodes; empty: there is none.
    snapshot_secret: str = ""

    @property
    def socket_path(self) -> str | None:
        """Path of the unix socket; None where the door has a port."""
        return self.address.removeprefix(UNIX) if self.address.startswith(UNIX) else None


def unreachable(node: str, address: DoorAddress, why: str) -> str:
    """Say that a node cannot be reached by its door."""
    where = f"node {node} ({address.hostname or address.address})"
    if address.socket_path is None:
        return f"{where} cannot be reached at {address.address}: {why}"
    return (
        f"{where} cannot be reached by its socket: {why}. A node on another machine needs"
        " TANGRAM_NODE_DOOR=0.0.0.0:PORT"
    )
