"""Bytes of views of arrays, in C order and in parts of bounded size, without a copy where memory allows it.

Rules
1. A contiguous run of at least `RUN_BYTES` is read and written in place. Shorter runs are packed into a scratch of at most `SPAN_BYTES`.
2. Bytes are never interpreted: NaN, infinities and padding arrive as they were.
3. Both sides cut by bytes, not by runs: a view may have one shape of memory at the sender and another one at the receiver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

#: No part of a view is longer, and no scratch larger.
SPAN_BYTES = 1 << 20
#: Shorter runs of memory are packed: a system call takes longer than their copy.
RUN_BYTES = 4096

Array = NDArray[np.generic]


def spans(view: Array, limit: int = SPAN_BYTES) -> Iterator[Array]:
    """Yield the view in blocks of at most ``limit`` bytes, in C order: flat ``uint8`` without a copy, or a block that has to be packed."""
    if view.nbytes == 0:
        return
    if view.flags.c_contiguous:
        flat = view.reshape(-1).view(np.uint8)
        for start in range(0, flat.size, limit):
            yield flat[start : start + limit]
        return
    if view.ndim > 1 and view.shape[0] == 1:
        yield from spans(view[0], limit)
        return
    row = view.nbytes // view.shape[0]
    in_place = row >= RUN_BYTES and view[:1].flags.c_contiguous
    if view.nbytes <= limit and not in_place:
        yield view
        return
    rows = 1 if in_place else max(1, limit // row)
    for start in range(0, view.shape[0], rows):
        yield from spans(view[start : start + rows], limit)


def is_packed(span: Array) -> bool:
    """Say whether a span is a view whose bytes are not one run."""
    return span.ndim != 1 or span.dtype != np.uint8 or not span.flags.c_contiguous


def readable(span: Array) -> memoryview:
    """Return the bytes of a span: of the array itself, or of a packed copy."""
    if is_packed(span):
        span = np.ascontiguousarray(span).reshape(-1).view(np.uint8)
    return memoryview(span)  # type: ignore[arg-type, unused-ignore]


class ScatterTarget:
    """Views that are filled from a stream of bytes, in order, as many bytes at a time as the stream has.

    A packed block is copied to its place by `commit`, when its last byte has arrived and was checked.
    """

    def __init__(self, views: Iterable[Array]) -> None:
        self._spans = (span for view in views for span in spans(view))
        self._block: Array | None = None
        self._scratch: Array | None = None
        self._left: Array | None = None
        self._full: list[tuple[Array, Array]] = []

    def take(self, count: int) -> list[memoryview]:
        """Return writable buffers for the next ``count`` bytes; ValueError where the views have fewer."""
        found: list[memoryview] = []
        while count:
            if self._left is None or self._left.size == 0:
                self._next()
            assert self._left is not None
            part = self._left[:count]
            self._left = self._left[count:]
            found.append(memoryview(part))  # type: ignore[arg-type, unused-ignore]
            count -= part.size
            if self._left.size == 0 and self._scratch is not None:
                assert self._block is not None
                self._full.append((self._block, self._scratch))
                self._scratch = None
        return found

    def commit(self) -> None:
        """Copy complete blocks to their places."""
        for block, scratch in self._full:
            block[...] = scratch.view(block.dtype).reshape(block.shape)
        self._full.clear()

    def _next(self) -> None:
        span = next(self._spans, None)
        if span is None:
            raise ValueError("more bytes arrived than were planned")
        if is_packed(span):
            self._block, self._scratch = span, np.empty(span.nbytes, np.uint8)
            self._left = self._scratch
        else:
            self._scratch, self._left = None, span


def copy_bytes(source: Array, target: Array) -> None:
    """Copy a view into another one of the same dtype and number of elements, byte for byte."""
    if source.shape != target.shape:
        source = np.ascontiguousarray(source).reshape(target.shape)
    target[...] = source
