"""Answers to ProRL Agent's clients: a finished rollout as the result of a job, written piece by piece.

A result repeats the prompt of each response (``input_ids``), so that one of 35 turns and 32,000 tokens has 4 MB. Tokens are never
read here: the text of a prompt in JSON grows by that of each turn.

Rules
1. ``messages`` are the last conversation of the agent. Each has ``token_ids``; those of all messages, one after the other, are
   the sequence that the model saw and sampled. Of several messages before a response the last one has the tokens of all:
   the template's own belong to no message.
2. ``token_ids`` of a response are the sampled ids, or prompt and response (`TokenIds.FULL`). NeMo RL's client cuts
   ``len(input_ids)`` off ``token_ids`` and ``logprobs``, and so needs the latter.
3. ``resolved`` is true for a reward above 0.99. Without a reward it is false, with ``error`` and ``critical_error``, and ``filter``
   is true: nothing of it may train (I2).
4. ``filter`` is true for an agent that did not end by itself, as ProRL's server has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from contract.rollout_views import RolloutView
from domain.rollouts import STAGES, RolloutOutcome, Stage
from scheduler.runtime.gateway.http import encode_json

#: A reward above this is a resolved instance, as in ProRL's reward server.
RESOLVED: Final = 0.99
#: Error of an agent that did not end by itself, by `rollout.agent.loop.LoopEnd`; the types are those of OpenHands.
_ERRORS: Final = {
    "iterations": "RuntimeError: the agent reached its most iterations",
    "context": "AgentFormatError: the conversation has filled the model's context",
    "stuck": "AgentStuckInLoopError: the agent repeats itself",
    "silent": "AgentFormatError: the agent called no tool",
}
_UNREADABLE: Final = frozenset({"context", "silent"})
_NO_REWARD: Final = "eval"
_OUTCOMES: Final = {
    RolloutOutcome.TIMEOUT: "timeout",
    RolloutOutcome.CANCELLED: "cancelled",
    RolloutOutcome.INFRA_FAILED: "infra_failed",
}


class TokenIds(StrEnum):
    """What ``token_ids`` of a response are."""

    RESPONSE = "response"
    FULL = "full"


class Turn(msgspec.Struct):
    """A turn, with its arrays as JSON text."""

    message: dict[str, Any]
    context_ids: msgspec.Raw
    response_ids: msgspec.Raw
    logprobs: msgspec.Raw
    asked: list[dict[str, Any]] = []
    tools: msgspec.Raw = msgspec.Raw(b"[]")
    follows: int | None = None


class Turns(msgspec.Struct):
    """Turns of a rollout, and what its handler said of them (`contract.rollout_views.RolloutTurns`)."""

    turns: list[Turn] = []
    value: dict[str, Any] = {}
    failed_stage: str = ""


_decoder: Final = msgspec.json.Decoder(Turns)


def turns_of(document: bytes) -> Turns:
    """Return the turns of a native answer."""
    return _decoder.decode(document)


def conversation(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns of the last conversation, which the last turn ends."""
    found: list[Turn] = []
    number: int | None = len(turns) - 1
    while number is not None and 0 <= number < len(turns):
        found.append(turns[number])
        number = turns[number].follows
    return found[::-1]


def pieces(
    view: RolloutView,
    turns: Turns,
    *,
    instance_id: Any,
    trajectory_id: int | str | None,
    patch: str | None,
    token_ids: TokenIds = TokenIds.RESPONSE,
) -> Iterator[bytes]:
    """Yield the result of a job as JSON, in pieces of one message."""
    chain = conversation(turns.turns)
    facts = {
        "instance_id": instance_id,
        "trajectory_id": trajectory_id,
        **judgement(view, turns),
        "git_patch": patch,
        "reward": view.reward,
        "job_id": view.id,
        "timing": timing(view),
        "tools": chain[0].tools if chain else [],
    }
    yield encode_json(facts)[:-1] + b',"messages":['
    first = True
    for message in messages(chain, token_ids):
        yield message if first else b"," + message
        first = False
    yield b"]}"


def judgement(view: RolloutView, turns: Turns) -> dict[str, Any]:
    """Return what a result says about the end of a rollout."""
    end = _end_of(view, turns)
    completed = view.outcome is RolloutOutcome.COMPLETED
    error, critical = _ERRORS.get(end), None
    if not completed:
        error = f"{view.outcome}: {view.reason}" if view.reason else str(view.outcome)
        critical = _OUTCOMES.get(view.outcome) if view.outcome is not None else None
        critical = critical or turns.failed_stage or Stage.RUN.value
    elif view.reward is None:
        error, critical = view.reason or "there is no reward", _NO_REWARD
    success = completed and not _ERRORS.get(end)
    return {
        "success": success,
        "resolved": completed and view.reward is not None and view.reward > RESOLVED,
        "finish": success and end == "finished",
        "error": error,
        "critical_error": critical,
        "end_properly": end not in _UNREADABLE and turns.failed_stage != Stage.INIT,
        "filter": critical is not None or not success,
    }


def _end_of(view: RolloutView, turns: Turns) -> str:
    """Return how the agent's loop ended, as its handler states it; empty: it does not."""
    for stated in (turns.value, view.detail):
        if isinstance(end := stated.get("end"), str):
            return end
    return ""


def timing(view: RolloutView) -> dict[str, Any]:
    """Return the times of a rollout by the names of ProRL's timer, and by those of its README."""
    active = {times.stage: times.active_seconds for times in view.times}
    counted = sum(active.values())
    seconds = {stage.value: active.get(stage, 0.0) for stage in Stage}
    seconds["others"] = max(0.0, (view.total_seconds or 0.0) - counted)
    over = view.outcome is RolloutOutcome.TIMEOUT
    return {
        **{f"{name}_time": found for name, found in seconds.items()},
        "counted_elapsed": counted,
        "timeout_triggered": over,
        **seconds,
        "timeout": over,
    }


def status_of(total: int, stages: Mapping[str, int]) -> dict[str, Any]:
    """Return what ``/status`` says of unfinished jobs: the members of both engines of ProRL's server.

    ``stages``: as `contract.rollout_status.RolloutsStatus` has them; jobs in none wait for INIT.
    """
    counts: dict[str, int] = {}
    for stage in STAGES:
        active, queued = stages.get(stage.value, 0), stages.get(f"{stage.value}/queued", 0)
        if stage is Stage.INIT:
            queued += total - sum(stages.values())
        counts |= {
            stage.value: active, f"active_{stage.value}": active, f"{stage.value}_queue": queued,
        }  # fmt: skip
    return {
        "status": "running", "pending_jobs": total, "running": True, "jobs": total, "total": total, **counts,
    }  # fmt: skip


def messages(chain: Sequence[Turn], token_ids: TokenIds) -> Iterator[bytes]:
    """Yield the messages of a conversation as JSON."""
    seen = b""  # the ids of the conversation so far, as JSON without brackets
    for turn in chain:
        context = _inside(turn.context_ids)
        asked = turn.asked or ([{"role": "user", "content": ""}] if context else [])
        for number, message in enumerate(asked):
            own = context if number == len(asked) - 1 else b""
            yield _message(message, own, b"null", b"null")
        seen = _joined(seen, context)
        response, logprobs = _inside(turn.response_ids), bytes(turn.logprobs)
        own, given = response, logprobs
        if token_ids is TokenIds.FULL:
            own = _joined(seen, response)
            if logprobs != b"null":
                given = b"[%b]" % _joined(_zeros(seen), _inside(turn.logprobs))
        yield _message(turn.message, own, b"[%b]" % seen, given)
        seen = _joined(seen, response)


def _message(
    message: Mapping[str, Any], token_ids: bytes, input_ids: bytes, logprobs: bytes
) -> bytes:
    found: dict[str, Any] = {"role": message.get("role", "assistant"), "content": _text(message)}
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [call.get("function", call) for call in calls]
    return b'%b,"token_ids":[%b],"input_ids":%b,"logprobs":%b}' % (
        encode_json(found)[:-1], token_ids, input_ids, logprobs,
    )  # fmt: skip


def _text(message: Mapping[str, Any]) -> str:
    """Return the content of a message as text, with its reasoning."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    text = content if isinstance(content, str) else ""
    thoughts = message.get("reasoning_content")
    return f"<think>\n{thoughts}\n</think>\n\n{text}" if thoughts else text


def _inside(array: msgspec.Raw) -> bytes:
    """Return the text of a JSON array without its brackets."""
    return bytes(array)[1:-1]


def _joined(one: bytes, other: bytes) -> bytes:
    return one + b"," + other if one and other else one or other


def _zeros(ids: bytes) -> bytes:
    """Return a zero for each id."""
    return b",".join([b"0.0"] * (ids.count(b",") + 1)) if ids else b""
