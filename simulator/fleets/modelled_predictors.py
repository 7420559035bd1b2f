"""Modelled predictors: predictions whose logarithm has a declared correlation with the logarithm of the truth, step by step.

A simulation needs a predictor of a known quality, and no trained one has a quality that can be set. Of the trajectories that are
alive after step k, the logarithms of what remains have a mean and a deviation; a prediction with correlation ρ is the mean plus
ρ · deviation · (ρ · x + √(1−ρ²) · noise), x being the standardised truth: it is calibrated, as a regression is. Half of the variance of
the noise stays with a trajectory over its steps, so that one which is underestimated stays so for a while.

| name | ρ after 0, 2, 6 turns | source |
|---|---|---|
| ``trace`` | 0.35, 0.66, 0.9 | numbers of the shared trace, as measured; the last is assumed |
| ``good`` | 0.6, 0.85, 0.95 | modelled; no predictor has reached it on this trace |
| ``oracle`` | 1 | |
| ``noise`` | 0 | carries no information |
| ``inverse`` | −0.7 | is wrong systematically, and its stated deviation says nothing of it |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

from domain.errors import InvalidRequest
from placement.facts import Prediction
from simulator.workloads.trajectories import AgentTrajectory

#: Turns after which the correlations of a predictor are declared.
TURNS: Final = (0, 2, 6)
CORRELATIONS: Final = {
    "trace": (0.35, 0.66, 0.9),
    "good": (0.6, 0.85, 0.95),
    "oracle": (1.0, 1.0, 1.0),
    "noise": (0.0, 0.0, 0.0),
    "inverse": (-0.7, -0.7, -0.7),
}
#: Added to tool seconds before their logarithm: they may be 0.
_TOOL_OFFSET: Final = 0.1


class _Spread(NamedTuple):
    mean: float
    deviation: float


class ModelledPredictor:
    """Predictions of the trajectories of one batch."""

    def __init__(self, name: str, trajectories: Sequence[AgentTrajectory], seed: int = 0) -> None:
        if name not in CORRELATIONS:
            raise InvalidRequest(f"predictor is one of {', '.join(CORRELATIONS)}, not {name!r}")
        self.name = name
        self._declared = CORRELATIONS[name]
        self._seed = seed
        self._tokens = {
            each.key: _remaining([t.tokens for t in each.turns]) for each in trajectories
        }
        self._tools = {
            each.key: _remaining([t.tool_seconds for t in each.turns]) for each in trajectories
        }
        self._token_spreads = _spreads(list(self._tokens.values()), 0.0)
        self._tool_spreads = _spreads(list(self._tools.values()), _TOOL_OFFSET)

    def correlation(self, turns: int) -> float:
        """Return the declared correlation after so many turns."""
        for low, high, a, b in zip(
            TURNS, TURNS[1:], self._declared, self._declared[1:], strict=False
        ):
            if turns <= high:
                return a + (b - a) * (turns - low) / (high - low)
        return self._declared[-1]

    def prediction(self, key: str, turns: int) -> Prediction:
        """Return what is said about a trajectory after so many of its turns, the last one excluded."""
        tokens, tools = self._tokens[key][turns], self._tools[key][turns]
        if self.name == "oracle":
            return Prediction(tokens, tools, 0.0, self.name)
        rho = self.correlation(turns)
        noise = Random(f"{self._seed}/{key}")
        lasting = noise.gauss(0.0, math.sqrt(0.5)), noise.gauss(0.0, math.sqrt(0.5))
        now = Random(f"{self._seed}/{key}/{turns}")
        drawn = [each + now.gauss(0.0, math.sqrt(0.5)) for each in lasting]
        spread = self._token_spreads[turns]
        said = math.exp(_said(math.log(tokens), spread, rho, drawn[0]))
        said_tools = math.exp(
            _said(math.log(tools + _TOOL_OFFSET), self._tool_spreads[turns], rho, drawn[1])
        )
        sigma = spread.deviation * math.sqrt(1 - rho * rho)
        return Prediction(said, max(0.0, said_tools - _TOOL_OFFSET), sigma, self.name)


def _said(truth: float, spread: _Spread, rho: float, noise: float) -> float:
    x = (truth - spread.mean) / spread.deviation if spread.deviation else 0.0
    # Of a predictor that is wrong systematically, the size of what it says is still that of a regression.
    size = abs(rho) * spread.deviation
    return spread.mean + size * (rho * x + math.sqrt(1 - rho * rho) * noise)


def _remaining(values: Sequence[float]) -> list[float]:
    """Return what is left after 0, 1, … values."""
    left, found = 0.0, []
    for value in reversed(values):
        left += value
        found.append(left)
    return found[::-1]


def _spreads(remaining: Sequence[Sequence[float]], offset: float) -> list[_Spread]:
    """Return mean and deviation of the logarithms of what is left after each number of turns."""
    found = []
    for turns in range(max(map(len, remaining))):
        logs = [math.log(each[turns] + offset) for each in remaining if len(each) > turns]
        mean = sum(logs) / len(logs)
        found.append(_Spread(mean, math.sqrt(sum((x - mean) ** 2 for x in logs) / len(logs))))
    return found
