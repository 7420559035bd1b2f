"""Choice of the next token from a model's logits: greedy, or sampled, with its log-probability.

Members of a request, as engines name them: ``temperature`` (absent or 0: the most likely token), ``top_p``, ``top_k``, ``seed``
(absent: another choice each time), ``stop_token_ids``. The log-probability is that of the model's own distribution, before
temperature and cuts, as vLLM reports it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


class Sampling(NamedTuple):
    """How the tokens of one response are chosen."""

    temperature: float
    top_p: float
    top_k: int
    stop_token_ids: Sequence[int]
    generator: Any

    def choose(self, logits: Any) -> tuple[int, float]:
        """Return a token and its log-probability; ``logits``: one for each token of the vocabulary."""
        logprobs = torch.log_softmax(logits.float().cpu(), dim=-1)
        if self.temperature == 0:
            token = int(logits.argmax())
        else:
            token = int(torch.multinomial(self._weights(logprobs), 1, generator=self.generator))
        return token, float(logprobs[token])

    def _weights(self, logprobs: Any) -> Any:
        """Return the probabilities to choose by: those that the cuts leave."""
        weights, order = torch.softmax(logprobs / self.temperature, dim=-1).sort(descending=True)
        if self.top_k > 0:
            weights[self.top_k :] = 0
        if self.top_p < 1:
            before = weights.cumsum(-1) - weights
            weights[before >= self.top_p] = 0
        return torch.zeros_like(weights).scatter(0, order, weights)


def sampling_of(body: dict[str, Any]) -> Sampling:
    """Return what a request asks for. Raises ValueError, which names the member."""
    temperature = _number(body, "temperature", 0.0, 0.0, 100.0)
    top_p = _number(body, "top_p", 1.0, 0.0, 1.0)
    top_k, seed = body.get("top_k"), body.get("seed")
    stop = body.get("stop_token_ids") or []
    if top_p == 0:
        raise ValueError("top_p is above 0")
    if top_k is not None and not isinstance(top_k, int):
        raise ValueError("top_k is an integer")
    if seed is not None and not isinstance(seed, int):
        raise ValueError("seed is an integer")
    if not isinstance(stop, list) or not all(isinstance(each, int) for each in stop):
        raise ValueError("stop_token_ids is a list of token ids")
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed % 2**63)
    return Sampling(temperature, top_p, top_k or 0, stop, generator)


def _number(body: dict[str, Any], name: str, default: float, least: float, most: float) -> float:
    stated = body.get(name)
    value = default if stated is None else stated
    if (
        not isinstance(value, (int, float))
        or not math.isfinite(value)
        or not least <= value <= most
    ):
        raise ValueError(f"{name} is {least:g} to {most:g}")
    return float(value)
