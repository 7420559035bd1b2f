"""Keys of doors: what makes a repeated request of a door's client the request that was accepted before.

A facade gives a native submission a key and a digest of what its client asked. The key is stored by the script that appends
the submission, with the digest and the receipts, so a repetition gets the receipts of the first one, in whichever process.
It is kept as long as an ``Idempotency-Key`` of the API, of which none has such a name.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from domain.redis_keys import Keys
from scheduler.runtime.gateway.idempotency import reused

#: Key in the scope of an ASGI request: the `DoorKey` of a native submission.
DOOR_KEY: Final = "tangram.door_key"
#: Bytes of a digest.
DIGEST_BYTES: Final = 16


class DoorKey(NamedTuple):
    """The key of one request of a door."""

    door: str
    key: str
    #: Of what the client asked; `DIGEST_BYTES` long.
    digest: bytes = bytes(DIGEST_BYTES)

    def name(self, keys: Keys, project: str) -> str:
        """Return the name in Redis."""
        return keys.idempotency(project, f"\0{self.door}/{self.key}")

    def remember(self, receipts: bytes) -> bytes:
        """Return what is stored under the name."""
        return self.digest + receipts

    def receipts(self, stored: bytes) -> bytes:
        """Return the receipts of the first request. Raises Conflict when it asked for something else."""
        if stored[:DIGEST_BYTES] != self.digest:
            raise reused()
        return stored[DIGEST_BYTES:]
