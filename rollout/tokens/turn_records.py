"""Turns in the log of a rollout: one record each, from which everything about its tokens is read back without a tokenizer.

Header: ``message``, ``weights_version``, ``backend``, ``prompt_tokens`` and ``response_tokens`` (what the turn adds to its segment),
``asked`` (the messages that ``context`` encodes), ``tools`` where a segment begins, and ``extra`` with ``finish``, ``follows`` and
``conversation``, perhaps ``request``. Arrays, little-endian: ``context`` and ``ids`` int32, ``logprobs`` float32, which is left out where the engine
gave none. Logs of 0.1 have neither ``asked`` nor ``tools``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from domain.errors import Unreadable
from rollout.ports import Record
from rollout.tokens.sampled import SampledTokens
from rollout.tokens.segments import SampledTurn

_TURN: Final = "turn"
_INT: Final = np.dtype("<i4")
_FLOAT: Final = np.dtype("<f4")


def turn_record(turn: SampledTurn) -> Record:
    """Return the record of a turn."""
    arrays = {
        "context": turn.context.astype(_INT).tobytes(),
        "ids": turn.tokens.ids.astype(_INT).tobytes(),
    }
    if turn.tokens.logprobs is not None:
        arrays["logprobs"] = turn.tokens.logprobs.astype(_FLOAT).tobytes()
    extra: dict[str, Any] = {
        "finish": turn.tokens.finish,
        "follows": turn.follows,
        "conversation": turn.conversation,
    }
    if turn.request:
        extra["request"] = turn.request
    header: dict[str, Any] = {
        "message": turn.message,
        "weights_version": turn.weights_version,
        "backend": turn.backend,
        "prompt_tokens": len(turn.context),
        "response_tokens": len(turn.tokens),
        "extra": extra,
    }
    if turn.asked:
        header["asked"] = [dict(message) for message in turn.asked]
    if turn.tools:
        header["tools"] = [dict(tool) for tool in turn.tools]
    return Record(_TURN, header, arrays)


def turn_of(record: Record) -> SampledTurn:
    """Return the turn of a record. Raises Unreadable."""
    header, arrays = record.header, record.arrays
    try:
        extra, ids = header["extra"], _array(arrays["ids"], _INT)
        logprobs = _array(arrays["logprobs"], _FLOAT) if "logprobs" in arrays else None
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError(f"{len(logprobs)} log-probabilities for {len(ids)} tokens")
        return SampledTurn(
            context=_array(arrays["context"], _INT),
            tokens=SampledTokens(ids, logprobs, str(extra["finish"])),
            weights_version=int(header["weights_version"]),
            backend=str(header.get("backend", "")),
            follows=None if extra["follows"] is None else int(extra["follows"]),
            message=dict(header["message"]),
            conversation=str(extra.get("conversation", "")),
            asked=tuple(map(dict, header.get("asked", ()))),
            tools=tuple(map(dict, header.get("tools", ()))),
            request=str(extra.get("request", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"a record of a turn cannot be read: {error!r}") from error


def turns_of(records: Iterable[Record]) -> list[SampledTurn]:
    """Return the turns of a log, in order. Raises Unreadable."""
    return [turn_of(record) for record in records if record.kind == _TURN]


def _array(data: bytes, kind: np.dtype[Any]) -> NDArray[Any]:
    return np.frombuffer(data, kind)
