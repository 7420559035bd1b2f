"""Hidden states of rows that begin alike: what all rows share is computed once, and its gradient is the sum of theirs.

Rows of this example share system prompt and tools, three quarters of their tokens. The result is that of the model's own forward call, but for
rounding.

Needs PyTorch (1.13 or later).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from examples.rollouts.small_model.transformer import Block, Transformer, _turned


def shared_length(rows: Sequence[Sequence[int]], most: int) -> int:
    """Return how many tokens all rows have in common at their beginning, at most ``most``."""
    first = rows[0]
    for place in range(min([most, *map(len, rows)])):
        if any(row[place] != first[place] for row in rows):
            return place
    return min([most, *map(len, rows)])


def hidden_behind(model: Transformer, rows: Sequence[Sequence[int]], shared: int) -> Any:
    """Return hidden states [rows, columns, width]: column c is a row's token ``shared + c``; columns behind a row's end mean nothing."""
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest - shared, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row) - shared] = torch.tensor(list(row[shared:]))
    prompt = torch.tensor([list(rows[0][:shared])], dtype=torch.long)
    known, rest = model.embedding(prompt), model.embedding(ids)
    for block in model.blocks:
        keys: list[Any] = []
        values: list[Any] = []
        if shared:
            known = _after(block, known, model.speeds, 0, keys, values)
        rest = _after(block, rest, model.speeds, shared, keys, values)
    return model.norm(rest)


def _after(block: Block, x: Any, speeds: Any, at: int, keys: list[Any], values: list[Any]) -> Any:
    """Return the next layer's input of columns ``at`` onwards; keys and values of the columns before are given, those of ``x`` are added."""
    batch, length, width = x.shape
    turn = torch.arange(at, at + length)[:, None].float() * speeds
    parts = block.mix(block.norms[0](x)).view(batch, length, 3, block.heads, width // block.heads)
    query, key, value = parts.permute(2, 0, 3, 1, 4)
    query, key = (_turned(each, (turn.cos(), turn.sin())) for each in (query, key))
    keys.append(key)
    values.append(value)
    # One row of the prompt stands for all rows.
    key, value = (torch.cat([e.expand(batch, -1, -1, -1) for e in each], 2) for each in (keys, values))  # fmt: skip
    unseen = torch.ones(length, at + length).triu(at + 1) * -1e9
    query = query / math.sqrt(width // block.heads)
    scores = query @ key.transpose(-1, -2) + unseen
    seen = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(batch, length, width)
    x = x + block.out(seen)
    return x + block.down(functional.gelu(block.up(block.norms[1](x))))
