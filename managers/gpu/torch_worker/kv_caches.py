"""Caches of keys and values by trajectory: what a worker has computed, so that the next prompt is prefilled from there.

A cache belongs to the token ids that it was computed from. The next request of its trajectory uses as much of it as its prompt has
the same ids; at least the last token of a prompt is computed, for its logits.

Rules
1. A kept cache never changes: requests read it, and keep a longer one when they end. So requests of one trajectory that run together
   each use what was kept before; the last to end decides what is kept.
2. All caches together have at most the limit; the one unused for longest is dropped first. A cache above the limit is not kept.
3. Caches belong to one version of the weights: the worker clears them when the weights change, and when they leave the device.
4. No trajectory, no cache.

Thread-safe. Imports no torch: tensors are opaque.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

#: Characters of a trajectory's name.
LONGEST_NAME = 512


class KvCache(NamedTuple):
    """Keys and values of a sequence of tokens."""

    ids: Sequence[int]
    #: One pair of tensors for each layer: [1, heads, tokens, width].
    layers: Sequence[tuple[Any, Any]]
    nbytes: int

    def first(self, count: int) -> Sequence[tuple[Any, Any]]:
        """Return the layers of the first ``count`` tokens."""
        return [(key[:, :, :count], value[:, :, :count]) for key, value in self.layers]


class KvCaches:
    """The caches of one worker."""

    def __init__(self, limit_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self._kept: OrderedDict[str, KvCache] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of all caches."""
        return self._nbytes

    def reusable(self, trajectory: str, prompt: Sequence[int]) -> tuple[KvCache | None, int]:
        """Return a trajectory's cache and how many tokens of it ``prompt`` can use; the cache was used now."""
        with self._lock:
            cache = self._kept.get(trajectory)
            if cache is None:
                return None, 0
            self._kept.move_to_end(trajectory)
        count = min(common_length(cache.ids, prompt), len(prompt) - 1)
        return (cache, count) if count > 0 else (None, 0)

    def get(self, trajectory: str) -> KvCache | None:
        """Return a trajectory's cache, without a use of it."""
        with self._lock:
            return self._kept.get(trajectory)

    def keep(self, trajectory: str, cache: KvCache) -> bool:
        """Replace a trajectory's cache; return whether the new one is kept."""
        if not trajectory:
            return False
        with self._lock:
            self._drop(trajectory)
            if cache.nbytes > self.limit_bytes:
                return False
            self._kept[trajectory] = cache
            self._nbytes += cache.nbytes
            while self._nbytes > self.limit_bytes:
                self._drop(next(iter(self._kept)))
            return True

    def drop(self, trajectory: str, only: KvCache | None = None) -> bool:
        """Drop a trajectory's cache, where it is ``only`` if that is given; return whether it was dropped."""
        with self._lock:
            cache = self._kept.get(trajectory)
            if cache is None or (only is not None and cache is not only):
                return False
            self._drop(trajectory)
            return True

    def clear(self) -> None:
        """Drop all."""
        with self._lock:
            self._kept.clear()
            self._nbytes = 0

    def listed(self) -> list[dict[str, Any]]:
        """Return name, tokens and bytes of each, the one unused for longest first."""
        with self._lock:
            kept = list(self._kept.items())
        return [
            {"trajectory": name, "tokens": len(cache.ids), "bytes": cache.nbytes}
            for name, cache in kept
        ]

    def _drop(self, trajectory: str) -> None:
        cache = self._kept.pop(trajectory, None)
        self._nbytes -= 0 if cache is None else cache.nbytes


def common_length(one: Sequence[int], two: Sequence[int]) -> int:
    """Return how many ids both begin with."""
    longest = min(len(one), len(two))
    if list(one[:longest]) == list(two[:longest]):  # as a rule: one conversation goes on
        return longest
    return next(at for at in range(longest) if one[at] != two[at])
