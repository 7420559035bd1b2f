"""Segments for the wire: JSON lists, or MessagePack with raw arrays for batches that JSON would make 30 times as slow.

The media type ``application/vnd.tangram.rollout+msgpack`` is a MessagePack document with the members of the JSON answer,
except that a segment is

    {"tokens": n, "prompt_ids": bin, "response_ids": bin, "loss_mask": bin, "logprobs": bin or nil, "weights_version": [[version, count], …]}

where ``tokens`` is the length of the response, ids are little-endian int32, log-probabilities little-endian float32, the mask
is one bit for each token, lowest bit first, and versions are runs, -1 for tokens that were not sampled. A client reads
it with any MessagePack library and ``numpy.frombuffer``, without a copy.

In JSON, ``loss_mask`` has 0 and 1, and ``weights_version`` one number for each token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollout.tokens.segments import TokenSegment

PACKED_MEDIA_TYPE: Final = "application/vnd.tangram.rollout+msgpack"
_INT: Final = np.dtype("<i4")
_FLOAT: Final = np.dtype("<f4")


def segment_document(segment: TokenSegment) -> dict[str, Any]:
    """Return a segment for JSON: lists of equal length, the prompt's aside."""
    return {
        "prompt_ids": segment.prompt_ids.tolist(),
        "response_ids": segment.response_ids.tolist(),
        "loss_mask": segment.loss_mask.tolist(),
        "logprobs": None if segment.logprobs is None else segment.logprobs.tolist(),
        "weights_version": segment.weights_versions.tolist(),
    }


def packed_segment(segment: TokenSegment) -> dict[str, Any]:
    """Return a segment for MessagePack; its arrays are views where their types allow it."""
    logprobs = segment.logprobs
    return {
        "tokens": len(segment.response_ids),
        "prompt_ids": _bytes(segment.prompt_ids, _INT),
        "response_ids": _bytes(segment.response_ids, _INT),
        "loss_mask": np.packbits(segment.loss_mask, bitorder="little").tobytes(),
        "logprobs": None if logprobs is None else _bytes(logprobs, _FLOAT),
        "weights_version": _runs(segment.weights_versions),
    }


def unpacked_segment(packed: Mapping[str, Any]) -> TokenSegment:
    """Return a segment from its packed form. Raises ValueError, KeyError or TypeError for another document."""
    count, logprobs = int(packed["tokens"]), packed["logprobs"]
    runs = np.asarray(packed["weights_version"], np.int32).reshape(-1, 2)
    bits = np.frombuffer(packed["loss_mask"], np.uint8)
    if not 0 <= count <= 8 * len(bits):
        raise ValueError(f"a mask of {8 * len(bits)} bits for {count} tokens")
    return TokenSegment(
        np.frombuffer(packed["prompt_ids"], _INT),
        np.frombuffer(packed["response_ids"], _INT),
        np.unpackbits(bits, count=count, bitorder="little"),
        None if logprobs is None else np.frombuffer(logprobs, _FLOAT),
        np.repeat(runs[:, 0], runs[:, 1]),
    )


def pack(documents: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rollouts as one MessagePack document: ``{"rollouts": […]}``, with `TokenSegment`s below ``segments``."""
    ready = [
        {**each, "segments": [packed_segment(segment) for segment in each["segments"]]}
        for each in documents
    ]
    return msgspec.msgpack.encode({"rollouts": ready})


def unpack(data: bytes) -> list[dict[str, Any]]:
    """Return what `pack` packed. Raises ValueError for another document."""
    try:
        found = msgspec.msgpack.decode(data)["rollouts"]
        return [
            {**each, "segments": [unpacked_segment(segment) for segment in each["segments"]]}
            for each in found
        ]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ValueError(f"no packed rollouts: {error!r}") from error


def _bytes(array: NDArray[Any], kind: np.dtype[Any]) -> bytes | memoryview:
    return np.ascontiguousarray(array, kind).data.cast("B")


def _runs(versions: NDArray[np.int32]) -> list[list[int]]:
    """Return ``[version, count]`` for each run of equal versions."""
    if not len(versions):
        return []
    begins = np.concatenate(([0], np.flatnonzero(np.diff(versions)) + 1))
    counts = np.diff(np.append(begins, len(versions)))
    return [[int(versions[at]), int(count)] for at, count in zip(begins, counts, strict=True)]
