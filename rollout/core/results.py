"""Results of rollouts: how a stage's answer becomes a reward, and an end becomes a `RolloutResult`.

Rules
1. Every end has a well-formed result, whatever the handler answered.
2. A reward is a finite number, and only a completed rollout has one (I2). A completed rollout without one has the reason.
3. An answer that is no reward fails the rollout: it is an error of the handler, never reward 0.
4. An error keeps its type: the reason names stage and type, the log has the traceback. An error of the infrastructure that
   the handler passes on ends the rollout `infra_failed`, any other `failed`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from domain.rollouts import RolloutOutcome, RolloutResult, Stage
from rollout.core.records import Facts

MAX_REASON_CHARACTERS: Final = 2000
_NO_REASON: Final = "EVAL gave no reward and no reason"


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error of a handler, with its type."""

    #: Name of the class, as in ``ValueError``.
    type: str
    message: str = ""
    traceback: str = ""
    #: It is one of the infrastructure, which the handler passed on: a `CapacityError`, such as `NoBackendAnswers`.
    infra: bool = False

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class Conclusion(msgspec.Struct, frozen=True):
    """How a rollout ends, before it is stored."""

    outcome: RolloutOutcome
    reason: str = ""
    reward: float | None = None
    #: Stage in which it ended.
    stage: Stage | None = None
    failure: Failure | None = None


class NonsenseAnswer(ValueError):
    """A handler answered what is no result of its stage."""


def checked_mapping(stage: Stage, answer: object) -> dict[str, Any]:
    """Return what INIT or RUN answered: a mapping, or nothing. Raises NonsenseAnswer."""
    if answer is None:
        return {}
    if isinstance(answer, dict) and all(isinstance(key, str) for key in answer):
        return answer
    raise NonsenseAnswer(
        f"{stage.upper()} answered a {type(answer).__name__}: return a dict, or None"
    )


def conclusion_of(answer: object) -> Conclusion:
    """Return the end that an answer of EVAL means. Raises NonsenseAnswer.

    An answer is a number, None, or a dict with ``reward`` and ``reason``.
    """
    reason = ""
    if isinstance(answer, dict):
        reward, reason = answer.get("reward"), answer.get("reason", "")
        if not isinstance(reason, str):
            raise NonsenseAnswer(f"EVAL answered reason {reason!r:.100}: give text")
    else:
        reward = answer
    if isinstance(reward, bool):
        reward = float(reward)
    if reward is None:
        return Conclusion(RolloutOutcome.COMPLETED, reason or _NO_REASON)
    if not isinstance(reward, int | float) or not _is_finite(reward):
        raise NonsenseAnswer(f"EVAL answered reward {reward!r:.100}: give a finite number, or None")
    return Conclusion(RolloutOutcome.COMPLETED, reason, float(reward))


def failed(stage: Stage, failure: Failure) -> Conclusion:
    """Return the end of a rollout whose handler raised."""
    reason = f"{stage.upper()} raised {failure}"
    outcome = RolloutOutcome.INFRA_FAILED if failure.infra else RolloutOutcome.FAILED
    return Conclusion(outcome, reason, stage=stage, failure=failure)


def result_of(facts: Facts, conclusion: Conclusion) -> RolloutResult:
    """Return the result of a rollout that ended so."""
    completed = conclusion.outcome is RolloutOutcome.COMPLETED
    return RolloutResult(
        outcome=conclusion.outcome,
        reward=conclusion.reward if completed else None,
        reason=_bounded(conclusion.reason),
        times=facts.times(),
        turns=facts.turns,
        prompt_tokens=facts.prompt_tokens,
        response_tokens=facts.response_tokens,
        weights_versions=facts.weights_versions,
    )


def detail_of(answer: object) -> Mapping[str, Any]:
    """Return what ``final_result`` or an exception callback adds; nothing of an answer that is no dict."""
    return answer if isinstance(answer, dict) else {}


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an int beyond every float
        return False


def _bounded(text: str) -> str:
    if len(text) <= MAX_REASON_CHARACTERS:
        return text
    return f"{text[: MAX_REASON_CHARACTERS - 1]}…"
