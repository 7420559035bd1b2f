"""Caches of prefixes: the tokens of sequences that do not run now, and which sequence a prompt continues.

Rules
1. A sequence that runs owns its cache; it is in `PrefixCache` between two of its generations alone.
2. What the GPU has no room for goes to the host, least recently used first; what the host has no room for is gone, and its
   prompt is computed again. One entry for each key; a longer one replaces it.
3. Over HTTP sequences have no names. `PrefixBlocks` names a block of 16 tokens by its tokens and all before it; a prompt continues the
   sequence that knows the most of its blocks from the first one on. A block has one sequence, the latest: of two prompts at
   once with the same prefix one has the cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

BLOCK: Final = 16
#: Blocks that are remembered; the least recently used ones leave.
_MOST_BLOCKS: Final = 400_000


class CacheHit(NamedTuple):
    """Tokens of a prompt that need no computation."""

    gpu_tokens: int
    host_tokens: int


class PrefixCache:
    """Tokens by key, in two tiers."""

    def __init__(self, host_tokens: float) -> None:
        self._host_limit = host_tokens
        self._gpu: OrderedDict[str, int] = OrderedDict()
        self._host: OrderedDict[str, int] = OrderedDict()
        #: Tokens of each tier now.
        self.gpu_tokens = 0
        self.host_tokens = 0

    def __contains__(self, key: str) -> bool:
        return key in self._gpu or key in self._host

    def tokens(self, key: str) -> int:
        """Return the tokens of ``key``, on whichever tier; 0 where there are none."""
        return self._gpu.get(key) or self._host.get(key, 0)

    def put(self, key: str, tokens: int) -> None:
        """Keep a cache on the GPU; `fit` makes room afterwards."""
        self.forget(key)
        self._gpu[key] = tokens
        self.gpu_tokens += tokens

    def take(self, key: str, most: int) -> CacheHit:
        """Give the cache of ``key`` to a sequence that begins, at most ``most`` tokens of it."""
        found = CacheHit(min(self._gpu.get(key, 0), most), min(self._host.get(key, 0), most))
        self.forget(key)
        return found

    def forget(self, key: str) -> None:
        """Drop the cache of ``key``."""
        self.gpu_tokens -= self._gpu.pop(key, 0)
        self.host_tokens -= self._host.pop(key, 0)

    def fit(self, gpu_tokens: float) -> None:
        """Move what has not been used for longest to the host until the GPU has at most so many tokens."""
        while self.gpu_tokens > gpu_tokens and self._gpu:
            key, tokens = self._gpu.popitem(last=False)
            self.gpu_tokens -= tokens
            if tokens <= self._host_limit:
                self._host[key] = tokens
                self.host_tokens += tokens
        while self.host_tokens > self._host_limit:
            _, tokens = self._host.popitem(last=False)
            self.host_tokens -= tokens

    def clear(self) -> None:
        """Drop all caches: other weights, or an engine that slept."""
        self._gpu.clear()
        self._host.clear()
        self.gpu_tokens = self.host_tokens = 0


class Continued(NamedTuple):
    """The sequence that a prompt continues, and the tokens that they share; new ones share none."""

    sequence: str
    tokens: int


class PrefixBlocks:
    """Blocks of all sequences of one engine."""

    def __init__(self) -> None:
        self._owners: OrderedDict[int, str] = OrderedDict()
        self._entered = 0

    def continued(self, prompt: Sequence[int]) -> Continued:
        """Return what a prompt continues."""
        found, count = "", 0
        for number, block in enumerate(_blocks(prompt), start=1):
            owner = self._owners.get(block)
            if owner is None:
                break
            found, count = owner, number
            self._owners.move_to_end(block)
        if not found:
            self._entered += 1
            found = f"sequence-{self._entered}"
        return Continued(found, count * BLOCK)

    def add(self, sequence: str, ids: Sequence[int]) -> None:
        """Remember the tokens of a sequence that has run."""
        for block in _blocks(ids):
            self._owners[block] = sequence
            self._owners.move_to_end(block)
        while len(self._owners) > _MOST_BLOCKS:
            self._owners.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._owners.clear()


def _blocks(ids: Sequence[int]) -> Iterator[int]:
    name = 0
    for at in range(0, len(ids) - BLOCK + 1, BLOCK):
        name = hash((name, *ids[at : at + BLOCK]))
        yield name
