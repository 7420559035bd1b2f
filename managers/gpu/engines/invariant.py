"""What a service answers to its warm-up, compared with what it answered first (I12).

Pure. The first answer of one service on one chunk is the record; it outlives evictions, restarts of
the server and crashes, but not another declaration. Only a checksum is kept.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

from managers.common.json_paths import part_of
from managers.gpu.engines import AnswersChanged, EngineFailed

ALL: Final = "."


class Invariant:
    """The part of an answer that must not change; an empty path compares nothing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._record = ""

    def check(self, content: bytes) -> None:
        """Compare an answer with the first one. Raises AnswersChanged, EngineFailed without such a part."""
        if not self._path:
            return
        found = self._checksum(content)
        self._record = self._record or found
        if found != self._record:
            raise AnswersChanged(
                f"its warm-up is answered otherwise than after its first restore: {self._path} has the"
                f" checksum {found[:12]}, not {self._record[:12]}"
            )

    def _checksum(self, content: bytes) -> str:
        try:
            part = json.loads(content)
        except (ValueError, RecursionError):
            raise EngineFailed("its warm-up is not answered with JSON") from None
        part = part if self._path == ALL else part_of(part, self._path)
        if part is None:
            raise EngineFailed(f"the answer to its warm-up has no {self._path}")
        return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()
