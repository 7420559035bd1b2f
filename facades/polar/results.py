"""Results in Polar's form: a rollout as a session, its segments as traces.

| rollout | session |
|---|---|
| `completed` | ``COMPLETED``; the reward of each trace is a number, or null without one |
| `timeout` | ``TIMEOUT``, reward null |
| `failed`, `infra_failed`, `cancelled` | ``ERROR``, reward null: never 0 (I2) |

Tokens are JSON text, from the native answer to the one of the door: lists of them would take many times the memory and the time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from domain.rollouts import RolloutOutcome, StageTimes

#: Reason of the rollouts that an early stop cancels.
EARLY_STOP: Final = "early stop"
_STOPPED: Final = re.compile(rf"{EARLY_STOP}: (\d+) of ")
_NOTHING: Final = msgspec.Raw(b"[]")
#: Traces are merged by prefix, whatever builder the task names.
BUILDER: Final = "prefix_merging"
_STATUS: Final = {
    RolloutOutcome.COMPLETED.value: "COMPLETED",
    RolloutOutcome.TIMEOUT.value: "TIMEOUT",
}
#: Queued and active milliseconds of each stage.
_TIMES: Final = {
    "init": ("register_to_init_queue_ms", "init_ms"),
    "run": ("ready_queue_ms", "run_ms"),
    "eval": ("postrun_queue_ms", "eval_ms"),
}


class PolarSegment(msgspec.Struct):
    """Tokens to train on, each array as JSON text."""

    prompt_ids: msgspec.Raw
    response_ids: msgspec.Raw
    loss_mask: msgspec.Raw
    logprobs: msgspec.Raw = msgspec.Raw(b"null")


class PolarSession(msgspec.Struct):
    """A rollout as ``GET /rollouts/{id}`` shows it: what is read of it here."""

    id: str
    outcome: RolloutOutcome | None = None
    reward: float | None = None
    reason: str = ""
    worker: str = ""
    turns: int = 0
    times: list[StageTimes] = []
    total_seconds: float | None = None
    weights_versions: msgspec.Raw = msgspec.Raw(b"null")
    segments: list[PolarSegment] | None = None
    log_problem: str = ""


def is_usable(session: PolarSession) -> bool:
    """Whether a finished rollout has tokens to train on."""
    if session.outcome is not RolloutOutcome.COMPLETED:
        return False
    return any(
        segment.prompt_ids != _NOTHING
        and segment.response_ids != _NOTHING
        and b"1" in bytes(segment.loss_mask)
        for segment in session.segments or ()
    )


def session_result(
    task_id: str, session: PolarSession, metadata: Mapping[str, Any], stopped: int | None = None
) -> dict[str, Any]:
    """Return a finished rollout as Polar's ``SessionResult``."""
    status = "ERROR" if session.outcome is None else _STATUS.get(session.outcome, "ERROR")
    error = _error_of(session)
    early = {}
    if found := _STOPPED.match(session.reason):  # its number is not stored before all are cancelled
        usable = int(found[1]) if stopped is None else stopped
        early = {
            "early_stop_cancelled": True, "fully_masked": True, "early_stop_usable_sessions": usable,
            "early_stop_reason": "minimum_usable_sessions_reached",
        }  # fmt: skip
    traces = [_trace(segment, session) for segment in session.segments or ()]
    return {
        "session_id": session.id,
        "task_id": task_id,
        "status": status,
        "trajectory": {
            "status": status,
            "error": error,
            "traces": [] if early else traces,
            "metadata": {
                "builder": BUILDER, "session_id": session.id, "task_id": task_id,
                "record_count": session.turns, "trace_count": len(traces),
                "task_metadata": metadata, **early,
            },
        },
        "timing": _timing(session),
        "node_id": session.worker or None,
        "error": error,
        "metadata": {**metadata, **early},
    }  # fmt: skip


def _error_of(session: PolarSession) -> str | None:
    if session.outcome is RolloutOutcome.COMPLETED:
        if session.segments is None:
            return session.log_problem or "the tokens of this session are deleted"
        return session.reason if session.reward is None else None
    return f"{session.outcome}: {session.reason or 'no reason is known'}"


def _trace(segment: PolarSegment, session: PolarSession) -> dict[str, Any]:
    return {
        "prompt_ids": segment.prompt_ids,
        "response_ids": segment.response_ids,
        "loss_mask": segment.loss_mask,
        "prompt_messages": [],
        "response_messages": [],
        "tools": None,
        "finish_reason": None,
        "response_logprobs": segment.logprobs,
        "reward": session.reward,
        "metadata": {"weights_versions": session.weights_versions},
    }


def _timing(session: PolarSession) -> dict[str, float]:
    found = {name: 0.0 for pair in _TIMES.values() for name in pair}
    for stage in session.times:
        queued, active = _TIMES[stage.stage.value]
        found[queued] = 1000 * stage.queued_seconds
        found[active] = 1000 * stage.active_seconds
    end_to_end = 1000 * (session.total_seconds or 0.0)
    return {**found, "postrun_ms": found["eval_ms"], "e2e_ms": end_to_end}
