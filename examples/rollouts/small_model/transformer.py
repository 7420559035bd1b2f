"""Transformer of about 400,000 weights: rotary positions, a cache of keys and values, sampling in batches.

Rules
1. Rows of a batch are padded on the left: the last column is every row's newest token, and positions count from a row's first
   token, so padding changes no probability.
2. A log-probability is that of the model's own distribution at temperature 1, as the trainer computes it again.

3. Prompts are computed in parts of some columns and rows, and equal ones once, so that what a prompt takes beside its keys and values
   has a bound.
4. A model may be one of several shards (tensor parallelism): a part of the heads and of the feed-forward layer, whose sums `Combine` adds.

Runs under PyTorch 1.13 and later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

#: Fills columns before a row's first token; never seen.
_PADDING = 0
#: Columns of prompts that are computed at once, and numbers of one layer's scores for them.
_COLUMNS = 128
_SCORES = 2**21

#: Adds a tensor over all shards of a layer, and returns the sum to each.
Combine = Callable[[Any], Any]


def alone(x: Any) -> Any:
    """Return what a model that is not divided computes: its own sum."""
    return x


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

    def __init__(self, shape: Shape, shards: int, combine: Combine) -> None:
        super().__init__()
        self.heads, self.size = shape.heads // shards, shape.width // shape.heads
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(shape.width) for _ in range(2)])
        self.mix = torch.nn.Linear(shape.width, 3 * shape.width // shards, bias=False)
        self.out = torch.nn.Linear(shape.width // shards, shape.width, bias=False)
        self.up = torch.nn.Linear(shape.width, 4 * shape.width // shards)
        self.down = torch.nn.Linear(4 * shape.width // shards, shape.width)
        self._combine = combine

    def forward(self, x: Any, turn: Any, bias: Any, cache: Any, at: int) -> Any:
        """Return the next layer's input; ``cache``: keys and values of all columns, written from ``at`` on."""
        batch, length, _ = x.shape
        parts = self.mix(self.norms[0](x)).view(batch, length, 3, self.heads, self.size)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        query, key = _turned(query, turn), _turned(key, turn)
        if cache is not None:
            cache[0][:, :, at : at + length], cache[1][:, :, at : at + length] = key, value
            key, value = cache[0][:, :, : at + length], cache[1][:, :, : at + length]
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.size) + bias
        seen = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(batch, length, -1)
        x = x + self._combine(self.out(seen))
        hidden = functional.gelu(self.up(self.norms[1](x)))
        # The bias is added once, not by each shard.
        return x + self._combine(functional.linear(hidden, self.down.weight)) + self.down.bias


class Transformer(torch.nn.Module):  # type: ignore[misc]
    """Model from token ids to logits; the embedding is the output layer as well."""

    def __init__(
        self, shape: Shape, seed: int = 0, *, shards: int = 1, combine: Combine = alone
    ) -> None:
        """``shards``: the blocks have one of so many equal parts, with values of their own until they are loaded."""
        super().__init__()
        torch.manual_seed(seed)
        self.shape = shape
        self.embedding = torch.nn.Embedding(shape.vocabulary, shape.width)
        torch.nn.init.normal_(self.embedding.weight, std=shape.width**-0.5)
        self.blocks = torch.nn.ModuleList(
            [Block(shape, shards, combine) for _ in range(shape.layers)]
        )
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

    def caches(self, rows: int, columns: int) -> list[tuple[Any, Any]]:
        """Return memory for the keys and values of each block."""
        heads, size = self.blocks[0].heads, self.blocks[0].size
        shape = (rows, heads, columns, size)
        return [(torch.zeros(shape), torch.zeros(shape)) for _ in self.blocks]

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


class Prefilled(NamedTuple):
    """A batch whose prompts are computed."""

    requests: Sequence[Request]
    #: Of each request: the column of its first token.
    first: Any
    #: By request: the hidden state of its prompt's last token.
    hidden: Any
    caches: list[tuple[Any, Any]]
    #: Column of the next token.
    at: int


@torch.no_grad()  # type: ignore[untyped-decorator]
def prefill(model: Transformer, requests: Sequence[Request]) -> Prefilled:
    """Compute the prompts of a batch, equal ones once."""
    distinct = dict.fromkeys(tuple(each.prompt_ids) for each in requests)
    # Distinct prompts first: their rows are written as slices, those of equal ones are copied.
    order: dict[tuple[int, ...], int] = {prompt: row for row, prompt in enumerate(distinct)}
    ids, first = padded(list(distinct))
    length = ids.shape[1]
    most = min(max(each.max_tokens for each in requests), model.shape.context - length)
    rows = [order[tuple(each.prompt_ids)] for each in requests]
    caches = model.caches(len(requests), length + most)
    hidden = torch.empty(len(distinct), model.shape.width)
    step = max(1, _SCORES // (model.blocks[0].heads * min(length, _COLUMNS) * length))
    for row in range(0, len(distinct), step):
        part = slice(row, min(row + step, len(distinct)))
        own = [(key[part], value[part]) for key, value in caches]
        for at in range(0, length, _COLUMNS):
            found = model(ids[part, at : at + _COLUMNS], first[part], own, at)
        hidden[part] = found[:, -1]
    if len(distinct) < len(requests):
        _copy_prompts(caches, rows, length)
    return Prefilled(requests, first[rows], hidden[rows], caches, length)


def _copy_prompts(caches: list[tuple[Any, Any]], rows: Sequence[int], length: int) -> None:
    """Write to each row the prompt that is in the row ``rows`` names."""
    # From the last row: a row that others are copied from is before them.
    for row, source in reversed(list(enumerate(rows))):
        if row != source:
            for both in caches:
                for each in both:
                    each[row, :, :length] = each[source, :, :length]


@torch.no_grad()  # type: ignore[untyped-decorator]
def decode(model: Transformer, batch: Prefilled) -> list[Response]:
    """Return the responses to a batch, sampled together."""
    shape, requests = model.shape, batch.requests
    chances = [torch.Generator().manual_seed(each.seed) for each in requests]
    heat = torch.tensor([max(each.temperature, 1e-4) for each in requests])
    found = [Response([], []) for _ in requests]
    over = [False] * len(requests)
    hidden, at, columns = batch.hidden, batch.at, batch.caches[0][0].shape[2]
    for _ in range(columns - batch.at):
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
        if all(over) or at + 1 > columns:
            break
        hidden = model(chosen[:, None], batch.first, batch.caches, at)[:, -1]
        at += 1
    return found


def sample(model: Transformer, requests: Sequence[Request]) -> list[Response]:
    """Return the responses to a batch of requests, sampled together."""
    found: list[Response] = decode(model, prefill(model, requests))
    return found
