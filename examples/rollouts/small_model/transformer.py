"""Transformer of about 400,000 weights: rotary positions, a cache of keys and values, sampling in batches.

Rules
1. Rows of a batch are padded on the left: the last column is every row's newest token, and positions count from a row's first
   token, so padding changes no probability.
2. A log-probability is that of the model's own distribution at temperature 1, as the trainer computes it again.

Runs under PyTorch 1.13 and later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

#: Fills columns before a row's first token; never seen.
_PADDING = 0


class Shape(NamedTuple):
    """Sizes of a model."""

    vocabulary: int = 4096
    width: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 1024


class Request(NamedTuple):
    """One prompt, and how its response is sampled."""

    prompt_ids: Sequence[int]
    max_tokens: int
    temperature: float
    stop_ids: frozenset[int]
    seed: int


class Response(NamedTuple):
    """Sampled tokens with their log-probabilities."""

    ids: list[int]
    logprobs: list[float]


class Block(torch.nn.Module):  # type: ignore[misc]
    """Attention and a feed-forward layer, each behind a norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(shape.width) for _ in range(2)])
        self.mix = torch.nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = torch.nn.Linear(shape.width, shape.width, bias=False)
        self.up = torch.nn.Linear(shape.width, 4 * shape.width)
        self.down = torch.nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Any, turn: Any, bias: Any, cache: Any, at: int) -> Any:
        """Return the next layer's input; ``cache``: keys and values of all columns, written from ``at`` on."""
        batch, length, width = x.shape
        parts = self.mix(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        query, key = _turned(query, turn), _turned(key, turn)
        if cache is not None:
            cache[0][:, :, at : at + length], cache[1][:, :, at : at + length] = key, value
            key, value = cache[0][:, :, : at + length], cache[1][:, :, : at + length]
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads) + bias
        seen = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(seen)
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Transformer(torch.nn.Module):  # type: ignore[misc]
    """Model from token ids to logits; the embedding is the output layer as well."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.shape = shape
        self.embedding = torch.nn.Embedding(shape.vocabulary, shape.width)
        torch.nn.init.normal_(self.embedding.weight, std=shape.width**-0.5)
        self.blocks = torch.nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm = torch.nn.LayerNorm(shape.width)
        size = shape.width // shape.heads
        speeds = 10_000.0 ** (-torch.arange(0, size, 2).float() / size)
        self.register_buffer("speeds", speeds)

    def forward(self, ids: Any, first: Any, caches: Any = None, at: int = 0) -> Any:
        """Return the hidden states of columns ``at`` onwards.

        ids: [rows, columns], padded on the left; first: [rows], the column of a row's first token.
        """
        columns = torch.arange(at, at + ids.shape[1])
        places = (columns[None] - first[:, None]).clamp(min=0)
        turn = places[..., None].float() * self.speeds
        every = torch.arange(at + ids.shape[1])
        seen = (every <= columns[:, None])[None] & (every >= first[:, None])[:, None]
        # A column of padding sees itself: a row without any column would be NaN.
        seen = seen | (every == columns[:, None])[None]
        bias = torch.zeros(seen.shape).masked_fill(~seen, -1e9)[:, None]
        x = self.embedding(ids)
        for number, block in enumerate(self.blocks):
            cache = None if caches is None else caches[number]
            x = block(x, (turn.cos()[:, None], turn.sin()[:, None]), bias, cache, at)
        return self.norm(x)

    def logits(self, hidden: Any) -> Any:
        """Return the logits of hidden states."""
        return hidden @ self.embedding.weight.T


def _turned(x: Any, turn: Any) -> Any:
    """Return queries or keys, rotated by their positions."""
    cos, sin = turn
    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)


def padded(rows: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    """Return rows as one tensor, padded on the left, and the column of each row's first token."""
    length = max(len(row) for row in rows)
    ids = torch.full((len(rows), length), _PADDING)
    for number, row in enumerate(rows):
        ids[number, length - len(row) :] = torch.tensor(list(row))
    return ids, torch.tensor([length - len(row) for row in rows])


@torch.no_grad()  # type: ignore[untyped-decorator]
def sample(model: Transformer, requests: Sequence[Request]) -> list[Response]:
    """Return the responses to a batch of requests, sampled together."""
    shape = model.shape
    ids, first = padded([request.prompt_ids for request in requests])
    most = min(max(each.max_tokens for each in requests), shape.context - ids.shape[1])
    size = (len(requests), shape.heads, ids.shape[1] + most, shape.width // shape.heads)
    caches = [(torch.zeros(size), torch.zeros(size)) for _ in model.blocks]
    chances = [torch.Generator().manual_seed(each.seed) for each in requests]
    heat = torch.tensor([max(each.temperature, 1e-4) for each in requests])
    found = [Response([], []) for _ in requests]
    over = [False] * len(requests)
    hidden, at = model(ids, first, caches)[:, -1], ids.shape[1]
    for _ in range(most):
        logprobs = torch.log_softmax(model.logits(hidden), -1)
        weights = torch.softmax(logprobs / heat[:, None], -1)
        draws = torch.stack([torch.rand((), generator=each) for each in chances])
        chosen = torch.searchsorted(weights.cumsum(-1), draws[:, None])[:, 0]
        chosen = chosen.clamp(max=shape.vocabulary - 1)
        likely = logprobs.gather(1, chosen[:, None])[:, 0]
        for row, (token, value) in enumerate(zip(chosen.tolist(), likely.tolist(), strict=True)):
            if not over[row]:
                found[row].ids.append(token)
                found[row].logprobs.append(min(value, 0.0))
                full = len(found[row].ids) >= requests[row].max_tokens
                over[row] = full or token in requests[row].stop_ids
        if all(over) or at + 1 > size[2]:
            break
        hidden, at = model(chosen[:, None], first, caches, at)[:, -1], at + 1
    return found
