"""packed_segments: 256 rollouts of 32K tokens each, as JSON and packed, in one process.

A trainer fetches a batch of whole trajectories: prompts, responses, masks, log-probabilities, weights versions. Measured
are the bytes and the CPU time of both ends, JSON being read as trainers do. Target: at most half of the bytes, and a
tenth of the time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from benchmarks.record import store
from rollout.tokens.packed import pack, segment_document, unpack
from rollout.tokens.sampled import SampledTokens
from rollout.tokens.segments import SampledTurn, TokenSegment, segments_of

VOCABULARY = 151_936
TURN_TOKENS = 400
CONTEXT_TOKENS = 624


def rollout(tokens: int, seed: int) -> TokenSegment:
    """Return a segment of ``tokens`` tokens: turns of a model and results of tools, as of a software task."""
    chance = np.random.default_rng(seed)
    turns: list[SampledTurn] = []
    for number in range(max(1, tokens // (TURN_TOKENS + CONTEXT_TOKENS))):
        ids = chance.integers(0, VOCABULARY, TURN_TOKENS, dtype=np.int32)
        logprobs = -chance.exponential(0.3, TURN_TOKENS).astype(np.float32)
        turns.append(
            SampledTurn(
                context=chance.integers(0, VOCABULARY, CONTEXT_TOKENS, dtype=np.int32),
                tokens=SampledTokens(ids, logprobs),
                weights_version=3 + number // 20,
                follows=number - 1 if number else None,
            )
        )
    return segments_of(turns)[0]


def timed(what: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call returns, and its CPU seconds."""
    began = time.process_time()
    found = what()
    return found, time.process_time() - began


def as_json(segments: Sequence[TokenSegment]) -> bytes:
    """Return the batch as the JSON answer has it."""
    rollouts = [{"segments": [segment_document(each)]} for each in segments]
    return msgspec.json.encode({"rollouts": rollouts})


def measure(rollouts: int, tokens: int) -> dict[str, float]:
    """Return bytes and CPU seconds of one batch."""
    segments = [rollout(tokens, seed) for seed in range(rollouts)]
    text, json_encode = timed(lambda: as_json(segments))
    _, json_decode = timed(lambda: json.loads(text))
    packed, pack_seconds = timed(lambda: pack([{"segments": [each]} for each in segments]))
    found, unpack_seconds = timed(lambda: unpack(packed))
    for each, read in zip(segments, found, strict=True):
        if not np.array_equal(each.response_ids, read["segments"][0].response_ids):
            raise RuntimeError("the batch was not read back equal")
    return {
        "rollouts": rollouts,
        "tokens": sum(len(each.prompt_ids) + len(each.response_ids) for each in segments),
        "json_megabytes": len(text) / 1e6,
        "packed_megabytes": len(packed) / 1e6,
        "json_encode_seconds": json_encode,
        "json_decode_seconds": json_decode,
        "pack_seconds": pack_seconds,
        "unpack_seconds": unpack_seconds,
        "bytes_ratio": len(text) / len(packed),
        "time_ratio": (json_encode + json_decode) / max(1e-9, pack_seconds + unpack_seconds),
    }


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--no-store", action="store_true")
    given = parser.parse_args()
    found = measure(given.rollouts, given.tokens)
    for name, value in found.items():
        print(f"{name:22} {value:12,.3f}")
    if not given.no_store:
        store("packed_segments", found)


if __name__ == "__main__":
    main()
