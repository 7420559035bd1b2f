"""Shards of the small transformer: column-parallel, then row-parallel layers, one sum over the ranks after each pair (Megatron-LM).

| layer | divided by |
|---|---|
| ``mix`` (queries, keys, values) | heads: rows of the weight |
| ``out`` | heads: columns of the weight |
| ``up``, its bias | rows |
| ``down`` | columns; its bias is whole, and added after the sum |
| embedding, norms | not divided |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from examples.rollouts.small_model.transformer import Combine, Shape, Transformer, alone


def check(shape: Shape, shards: int) -> None:
    """Raise ValueError, which names the member, when a model cannot be divided into so many shards."""
    if shape.width % shape.heads or (shape.width // shape.heads) % 2:
        raise ValueError(f"width {shape.width}: a multiple of twice the heads ({shape.heads})")
    if shards < 1 or shape.heads % shards:
        raise ValueError(f"gpus {shards}: the {shape.heads} heads are not divisible by it")


def shard_of(state: Mapping[str, Any], shape: Shape, rank: int, shards: int) -> dict[str, Any]:
    """Return the part of a whole model's tensors that ``rank`` has; what is not divided is not copied."""
    return {name: _part(name, tensor, shape, rank, shards) for name, tensor in state.items()}


def _part(name: str, tensor: Any, shape: Shape, rank: int, shards: int) -> Any:
    if name.endswith("mix.weight"):
        parts = tensor.view(3, shards, shape.width // shards, shape.width)
        return parts[:, rank].reshape(-1, shape.width)
    if name.endswith(("out.weight", "down.weight")):
        return tensor.chunk(shards, 1)[rank]
    if name.endswith(("up.weight", "up.bias")):
        return tensor.chunk(shards, 0)[rank]
    return tensor


def shard(
    state: Mapping[str, Any], shape: Shape, rank: int, shards: int, combine: Combine = alone
) -> Transformer:
    """Return the model of one rank. Raises ValueError when ``state`` is not of this shape."""
    model = Transformer(shape, shards=shards, combine=combine)
    load(model, state, shape, rank, shards)
    model.eval().requires_grad_(False)
    return model


def load(
    model: Transformer, state: Mapping[str, Any], shape: Shape, rank: int, shards: int
) -> None:
    """Replace the weights of a rank by its part of ``state``. Raises ValueError, and nothing has changed."""
    try:
        parts = shard_of(state, shape, rank, shards)
        present = model.state_dict()
        if wrong := sorted(
            name
            for name in present.keys() | parts.keys()
            if name not in present or name not in parts or present[name].shape != parts[name].shape
        ):
            raise ValueError(f"{', '.join(wrong[:3])}: not of this model's shape {tuple(shape)}")
    except (RuntimeError, AttributeError, IndexError) as error:
        raise ValueError(
            f"not the weights of a model of the shape {tuple(shape)}: {error}"
        ) from None
    with torch.no_grad():
        for name, tensor in present.items():
            tensor.copy_(parts[name])
