"""Generations of a modelled engine, and what becomes of them."""

from __future__ import annotations

import msgspec


class ModelledGeneration(msgspec.Struct, frozen=True):
    """One request for tokens."""

    key: str
    prompt_tokens: int
    #: Tokens that it samples, ≥ 1.
    tokens: int
    #: Sequence whose cache it continues, and which has its cache afterwards.
    sequence: str
    #: Smaller is served first, among equals the earlier one; as engines read ``priority``.
    priority: float = 0.0
    #: Tokens of the prompt that the sequence's cache may stand for; None: all that it has.
    matching_tokens: int | None = None


class EngineEvent(msgspec.Struct, frozen=True):
    """Something that happened to a generation."""

    key: str
    at: float


class GenerationBegan(EngineEvent, frozen=True):
    """It left the queue; its prompt is computed next."""

    #: Tokens of the prompt that were cached, on the GPU or on the host.
    cached_tokens: int
    #: Seconds until its first token.
    stall_seconds: float


class GenerationEnded(EngineEvent, frozen=True):
    """All its tokens are sampled."""

    sampled_tokens: int


class GenerationPreempted(EngineEvent, frozen=True):
    """It waits again, with what it had sampled."""

    sampled_tokens: int
