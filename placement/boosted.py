"""Predictor ``boosted``: gradient-boosted trees over features, which correct history as far as they have proved to.

Needs LightGBM (``pip install tangram[predict]``); without it, or with too few trajectories, history alone predicts, and
`BoostedPredictor.problem` says why.

Theory of operation. `fit` divides the groups of the finished trajectories into `FOLDS` parts. For each part, trees learn from the
others by how much history was wrong, on the scale of predictors, for tokens and for tool seconds; history then leaves the
trajectory itself out. What these trees say about their part is out-of-fold: `placement.shrinking` weighs
corrections by it, and it gives sigma. A prediction is history plus the weighted mean correction of all parts' trees.

Rules
1. `refit` reads what was observed before it and changes nothing: it may run in a thread beside the others. Its bytes are a
   function of the observations and of the seed.
2. A group with finished trajectories counts as unseen for a random half of them, since the first samples of a prompt
   are predicted without any.
3. What was fitted stays in use until `use` gets another one; bytes that cannot be read are refused.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from itertools import starmap
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from domain.errors import Unreadable
from placement.facts import Prediction
from placement.features import (
    NAMES,
    Features,
    FinishedTrajectory,
    TrainingRow,
    rows,
    scale,
    unscale,
)
from placement.history import Estimate, History, observation
from placement.shrinking import FoldErrors, StepTable, sigmas, weights

FOLDS: Final = 4
#: Groups below which nothing is fitted.
LEAST_GROUPS: Final = 5 * FOLDS
#: The last finished trajectories that trees learn from.
MOST_TRAJECTORIES: Final = 2000
#: Kinds of tools with columns of their own, the most used ones.
KINDS: Final = 12
ROUNDS: Final = 80
_PARAMETERS: Final = {
    "objective": "regression",
    # Random thresholds: as good as the best ones on thousands of trajectories, better on a hundred.
    "extra_trees": True,
    "learning_rate": 0.08,
    "num_leaves": 8,
    "min_data_in_leaf": 20,
    "lambda_l2": 5.0,
    "feature_fraction": 0.6,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "max_bin": 63,
    # Equal input gives equal trees.
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}


@cache
def unavailable() -> str | None:
    """Return why LightGBM cannot be used; None when it can."""
    try:
        import_module("lightgbm")
    except ImportError as error:
        return f"LightGBM is not installed ({error}): pip install tangram[predict]"
    except OSError as error:  # a wheel without the system's OpenMP
        return f"LightGBM cannot be loaded ({error}): install the system package libgomp1"
    return None


class Fitted(msgspec.Struct, frozen=True):
    """Trees and how far they are trusted."""

    #: Kinds of tools that have columns, in their order.
    kinds: list[str]
    #: A model of each part, as LightGBM writes it.
    tokens: list[str]
    tool_seconds: list[str]
    token_weights: StepTable
    tool_weights: StepTable
    sigma: StepTable
    #: What was learnt from.
    trajectories: int
    rows: int


class LearntTrajectory(msgspec.Struct, frozen=True):
    """Rows of a finished trajectory, at the steps of the grid that it reached."""

    task: str
    group: str
    rows: list[TrainingRow]


class BoostedMemory(msgspec.Struct, frozen=True):
    """State of a `BoostedPredictor`."""

    history: bytes
    learnt: list[LearntTrajectory]
    fitted: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_fitted = msgspec.msgpack.Decoder(Fitted).decode
_decode_memory = msgspec.msgpack.Decoder(BoostedMemory).decode


class BoostedPredictor:
    """History, corrected by trees."""

    name = "boosted"

    def __init__(self) -> None:
        self.history = History()
        self._learnt: deque[LearntTrajectory] = deque(maxlen=MOST_TRAJECTORIES)
        self._fitted = b""
        self._trees: _Trees | None = None

    @property
    def problem(self) -> str | None:
        """Why history alone predicts; None while trees correct it."""
        if self._trees is not None:
            return None
        return unavailable() or (
            f"history alone predicts until trajectories of {LEAST_GROUPS} groups have finished"
        )

    def observe(self, finished: FinishedTrajectory, texts: Sequence[str] = ()) -> None:
        """Add a finished trajectory; texts teach it nothing. Raises InvalidRequest for a number that is not finite and ≥ 0."""
        learnt = LearntTrajectory(finished.task, finished.group, rows(finished))
        self.history.add(observation(learnt.task, learnt.group, learnt.rows))
        self._learnt.append(learnt)

    def refit(self, seed: int) -> bytes:
        """Return trees for `use`; nothing while LightGBM or trajectories are missing."""
        learnt = list(self._learnt)
        enough = len({_group(each, index) for index, each in enumerate(learnt)}) >= LEAST_GROUPS
        if unavailable() is not None or not enough:
            return b""
        return _encode(fit(learnt, seed))

    def use(self, fitted: bytes) -> None:
        """Use what `refit` returned; nothing changes for nothing. Raises Unreadable."""
        if not fitted or unavailable() is not None:
            return
        try:
            self._trees = _Trees(_decode_fitted(fitted))
        except (msgspec.MsgspecError, ValueError) as error:
            raise Unreadable(f"trees of a predictor cannot be read: {error}") from error
        except Exception as error:  # LightGBM's own, which is not imported here
            raise Unreadable(f"LightGBM cannot read the trees of a predictor: {error}") from error
        self._fitted = fitted

    def predict(self, features: Features, text: str | None = None) -> Prediction | None:
        """Return what is left; None before any trajectory has finished."""
        base = self.history.estimate(features.task, features.group, features.steps)
        if base is None or self._trees is None:
            return self.history.predict(features)
        return self._trees.correct(base, features)

    def remember(self) -> bytes:
        """Return the state as bytes."""
        memory = BoostedMemory(self.history.remember(), [*self._learnt], self._fitted)
        return _encode(memory)

    def recall(self, memory: bytes) -> None:
        """Restore what `remember` returned. Raises Unreadable."""
        try:
            found = _decode_memory(memory)
        except msgspec.MsgspecError as error:
            raise Unreadable(f"the state of predictor boosted cannot be read: {error}") from error
        self.history.recall(found.history)
        self._learnt.clear()
        self._learnt.extend(found.learnt)
        self.use(found.fitted)


class _Trees:
    """Fitted trees, ready to be asked."""

    def __init__(self, fitted: Fitted) -> None:
        booster = import_module("lightgbm").Booster
        self._fitted = fitted
        self._tokens = [booster(model_str=text) for text in fitted.tokens]
        self._tool_seconds = [booster(model_str=text) for text in fitted.tool_seconds]

    def correct(self, base: Estimate, features: Features) -> Prediction:
        """Return what history says, corrected."""
        fitted, at = self._fitted, (features.steps, base.siblings)
        row = np.array([vector(features, base, fitted.kinds)])
        tokens = base.tokens + fitted.token_weights.at(*at) * _mean(self._tokens, row)
        seconds = base.tool_seconds + fitted.tool_weights.at(*at) * _mean(self._tool_seconds, row)
        sigma = fitted.sigma.at(*at)
        return Prediction(unscale(tokens), unscale(seconds), sigma, source=BoostedPredictor.name)


def _mean(boosters: Sequence[Any], row: np.ndarray) -> float:
    return float(sum(each.predict(row, num_threads=1)[0] for each in boosters)) / len(boosters)


def vector(features: Features, base: Estimate, kinds: Sequence[str]) -> list[float]:
    """Return the columns of a row: numbers, history, and the use of each kind."""
    uses = {each.kind: each for each in features.kinds}
    columns = [*features.numbers, *base]
    for kind in kinds:
        use = uses.get(kind)
        columns += (float("nan"), 0.0) if use is None else (float(use.since), float(use.steps))
    return columns


class _TrainingTable(NamedTuple):
    """Rows of all trajectories, for training."""

    #: Part that each row belongs to.
    parts: np.ndarray
    steps: np.ndarray
    siblings: np.ndarray
    #: Truth less history.
    tokens: np.ndarray
    tool_seconds: np.ndarray
    columns: np.ndarray


def fit(learnt: Sequence[LearntTrajectory], seed: int) -> Fitted:
    """Fit trees to trajectories of at least `FOLDS` groups."""
    chance = np.random.default_rng(seed)
    kinds = _most_used(learnt)
    table = _table(learnt, kinds, chance)
    data = _dataset(table.columns)
    tokens, token_errors = _corrections(data, table, table.tokens, seed)
    seconds, tool_errors = _corrections(data, table, table.tool_seconds, seed)
    token_weights = weights(token_errors)
    return Fitted(
        kinds, tokens, seconds, token_weights, weights(tool_errors),
        sigmas(token_errors, token_weights), len(learnt), len(table.steps),
    )  # fmt: skip


def _most_used(learnt: Sequence[LearntTrajectory]) -> list[str]:
    """Return the kinds that most trajectories use."""
    used = Counter(use.kind for each in learnt if each.rows for use in each.rows[-1].features.kinds)
    return sorted(used, key=lambda kind: (-used[kind], kind))[:KINDS]


def _group(learnt: LearntTrajectory, index: int) -> tuple[str, ...]:
    """Return what is in one part together: a group, else the trajectory itself."""
    return (learnt.task, learnt.group) if learnt.group else (learnt.task, "", str(index))


def _table(
    learnt: Sequence[LearntTrajectory], kinds: Sequence[str], chance: np.random.Generator
) -> _TrainingTable:
    history = History(decay=1.0)
    seen = [observation(each.task, each.group, each.rows) for each in learnt]
    for one in seen:
        history.add(one)
    part_of = _parts(learnt, chance)
    found: list[list[float]] = []
    for index, each in enumerate(learnt):
        group = each.group if chance.random() < 0.5 else ""
        profile = history.profile(each.task, group, without=seen[index])
        if profile is None:
            continue
        part = part_of[_group(each, index)]
        for row, base in zip(each.rows, starmap(Estimate, profile.T.tolist()), strict=False):
            found.append([
                part, row.features.steps, base.siblings,
                scale(row.tokens) - base.tokens, scale(row.tool_seconds) - base.tool_seconds,
                *vector(row.features, base, kinds),
            ])  # fmt: skip
    table = np.array(found, dtype=float)
    parts, steps, siblings, tokens, tool_seconds = table[:, :5].T
    return _TrainingTable(parts, steps, siblings, tokens, tool_seconds, table[:, 5:])


def _parts(
    learnt: Sequence[LearntTrajectory], chance: np.random.Generator
) -> dict[tuple[str, ...], int]:
    """Return the part of each group."""
    groups = sorted({_group(each, index) for index, each in enumerate(learnt)})
    order = chance.permutation(len(groups)).tolist()
    return {groups[place]: number % FOLDS for number, place in enumerate(order)}


def _dataset(columns: np.ndarray) -> Any:
    """Return the rows in bins, which all parts share."""
    lightgbm = import_module("lightgbm")
    parameters = {**_PARAMETERS, "feature_pre_filter": False}
    return lightgbm.Dataset(
        columns, np.zeros(len(columns)), params=parameters, free_raw_data=False
    ).construct()


def _corrections(
    data: Any, table: _TrainingTable, missing: np.ndarray, seed: int
) -> tuple[list[str], FoldErrors]:
    """Return the trees that leave out each part, and what they say about it."""
    lightgbm = import_module("lightgbm")
    models, said = [], np.zeros(len(missing))
    for part in range(FOLDS):
        out = table.parts == part
        chosen = data.subset(np.flatnonzero(~out)).construct().set_label(missing[~out])
        booster = lightgbm.train({**_PARAMETERS, "seed": seed}, chosen, num_boost_round=ROUNDS)
        if out.any():
            said[out] = booster.predict(table.columns[out], num_threads=1)
        models.append(booster.model_to_string())
    return models, FoldErrors(table.steps, table.siblings, missing, said)


#: Columns of a row before those of kinds.
COLUMNS: Final = (*NAMES, *(f"history_{name}" for name in Estimate._fields))
