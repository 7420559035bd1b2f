"""One generation: what a request asks for, and the loop that samples its tokens.

A loop runs the model on the tokens of the prompt that no cache holds, then on each sampled token. It ends at a stop token (``stop``),
at a stop string (``stop``; the tokens that made it are part of the answer, its text is not), or at the most tokens (``length``).
Between two tokens it asks its caller whether to go on: a client that is gone, or new weights that do not wait, end it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from managers.gpu.torch_worker.openai_answers import TokenChoice
from managers.gpu.torch_worker.sampling import Sampling, sampling_of

#: Of one answer.
MOST_TOKENS = 4096
_DEFAULT_TOKENS = 16
_MOST_STOPS = 16


class CallerGone(ConnectionError):
    """The client has closed its connection."""


class Caller:
    """The side of a request that its model sees: whose it is, whether to go on, and where events go."""

    #: Its cache's name; empty: nothing is kept.
    trajectory = ""

    @property
    def begun(self) -> bool:
        """An event was sent, so the answer has no status any more."""
        return False

    def check(self) -> None:
        """Raise what ends the request: its client is gone, or the worker aborts it."""

    def event(self, data: dict[str, Any]) -> None:
        """Send one event of a streamed answer."""
        raise ValueError("stream: not here")


class Generation(NamedTuple):
    """What one request asks for."""

    prompt: list[int]
    most: int
    stops: Sequence[str]
    ends: frozenset[int]
    sampling: Sampling


def generation_of(
    body: dict[str, Any], prompt: list[int], ends: Sequence[int], context: int | None, *, chat: bool
) -> Generation:
    """Return what ``body`` asks for after ``prompt``. Raises ValueError, which names the member.

    ``ends``: ids that end an answer. ``context``: most tokens of prompt and answer together; None: no limit.
    """
    if body.get("n") not in (None, 1):
        raise ValueError("n is 1: send a request for each answer")
    room = MOST_TOKENS if context is None else min(MOST_TOKENS, context - len(prompt))
    if room < 1:
        raise ValueError(
            f"This model's maximum context length is {context} tokens. However, your prompt has {len(prompt)}."
        )
    stated = body.get("max_completion_tokens") if chat else None
    stated = body.get("max_tokens") if stated is None else stated
    most = (room if chat else _DEFAULT_TOKENS) if stated is None else stated
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST_TOKENS:
        raise ValueError(f"max_tokens is 1 to {MOST_TOKENS}")
    sampling = sampling_of(body)
    known = () if body.get("ignore_eos") else ends
    every = frozenset([*known, *sampling.stop_token_ids])
    return Generation(prompt, min(most, room), _stops(body.get("stop")), every, sampling)


def _stops(stated: Any) -> Sequence[str]:
    stops = [stated] if isinstance(stated, str) else stated or []
    if not isinstance(stops, list) or len(stops) > _MOST_STOPS:
        raise ValueError(f"stop is a text, or a list of at most {_MOST_STOPS}")
    if not all(isinstance(each, str) and each for each in stops):
        raise ValueError("stop has texts that are not empty")
    return stops


class Past:
    """Keys and values of a running generation, as the model wants them; what it is made from never changes."""

    def __init__(self, module: Any, layers: Sequence[tuple[Any, Any]]) -> None:
        self._module = module
        self._value: Any = tuple(layers) or None
        if getattr(module, "_supports_cache_class", False):
            from transformers import DynamicCache

            self._value = DynamicCache.from_legacy_cache(tuple(layers))

    def run(self, ids: Sequence[int]) -> Any:
        """Compute further tokens; return the logits after the last of them."""
        device = next(self._module.parameters()).device
        step = torch.tensor([list(ids)], device=device)
        out = self._module(input_ids=step, past_key_values=self._value, use_cache=True)
        self._value = out.past_key_values
        return out.logits[0, -1]

    def layers(self, count: int) -> list[tuple[Any, Any]] | None:
        """Return the keys and values of ``count`` tokens; None where the model has others than one for each token."""
        value = self._value
        if hasattr(value, "to_legacy_cache"):
            value = value.to_legacy_cache()
        if not isinstance(value, tuple) or not value:
            return None
        if not all(len(each) == 2 and _of_tokens(each, count) for each in value):
            return None
        return [(key.contiguous(), values.contiguous()) for key, values in value]


def _of_tokens(pair: Sequence[Any], count: int) -> bool:
    return all(
        isinstance(each, torch.Tensor) and each.dim() == 4 and tuple(each.shape[:3:2]) == (1, count)
        for each in pair
    )


def choices(
    past: Past, logits: Any, generation: Generation, check: Callable[[], None]
) -> Iterator[tuple[TokenChoice, bool]]:
    """Yield each token, and whether it ends the answer. ``logits``: after the prompt.

    A caller that has seen enough stops iterating; the last token that was yielded is not in ``past`` then.
    """
    for number in range(generation.most):
        check()
        choice = TokenChoice(*generation.sampling.choose(logits))
        ended = choice.token in generation.ends
        yield choice, ended
        if ended or number + 1 == generation.most:
            return
        logits = past.run([choice.token])
