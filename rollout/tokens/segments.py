"""Turns and segments: the tokens of a rollout as a trainer uses them.

A turn is the context that was added before a response, and the response. A segment is a prompt and everything after it:
responses with mask 1, the contexts between them with mask 0. A conversation that only grows is one segment; one that
begins again, because an agent condensed its history or branched, has several.

Rules
1. A segment has the tokens in the order in which the model saw them, so every response is conditioned on exactly what
   stands before it in its segment.
2. A response is in one segment only, with mask 1 there. A branch repeats what it grew from as its prompt.
3. All arrays of a segment have the length of ``response_ids``. Where the mask is 0, the log-probability is 0 and the weights
   version -1. ``logprobs`` is None where an engine of any of its turns gave none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollout.tokens.row_frames import chains_of
from rollout.tokens.sampled import Ids, LogProbs, SampledTokens

#: Weights version of a token that no model sampled.
NOT_SAMPLED: Final = -1


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class SampledTurn:
    """One response and the context before it. Immutable."""

    #: What was added since the response that it follows; the whole prompt where it follows none.
    context: Ids
    tokens: SampledTokens
    weights_version: int
    backend: str = ""
    #: Number of the turn that it continues, counted from 0 in the log; None: it begins a segment.
    follows: int | None = None
    #: The response as a message of OpenAI's chat completions.
    message: dict[str, Any] = field(default_factory=dict)
    #: Digest of the conversation, of calls that agents of others make (`rollout.tokens.foreign_calls`).
    conversation: str = ""
    #: The messages that were added since the response that it follows: what ``context`` encodes.
    asked: Sequence[Mapping[str, Any]] = ()
    #: Schemas of the tools that the prompt lists, of a turn that begins a segment.
    tools: Sequence[Mapping[str, Any]] = ()
    #: Name of the request that it answers, of such calls; a repetition has the same one.
    request: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class TokenSegment:
    """Tokens to train on. Immutable."""

    prompt_ids: Ids
    response_ids: Ids
    loss_mask: NDArray[np.uint8]
    logprobs: LogProbs | None
    weights_versions: NDArray[np.int32]

    def __post_init__(self) -> None:
        count = len(self.response_ids)
        others = (self.loss_mask, self.weights_versions, self.logprobs)
        if any(each is not None and len(each) != count for each in others):
            raise ValueError(f"a segment of {count} tokens whose arrays have other lengths")

    @property
    def sampled(self) -> int:
        """Return the number of tokens that the model sampled."""
        return int(self.loss_mask.sum())


class TokenThread:
    """A conversation of our own agent: its turns, each of which continues the one before it or begins a segment."""

    def __init__(self, turns: Iterable[SampledTurn] = ()) -> None:
        self.turns: list[SampledTurn] = []
        self._ids: list[Ids] = []
        for turn in turns:
            self.append(turn)

    def __len__(self) -> int:
        """Return the number of tokens of the present segment."""
        return sum(map(len, self._ids))

    @property
    def ids(self) -> Ids:
        """Return the tokens of the present segment, the last response included."""
        return np.concatenate(self._ids) if self._ids else np.empty(0, np.int32)

    @property
    def last(self) -> int | None:
        """Return the number of the last turn, None before the first: what the next one follows."""
        return len(self.turns) - 1 if self.turns else None

    def append(self, turn: SampledTurn) -> None:
        """Add a turn. Raises ValueError where it continues another one than the last."""
        if turn.follows is None:
            self._ids.clear()
        elif turn.follows != self.last:
            raise ValueError(f"turn {len(self.turns)} continues turn {turn.follows}")
        self.turns.append(turn)
        self._ids += [turn.context, turn.tokens.ids]


def segments_of(turns: Iterable[SampledTurn]) -> list[TokenSegment]:
    """Return the segments of turns in the order of the log. Raises ValueError where two turns continue one."""
    found = list(turns)
    chains = chains_of(turn.follows for turn in found)
    return [_segment([found[number] for number in chain]) for chain in chains]


def _segment(turns: Sequence[SampledTurn]) -> TokenSegment:
    ids: list[Ids] = []
    masks: list[NDArray[np.uint8]] = []
    logprobs: list[LogProbs] = []
    versions: list[NDArray[np.int32]] = []
    for number, turn in enumerate(turns):
        context = turn.context if number else turn.context[:0]
        before, after = len(context), len(turn.tokens)
        ids += [context, turn.tokens.ids]
        masks += [np.zeros(before, np.uint8), np.ones(after, np.uint8)]
        versions += [
            np.full(before, NOT_SAMPLED, np.int32),
            np.full(after, turn.weights_version, np.int32),
        ]
        if turn.tokens.logprobs is not None:
            logprobs += [np.zeros(before, np.float32), turn.tokens.logprobs]
    complete = all(turn.tokens.logprobs is not None for turn in turns)
    return TokenSegment(
        turns[0].context,
        np.concatenate(ids),
        np.concatenate(masks),
        np.concatenate(logprobs) if complete else None,
        np.concatenate(versions),
    )
