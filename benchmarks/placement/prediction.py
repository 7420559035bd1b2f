"""Prediction of what is left of a trajectory: cost of one and of a fit, and precision on recorded trajectories, out of fold.

Precision. The trace has seconds of thinking, which stand in for tokens, at `TOKENS_PER_SECOND`. Prompts are divided into folds; each fold is predicted by
a predictor that was fed the other folds alone, after 0, 1, 2 … steps, for the trajectories that went on. Folds are drawn with
several seeds, and correlations are means over them. Intervals are of 1,000 bootstrap samples of prompts.
Correlations are of logarithms of lengths. ``left`` is what was left then. ``total`` is the whole trajectory: what had been sampled,
which is known, and what is predicted to be left; the paper's Figure 13 and the targets are of it.

Rows: ``prompt`` (a line through what is known before the first step: model and image size), ``history`` (means of finished
trajectories that reached the step), ``boosted`` (ours).

Targets: one prediction ≤ 1 ms; a fit of 20,000 rows ≤ 2 s; ours never below history beyond the interval; ≥ 0.60 after 10 steps,
≥ 0.64 after 20.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.placement.sections import Found, late
from benchmarks.record import quantiles
from placement.boosted import BoostedPredictor, unavailable
from placement.features import (
    Features,
    FinishedTrajectory,
    Progress,
    TrajectoryStep,
    remaining,
    rows,
    scale,
)
from placement.history import History
from placement.predictors import Predictor

TOKENS_PER_SECOND: Final = 25.0
AFTER: Final = (0, 1, 2, 5, 10, 20)
FOLDS: Final = 5
SEEDS: Final = 5
#: Share of trajectories that count as the long tail.
TAIL: Final = 0.1
SAMPLES: Final = 1000
WANTED: Final = {10: 0.60, 20: 0.64}
PREDICT_MS: Final = 1.0
FIT_SECONDS: Final = 2.0
FIT_ROWS: Final = 20_000


class RecordedLengths(NamedTuple):
    """A recorded trajectory."""

    prompt: str
    #: Before the first step: 1, whether the model is the larger one, log of image size.
    known: tuple[float, ...]
    finished: FinishedTrajectory


class Point(NamedTuple):
    """A trajectory after a step: what was left, and what each predictor said, in tokens."""

    prompt: str
    steps: int
    sampled: float
    left: float
    said: dict[str, float]


def read(trace: Path) -> list[RecordedLengths]:
    """Return the trajectories of a trace that says model, task and image size."""
    return [_recorded(json.loads(line)) for line in trace.read_text().splitlines()]


def _recorded(body: dict[str, Any]) -> RecordedLengths:
    image = float(body.get("image_mb", 0.0))
    context, steps = 0.0, []
    for each in body["steps"]:
        tokens = float(each["think_s"]) * TOKENS_PER_SECOND
        context += tokens
        steps.append(TrajectoryStep(tokens, float(each["dur_s"]), context, str(each["family"])))
        context += float(each.get("output_chars", 0)) / 4
    finished = FinishedTrajectory(str(body["model"]), tuple(steps), str(body["task"]))
    known = (1.0, float(body["model"] == "haiku"), math.log1p(image))
    return RecordedLengths(str(body["task"]), known, finished)


def points(recorded: Sequence[RecordedLengths], seed: int) -> list[Point]:
    """Return what predictors say of all trajectories, each fed the other folds alone."""
    prompts = sorted({each.prompt for each in recorded})
    order = np.random.default_rng(seed).permutation(len(prompts))
    fold_of = {prompts[place]: number % FOLDS for number, place in enumerate(order.tolist())}
    found: list[Point] = []
    for fold in range(FOLDS):
        known = [each for each in recorded if fold_of[each.prompt] != fold]
        predictors = _trained([each.finished for each in known], seed)
        line = _line(known)
        for each in recorded:
            if fold_of[each.prompt] == fold:
                found += _points_of(each, predictors, math.expm1(float(np.dot(line, each.known))))
    return found


def _trained(finished: Sequence[FinishedTrajectory], seed: int) -> list[Predictor]:
    predictors: list[Predictor] = [History(), BoostedPredictor()]
    for predictor in predictors:
        for each in finished:
            predictor.observe(each)
        predictor.use(predictor.refit(seed))
    return predictors


def _line(known: Sequence[RecordedLengths]) -> np.ndarray:
    """Return the least-squares line from what is known before the first step to the log of all tokens."""
    totals = [scale(remaining(each.finished.steps)[0][0]) for each in known]
    found: np.ndarray = np.linalg.lstsq(
        np.array([each.known for each in known]), np.array(totals), rcond=None
    )[0]
    return found


def _points_of(
    recorded: RecordedLengths, predictors: Sequence[Predictor], by_prompt: float
) -> Iterator[Point]:
    left, sampled = remaining(recorded.finished.steps), 0.0
    for features in _after(recorded.finished):
        sampled = left[0][0] - left[features.steps][0]
        said = {"prompt": max(by_prompt - sampled, 0.0)}
        for predictor in predictors:
            prediction = predictor.predict(features)
            assert prediction is not None
            said[predictor.name] = prediction.tokens
        yield Point(recorded.prompt, features.steps, sampled, left[features.steps][0], said)


def _after(finished: FinishedTrajectory) -> Iterator[Features]:
    progress = Progress(finished.task, finished.group, finished.prompt_tokens)
    for number, step in enumerate(finished.steps):
        if number in AFTER:
            yield progress.features()
        progress.add(step)


def precision(recorded: Sequence[RecordedLengths], seeds: int = SEEDS) -> list[dict[str, Any]]:
    """Return correlations and recalls after each number of steps."""
    by_seed = [points(recorded, seed) for seed in range(seeds)]
    return [
        _precision_after([[each for each in found if each.steps == steps] for found in by_seed])
        for steps in AFTER
    ]


def _precision_after(by_seed: list[list[Point]]) -> dict[str, Any]:
    row: dict[str, Any] = {"after": by_seed[0][0].steps, "trajectories": len(by_seed[0])}
    for kind in ("left", "total"):
        tables = [_Answers.of(found, total=kind == "total") for found in by_seed]
        sampled = _samples(tables[0].prompts)
        row[kind] = {
            name: {
                "pearson_log": round(mean(each.correlation(name) for each in tables), 3),
                "interval": _interval([mean(t.correlation(name, s) for t in tables) for s in sampled]),
                "recall": round(mean(each.recall(name) for each in tables), 3),
            }
            for name in tables[0].said
        }  # fmt: skip
        row[kind]["boosted_less_history"] = _interval(
            [
                mean(t.correlation("boosted", s) - t.correlation("history", s) for t in tables)
                for s in sampled
            ]
        )
    return row


class _Answers(NamedTuple):
    """Truth and predictions, on the scale of logarithms."""

    prompts: list[str]
    true: np.ndarray
    said: dict[str, np.ndarray]

    @classmethod
    def of(cls, found: list[Point], *, total: bool) -> _Answers:
        found = sorted(found, key=lambda each: (each.prompt, each.left))
        known = np.array([each.sampled if total else 0.0 for each in found])
        said = {
            name: np.log1p(known + np.array([each.said[name] for each in found]))
            for name in found[0].said
        }
        true = np.log1p(known + np.array([each.left for each in found]))
        return cls([each.prompt for each in found], true, said)

    def correlation(self, name: str, chosen: np.ndarray | None = None) -> float:
        """Return Pearson's correlation, of the chosen rows."""
        true, said = self.true, self.said[name]
        if chosen is not None:
            true, said = true[chosen], said[chosen]
        if true.std() == 0 or said.std() == 0:
            return 0.0
        return float(np.corrcoef(true, said)[0, 1])

    def recall(self, name: str) -> float:
        """Return the share of the longest trajectories that are among the longest predicted ones."""
        count = max(1, round(TAIL * len(self.true)))
        longest = set(np.argsort(-self.true, kind="stable")[:count].tolist())
        predicted = set(np.argsort(-self.said[name], kind="stable")[:count].tolist())
        return len(longest & predicted) / count


def _samples(prompts: Sequence[str]) -> list[np.ndarray]:
    """Return rows of bootstrap samples of prompts."""
    chance, places = np.random.default_rng(0), dict[str, list[int]]()
    for place, prompt in enumerate(prompts):
        places.setdefault(prompt, []).append(place)
    names = sorted(places)
    return [
        np.array([p for index in chance.integers(len(names), size=len(names)) for p in places[names[index]]])
        for _ in range(SAMPLES)
    ]  # fmt: skip


def _interval(values: Sequence[float]) -> list[float]:
    """Return the 2.5th and 97.5th percentile."""
    return [round(float(each), 3) for each in np.percentile(values, (2.5, 97.5))]


def cost(recorded: Sequence[RecordedLengths], repeats: int = 500) -> dict[str, Any]:
    """Return the seconds of a fit of `FIT_ROWS` rows, and the milliseconds of one prediction by it."""
    predictor, fed = BoostedPredictor(), 0
    chance = np.random.default_rng(0)
    while fed < FIT_ROWS:
        drawn = recorded[int(chance.integers(len(recorded)))].finished
        factor = float(chance.lognormal(0.0, 0.3))
        steps = tuple(
            TrajectoryStep(
                factor * s.tokens, factor * s.tool_seconds, factor * s.context_tokens, s.kind
            )
            for s in drawn.steps
        )
        finished = FinishedTrajectory(drawn.task, steps, f"{drawn.group}-{fed % 7}")
        predictor.observe(finished)
        fed += len(rows(finished))
    began = time.perf_counter()
    fitted = predictor.refit(0)
    fit_seconds = time.perf_counter() - began
    predictor.use(fitted)
    asked = [features for each in recorded[:50] for features in _after(each.finished)]
    times = []
    for index in range(repeats):
        began = time.perf_counter()
        predictor.predict(asked[index % len(asked)])
        times.append(time.perf_counter() - began)
    return {
        "rows": fed, "fit_seconds": round(fit_seconds, 3), "fit_bytes": len(fitted),
        "predict": quantiles(times),
    }  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this section alone."""
    group = parser.add_argument_group("prediction")
    group.add_argument("--trace", type=Path, help="recorded trajectories, as JSON lines")
    group.add_argument("--divisions", type=int, default=SEEDS, help="of the prompts into folds")


def measure(options: argparse.Namespace) -> Found:
    """Measure, print, and return what was found. Raises SystemExit without LightGBM or a trace."""
    reason = unavailable()
    if reason is not None:
        raise SystemExit(reason)
    if options.trace is None:
        raise SystemExit("prediction needs recorded trajectories: --trace PATH")
    recorded = read(options.trace)
    rows_found, costs = precision(recorded, options.divisions), cost(recorded)
    found: dict[str, Any] = {"precision": rows_found, "cost": costs}
    for row in rows_found:
        print(f"prediction after {row['after']} steps: {row}", flush=True)
    print(f"prediction: {costs}", flush=True)
    return found, missed(found)


def missed(found: dict[str, Any]) -> list[str]:
    """Return the targets that were missed."""
    costs = found["cost"]
    missed_ones = [
        *late("one prediction, p50", costs["predict"]["p50_ms"], PREDICT_MS, "ms"),
        *late(f"a fit of {costs['rows']} rows", costs["fit_seconds"], FIT_SECONDS, "s"),
    ]
    for row in found["precision"]:
        after, total = row["after"], row["total"]
        if total["boosted_less_history"][1] < 0:
            missed_ones.append(f"after {after} steps, boosted is below history: {total}")
        if total["boosted"]["pearson_log"] < WANTED.get(after, -1.0):
            measured = total["boosted"]["pearson_log"]
            missed_ones.append(f"after {after} steps, correlation {measured} < {WANTED[after]}")
    return missed_ones
