"""Predictor ``plan``: the agent's numbered plan says how many steps there will be. The smallest predictor that reads text.

An agent whose answers hold ``1. … 2. … 3. …`` takes about so many steps for each item as others did before. Where
there is no plan, or too few were seen, it is silent, and history stands in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from placement.facts import Prediction
from placement.features import NAMES, Features, FinishedTrajectory

_ITEM: Final = re.compile(r"^\s*\d+\.\s", re.MULTILINE)
_LEAST: Final = 3


class PlanRates(msgspec.Struct):
    """Sums over finished trajectories that had a plan."""

    trajectories: int = 0
    items: int = 0
    steps: int = 0
    tokens: float = 0.0
    tool_seconds: float = 0.0


class PlanPredictor:
    """Steps left, by the items of the plan; each as long as a step is on average."""

    name = "plan"

    def __init__(self) -> None:
        self._seen = PlanRates()
        self._used = PlanRates()

    def observe(self, finished: FinishedTrajectory, texts: Sequence[str] = ()) -> None:
        """Add a finished trajectory whose first answer had a plan."""
        items = len(_ITEM.findall("".join(texts[:2])))
        if items and finished.steps:
            seen = self._seen
            self._seen = PlanRates(
                seen.trajectories + 1,
                seen.items + items,
                seen.steps + len(finished.steps),
                seen.tokens + sum(step.tokens for step in finished.steps),
                seen.tool_seconds + sum(step.tool_seconds for step in finished.steps),
            )

    def refit(self, seed: int) -> bytes:
        """Return the sums as of now."""
        return msgspec.msgpack.encode(self._seen)

    def use(self, fitted: bytes) -> None:
        """Predict by these sums."""
        self._used = msgspec.msgpack.decode(fitted, type=PlanRates)

    def predict(self, features: Features, text: str | None = None) -> Prediction | None:
        """Return what is left by the plan in ``text``; None without one."""
        used, items = self._used, len(_ITEM.findall(text or ""))
        if not items or used.trajectories < _LEAST:
            return None
        left = max(1.0, items * used.steps / used.items - features.steps)
        tokens = dict(zip(NAMES, features.numbers, strict=True))["tokens_a_step"]
        tokens = tokens or used.tokens / used.steps
        return Prediction(left * tokens, left * used.tool_seconds / used.steps, 0.5, self.name)

    def remember(self) -> bytes:
        """Return what was observed."""
        return self.refit(0)

    def recall(self, memory: bytes) -> None:
        """Restore it, and predict by it."""
        self._seen = msgspec.msgpack.decode(memory, type=PlanRates)
        self._used = self._seen
