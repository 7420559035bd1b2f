"""Rows for trainers: one frame for each segment of a rollout, made of the bytes of its log. Pure, without numpy.

    frame    "TGR1" · u32 row · u32 prompt tokens · u32 response tokens · u32 sampled tokens · u32 flags · u32 runs · u32 crc32
             · runs · tokens · log-probabilities
    end      "TGRE" · u32 frames before it · six u32 that are 0
    refusal  "TGRX" · u32 bytes · six u32 that are 0 · JSON {code, detail, rollout}

``runs`` are triples of int32: 1 for a response, 0 for a context, the weights version, -1 of a context, and the number of tokens.
``tokens`` are int32: the prompt, then the response. ``log-probabilities`` are float32, one for each sampled token; without flag 1
there are none. The checksum is that of everything behind the header. All numbers are little-endian.

Rules
1. Tokens are in the log in the order of the segment, so a frame is joined from its records: no array is made.
2. A stream without its end is incomplete. A refusal ends a stream too: what came before it is whole.
3. What a frame has is known from the heads of the records (`TurnLengths`), before any token is read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from domain.errors import Unreadable
from rollout.ports import Record

HEADER: Final = struct.Struct("<4s7I")
ROW: Final = b"TGR1"
END: Final = b"TGRE"
REFUSAL: Final = b"TGRX"
#: Flag of a frame with log-probabilities.
HAS_LOGPROBS: Final = 1
MEDIA_TYPE: Final = "application/vnd.tangram.rows"
TURN: Final = "turn"
_RUN: Final = struct.Struct("<3i")
_NOT_SAMPLED: Final = -1
_TOKEN_BYTES: Final = 4


class TurnLengths(NamedTuple):
    """What the head of a turn's record says of its tokens."""

    context_tokens: int
    response_tokens: int
    weights_version: int
    #: Number of the turn that it continues; None: it begins a segment.
    follows: int | None
    logprobs: bool


class RowFacts(NamedTuple):
    """Lengths and versions of a segment."""

    prompt_tokens: int
    response_tokens: int
    sampled_tokens: int
    logprobs: bool
    #: Least and largest weights version of its responses.
    weights_versions: tuple[int, int]
    #: Bytes of its frame.
    frame_bytes: int


def turn_lengths(header: dict[str, Any], sizes: dict[str, int]) -> TurnLengths:
    """Return the facts of a turn's record; ``sizes``: bytes of its arrays. Raises Unreadable."""
    try:
        follows = header["extra"]["follows"]
        facts = TurnLengths(
            sizes["context"] // _TOKEN_BYTES,
            sizes["ids"] // _TOKEN_BYTES,
            int(header["weights_version"]),
            None if follows is None else int(follows),
            "logprobs" in sizes,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"a record of a turn cannot be read: {error!r}") from error
    if facts.logprobs and sizes["logprobs"] != sizes["ids"]:
        raise Unreadable("a record of a turn has other log-probabilities than tokens")
    return facts


def chains_of(follows: Iterable[int | None]) -> list[list[int]]:
    """Return the turns of each segment, by number, from the turn that each turn continues.

    Raises ValueError where two turns continue one, or one continues a turn that is not before it.
    """
    chains: dict[int, list[int]] = {}  # last turn → the turns of its segment
    for number, former in enumerate(follows):
        if former is not None and former not in chains:
            raise ValueError(f"turn {number} continues turn {former}, which is no end")
        chain = [] if former is None else chains.pop(former)
        chain.append(number)
        chains[number] = chain
    return list(chains.values())


def row_facts(turns: Sequence[TurnLengths]) -> RowFacts:
    """Return the facts of a segment of at least one turn."""
    contexts = sum(turn.context_tokens for turn in turns[1:])
    sampled = sum(turn.response_tokens for turn in turns)
    prompt, logprobs = turns[0].context_tokens, all(turn.logprobs for turn in turns)
    versions = [turn.weights_version for turn in turns]
    tokens = prompt + contexts + sampled
    size = HEADER.size + _RUN.size * len(_runs(turns))
    size += _TOKEN_BYTES * (tokens + (sampled if logprobs else 0))
    span = min(versions), max(versions)
    return RowFacts(prompt, contexts + sampled, sampled, logprobs, span, size)


def row_frame(row: int, records: Sequence[Record]) -> list[bytes]:
    """Return the pieces of the frame of a segment, by the records of its turns. Raises Unreadable."""
    turns = [turn_lengths(each.header, _sizes(each)) for each in records]
    facts, runs = row_facts(turns), _runs(turns)
    body = [b"".join(_RUN.pack(*run) for run in runs)]
    for record in records:
        body += [record.arrays["context"], record.arrays["ids"]]
    if facts.logprobs:
        body += [record.arrays["logprobs"] for record in records]
    checksum = 0
    for piece in body:
        checksum = zlib.crc32(piece, checksum)
    flags = HAS_LOGPROBS if facts.logprobs else 0
    head = HEADER.pack(
        ROW, row, facts.prompt_tokens, facts.response_tokens, facts.sampled_tokens, flags,
        len(runs), checksum,
    )  # fmt: skip
    return [head, *body]


def end_frame(frames: int) -> bytes:
    """Return the end of a stream."""
    return HEADER.pack(END, frames, *[0] * 6)


def refusal_frame(code: str, detail: str, rollout: str) -> bytes:
    """Return what ends a stream whose next row cannot be had."""
    body = msgspec.json.encode({"code": code, "detail": detail, "rollout": rollout})
    return HEADER.pack(REFUSAL, len(body), *[0] * 6) + body


def _runs(turns: Sequence[TurnLengths]) -> list[tuple[int, int, int]]:
    """Return ``(sampled, version, tokens)`` for each context and response behind the prompt."""
    runs: list[tuple[int, int, int]] = []
    for number, turn in enumerate(turns):
        if number and turn.context_tokens:
            runs.append((0, _NOT_SAMPLED, turn.context_tokens))
        runs.append((1, turn.weights_version, turn.response_tokens))
    return runs


def _sizes(record: Record) -> dict[str, int]:
    return {name: len(content) for name, content in record.arrays.items()}
