"""A loop that must not lead, and until when.

Two reasons. *Refusal*: what is stored cannot be read or replayed by this version. Trying again and again would take the
leadership from a loop of another version for as long as each attempt lasts, and hide from whoever
watches that nobody leads. So the loop waits until what forbade it is another. *Pause*: the core
raised, and no message is to blame (`care`); another loop may try, and this one after a while.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import redis

from domain.errors import Unreadable
from domain.redis_keys import Keys

#: A stored snapshot begins with its place in the journal: so much of it tells it from another.
_HEAD_BYTES = 256


class Refusal:
    """Why a loop does not lead, and what has to change before it tries again."""

    def __init__(self, client: redis.Redis, keys: Keys, error: Unreadable) -> None:
        self.reason = str(error)
        self._client = client
        self._keys = keys
        self._entry_id = error.entry_id
        self._seen = self._look()

    def over(self) -> bool:
        """Say whether there is another snapshot or entry now than the one that forbade it."""
        return self._look() != self._seen

    def _look(self) -> tuple[Any, Any]:
        head = self._client.getrange(self._keys.snapshot, 0, _HEAD_BYTES - 1)
        if not self._entry_id:
            return head, None
        return head, self._client.xrange(self._keys.journal, self._entry_id, self._entry_id)


class Pause:
    """Why a loop does not lead for a while."""

    def __init__(self, reason: str, seconds: float) -> None:
        self.reason = reason
        self._until = monotonic() + seconds

    def over(self) -> bool:
        """Say whether it may try again."""
        return monotonic() >= self._until
