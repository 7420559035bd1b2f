"""A cache of keys and values as bytes, and the checks before one is accepted.

A line of JSON, then the token ids as 32-bit integers, then each layer's keys and values; little-endian, contiguous. The line has:

| member | |
|---|---|
| ``format`` | ``tangram-kv/1`` |
| ``model``, ``weights_version``, ``weights`` | name, version, and checksum of the weights that computed it |
| ``tokens``, ``ids_sha256`` | the number of tokens, and a digest of their ids |
| ``layers`` | for each: the type of its numbers, and [heads, width] of keys and of values |
| ``crc32`` | of all that follows the line |

Rules
1. A cache is accepted whole, by a worker of the same model with the same weights, or not at all: `CacheRefused` says what differs.
2. Nothing is allocated before the line is checked: what it announces must fit the model, the length of the body and the limit.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from managers.gpu.torch_worker.kv_caches import KvCache

FORMAT = "tangram-kv/1"
CONTENT_TYPE = "application/vnd.tangram.kv-cache"
_LONGEST_LINE = 256 * 1024
_ID_BYTES = 4
#: Read and written at once.
_PIECE_BYTES = 2**20

#: Returns up to so many bytes; fewer at the end.
Read = Callable[[int], bytes]


class CacheRefused(Exception):
    """The cache is not accepted; ``kind`` is that of `managers.gpu.torch_worker.worker.STATUS`."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class CacheOrigin(NamedTuple):
    """What computed a cache."""

    model: str
    weights_version: int
    #: Checksum of the weights.
    weights: str


class LayerForm(NamedTuple):
    """What one layer's keys and values look like."""

    dtype: str
    key: Sequence[int]
    value: Sequence[int]


def forms_of(layers: Sequence[tuple[Any, Any]]) -> list[LayerForm]:
    """Return the forms of layers: [heads, width] of each."""
    return [
        LayerForm(
            str(key.dtype).replace("torch.", ""),
            [key.shape[1], key.shape[3]],
            [value.shape[1], value.shape[3]],
        )
        for key, value in layers
    ]


def digest_of(ids: Sequence[int]) -> str:
    """Return the digest of token ids."""
    return hashlib.sha256(_packed(ids)).hexdigest()


class ExportedCache:
    """A cache on the way out; its tensors are in host memory."""

    def __init__(self, cache: KvCache, origin: CacheOrigin) -> None:
        self._ids = _packed(cache.ids)
        self._tensors = [each.cpu().contiguous() for pair in cache.layers for each in pair]
        crc = 0
        for piece in self._contents():
            crc = zlib.crc32(piece, crc)
        line = {
            "format": FORMAT,
            **origin._asdict(),
            "tokens": len(cache.ids),
            "ids_sha256": digest_of(cache.ids),
            "layers": forms_of(cache.layers),
            "crc32": crc,
        }
        self._line = json.dumps(line).encode() + b"\n"
        self.nbytes = len(self._line) + len(self._ids) + sum(map(_nbytes, self._tensors))

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes."""
        yield self._line
        yield from self._contents()

    def _contents(self) -> Iterator[bytes]:
        yield self._ids
        for tensor in self._tensors:
            begin, nbytes = tensor.data_ptr(), _nbytes(tensor)
            for at in range(0, nbytes, _PIECE_BYTES):
                yield ctypes.string_at(begin + at, min(_PIECE_BYTES, nbytes - at))


class CacheExpectation(NamedTuple):
    """What a worker accepts."""

    origin: CacheOrigin
    forms: Sequence[LayerForm]
    #: Most tokens; None: no limit.
    context: int | None
    limit_bytes: int


def receive(read: Read, length: int, expected: CacheExpectation) -> KvCache:
    """Return the cache that a body of ``length`` bytes holds, in host memory. Raises CacheRefused."""
    line, rest = _line(read, length)
    tokens, nbytes = _checked(line, expected)
    if rest != tokens * _ID_BYTES + nbytes:
        announced = tokens * _ID_BYTES + nbytes
        raise CacheRefused(
            "bad_request", f"a body of {rest} bytes, where {announced} are announced"
        )
    source = _CacheReader(read)
    ids = source.ids(tokens)
    if digest_of(ids) != line.get("ids_sha256"):
        raise CacheRefused("bad_request", "ids_sha256: the token ids have another digest")
    layers = [
        (source.tensor(form.dtype, form.key, tokens), source.tensor(form.dtype, form.value, tokens))
        for form in expected.forms
    ]
    if source.crc != line.get("crc32"):
        raise CacheRefused("bad_request", "crc32: the bytes were changed on their way")
    return KvCache(ids, layers, nbytes)


class _CacheReader:
    """The bytes after the line."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.crc = 0

    def ids(self, count: int) -> list[int]:
        """Return the token ids."""
        found = array("i")
        found.frombytes(self._bytes(count * _ID_BYTES))
        if sys.byteorder != "little":
            found.byteswap()
        return found.tolist()

    def tensor(self, dtype: str, form: Sequence[int], tokens: int) -> Any:
        """Return the keys or values of one layer."""
        kind = getattr(torch, dtype)
        nbytes = form[0] * tokens * form[1] * _size(dtype)
        flat = torch.frombuffer(self._bytes(nbytes), dtype=kind)
        return flat.view(1, form[0], tokens, form[1])

    def _bytes(self, count: int) -> bytearray:
        data, at = bytearray(count), 0
        while at < count:
            piece = self._read(min(_PIECE_BYTES, count - at))
            if not piece:
                raise CacheRefused("bad_request", "the transfer was interrupted")
            data[at : at + len(piece)] = piece
            self.crc = zlib.crc32(piece, self.crc)
            at += len(piece)
        return data


def _line(read: Read, length: int) -> tuple[dict[str, Any], int]:
    """Return the line, and the bytes that follow it. Read byte by byte from a buffered source."""
    kept = bytearray()
    while not kept.endswith(b"\n"):
        if len(kept) >= min(length, _LONGEST_LINE):
            raise CacheRefused("bad_request", f"no line of at most {_LONGEST_LINE} bytes")
        piece = read(1)
        if not piece:
            raise CacheRefused("bad_request", "the transfer was interrupted")
        kept += piece
    try:
        line = json.loads(kept)
    except (ValueError, RecursionError) as error:
        raise CacheRefused("bad_request", f"not a cache: {error}") from None
    if not isinstance(line, dict) or line.get("format") != FORMAT:
        raise CacheRefused("bad_request", f"format: a cache has {FORMAT}")
    return line, length - len(kept)


def _checked(line: dict[str, Any], expected: CacheExpectation) -> tuple[int, int]:
    """Return the tokens, and the bytes of keys and values. Raises CacheRefused."""
    for name, mine in expected.origin._asdict().items():
        if line.get(name) != mine:
            raise CacheRefused(
                "cache_mismatch",
                f"{name}: the cache is of {line.get(name)!r}, this worker has {mine!r}",
            )
    mine = [list(each) for each in expected.forms]
    if line.get("layers") != mine:
        raise CacheRefused("cache_mismatch", f"layers: this worker's are {mine}")
    tokens = line.get("tokens")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise CacheRefused("bad_request", "tokens: a cache has at least one")
    if expected.context is not None and tokens > expected.context:
        raise CacheRefused(
            "cache_mismatch", f"tokens: {tokens}, the context has {expected.context}"
        )
    nbytes = tokens * sum(_token_bytes(form) for form in expected.forms)
    if nbytes > expected.limit_bytes:
        raise CacheRefused(
            "cache_too_large",
            f"{nbytes} bytes; the caches of this worker have {expected.limit_bytes}",
        )
    return tokens, nbytes


def _token_bytes(form: LayerForm) -> int:
    return _size(form.dtype) * (form.key[0] * form.key[1] + form.value[0] * form.value[1])


def _size(dtype: str) -> int:
    return int(torch.empty(0, dtype=getattr(torch, dtype)).element_size())


def _nbytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _packed(ids: Sequence[int]) -> bytes:
    found = array("i", ids)
    if sys.byteorder != "little":
        found.byteswap()
    return found.tobytes()
