"""Starts of environments at once, and the loopback address that each environment has.

A start of a container reads its image and mounts it; many at once wait for one disk. So a gate lets so many environments of
one image start together, and the next one follows when one has answered.

An address 127.x.y.z belongs to one running environment of a node: servers of two environments that share the node's network
can listen on the same port. Every program finds it in ``TANGRAM_LOOPBACK``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import weakref
from collections.abc import AsyncIterator, Mapping
from typing import Final

from domain.errors import Unavailable

#: Variable with the address of an environment.
LOOPBACK: Final = "TANGRAM_LOOPBACK"
#: 127.64.0.0 to 127.127.255.255: neither the usual 127.0.0.1 nor the resolvers at 127.0.0.53 and 127.0.1.1.
_FIRST: Final = 0x7F400000
_ADDRESSES: Final = 1 << 22


class StartRules:
    """Gates and addresses of the environments of one driver."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        #: Image → its gate, while a start uses it.
        self._gates: weakref.WeakValueDictionary[str, asyncio.Semaphore] = (
            weakref.WeakValueDictionary()
        )
        #: Address → tag of the environment that has it.
        self._held: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def gate(self, image: str) -> AsyncIterator[None]:
        """Wait until another environment of this image may start."""
        gate = self._gates.get(image)
        if gate is None:
            gate = self._gates[image] = asyncio.Semaphore(self._at_once)
        async with gate:
            yield

    def address(self, tag: int) -> str:
        """Return the address of an environment by its tag: the same one until `release`. Raises Unavailable."""
        digest = hashlib.blake2b(str(tag).encode(), digest_size=8).digest()
        first = int.from_bytes(digest, "big")
        for step in range(_ADDRESSES):
            number = (first + step) % _ADDRESSES
            # The first and the last address of each 256 look like those of a network.
            if number & 0xFF in (0, 0xFF):
                continue
            found = dotted(_FIRST + number)
            if self._held.setdefault(found, tag) == tag:
                return found
        raise Unavailable("all loopback addresses of this node are in use")

    def hold(self, tag: int, variables: Mapping[str, str]) -> None:
        """Record the address of an environment that another worker has started."""
        if LOOPBACK in variables:
            self._held[variables[LOOPBACK]] = tag

    def release(self, tag: int) -> None:
        """Record that an environment has ended."""
        for address in [each for each, holder in self._held.items() if holder == tag]:
            del self._held[address]


def dotted(number: int) -> str:
    """Return an IPv4 address by its number."""
    return ".".join(str(number >> shift & 0xFF) for shift in (24, 16, 8, 0))
