"""What nodes may: wanted by web processes, carried out by the keeper of node access. Stored in Redis as JSON, by node."""

from __future__ import annotations

import re
from typing import Final

import msgspec

#: SHA-256 of a password as Redis writes it.
PASSWORD_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class NodeAccess(msgspec.Struct, frozen=True, kw_only=True):
    """A node is admitted, with a password of its own that only the node has; or it is revoked."""

    #: Names this wish; a later one has another name.
    version: str
    #: SHA-256 of the password, in hexadecimal digits; empty: the node is revoked.
    digest: str = ""

    @property
    def is_admitted(self) -> bool:
        """Whether the node may take part."""
        return bool(self.digest)


class AccessDone(msgspec.Struct, frozen=True, kw_only=True):
    """The latest wish that was carried out for a node, or refused."""

    version: str
    #: Why it was refused, with the cure; empty: it was carried out.
    error: str = ""


read_access: Final = msgspec.json.Decoder(NodeAccess).decode
read_done: Final = msgspec.json.Decoder(AccessDone).decode
