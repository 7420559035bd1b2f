"""Errors of the dispatcher. Each message names the tensor or field, and what to change."""

from __future__ import annotations

from collections.abc import Sequence


class LayoutError(ValueError):
    """A layout, its description or an array that does not fit it. ``field`` says where, as in ``tensors[2].shape``."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class PlanError(ValueError):
    """Two layouts between which no transfer exists. ``ranks`` are those that are concerned."""

    def __init__(self, tensor: str, problem: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(f"tensor {tensor}: {problem}" if tensor else problem)
        self.tensor = tensor
        self.ranks = tuple(ranks)
