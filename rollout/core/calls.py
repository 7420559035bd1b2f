"""Calls of a stage: the key of each action, what is submitted, and how its end continues the rollout.

Rules
1. The key of a call names rollout, generation, evaluation, stage and the call itself: the name that the handler gave, else its
   number in the stage. A handler that continues makes the same calls in the same order, and gets their stored ends.
2. A handler that asks for something else under the key of a stored call differs from its log; its rollout fails,
   since another action under another key could do the same work twice.
3. The time limit of an action is at most what remains of its stage when it is stored.
4. A call that ended unknown ends the rollout: it may have run (I3). In an environment without a network that is lost, or
   that is given up since its stage is INIT or EVAL, nothing is left of it: INIT follows again, of EVAL EVAL alone. That of a command in a
   session is unknown only where a look at the session does not say it (`rollout.core.session_looks`).
5. What a handler gets is bounded: longer text of a result is cut at a character, and ``truncated`` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from domain.action import Outcome
from domain.confinement import NETWORK_NONE
from domain.rollouts import Stage
from rollout.core.records import CALL, OBSERVATION, StoredCall, digest
from rollout.core.stage_machine import RolloutMachine
from rollout.ports import ActionEnd, Record

#: Of all text in one result.
MAX_OBSERVATION_BYTES: Final = 1024 * 1024
#: Shortest time limit that an action gets.
MIN_TIMEOUT_SECONDS: Final = 0.001


class DivergedFromLog(Exception):
    """The handler asks for something else than its log has under this key."""


def call_key(rollout: str, generation: int, stage: Stage, name: str, evaluation: int = 0) -> str:
    """Return the key under which the action of a call is submitted."""
    again = f".{evaluation}" if evaluation else ""
    return f"{rollout}/{generation}{again}/{stage.value}/{name}"


def _key_of(machine: RolloutMachine, name: str) -> str:
    facts = machine.facts
    return call_key(machine.rollout.id, facts.generation, machine.stage, name, facts.evaluation)


def known_call(machine: RolloutMachine, name: str, members: Mapping[str, Any]) -> StoredCall | None:
    """Return the stored call of this name; None: it is new. Raises DivergedFromLog."""
    key = _key_of(machine, name)
    call = machine.facts.calls.get(key)
    if call is not None and call.digest != digest(members):
        raise DivergedFromLog(
            f"call {name} of {machine.stage.upper()} differs from the one in the log: a handler makes the"
            " same calls in the same order when it continues, or gives each a name of its own"
        )
    return call


def new_call(
    machine: RolloutMachine, name: str, members: Mapping[str, Any], remaining_seconds: float
) -> Record:
    """Return the record of a call that is to be submitted with these members."""
    rollout = machine.rollout
    trajectory = str(members.get("trajectory") or machine.trajectory)
    submitted = {**members, "task": rollout.task, "trajectory": trajectory}
    if math.isfinite(remaining_seconds) and members.get("kind", "exec") != "lease":
        asked = members.get("timeout_seconds")
        limit = remaining_seconds if asked is None else min(float(asked), remaining_seconds)
        submitted["timeout_seconds"] = max(limit, MIN_TIMEOUT_SECONDS)
    key = _key_of(machine, name)
    header = {
        "key": key,
        "digest": digest(members),
        "trajectory": trajectory,
        "members": submitted,
    }
    return machine.record(CALL, header)


def observation(machine: RolloutMachine, key: str, end: ActionEnd) -> Record:
    """Return the record of how an action ended."""
    return machine.record(OBSERVATION, {"key": key, "end": msgspec.to_builtins(bounded(end))})


def interruption(
    machine: RolloutMachine, call: StoredCall, end: ActionEnd
) -> Callable[[], None] | None:
    """Return how an end interrupts its stage, for the machine to take; None: it is data for the handler."""
    if end.outcome == Outcome.UNKNOWN:
        why = f"action {end.id} ended unknown: {end.detail or 'it may have run'}"
        is_gone = end.environment_lost or machine.stage is not Stage.RUN
        if is_gone and _leaves_nothing(machine, call):
            alone = machine.stage is Stage.EVAL and not end.environment_lost
            return partial(machine.evaluation_lost if alone else machine.environment_lost, why)
        return partial(machine.broken, why)
    if end.outcome != Outcome.INFRA_FAILED:
        return None
    why = f"action {end.id} is infra_failed: {end.detail}"
    if machine.facts.request.environment is None or call.members.get("kind", "exec") == "call":
        return partial(machine.broken, why)
    return partial(machine.environment_lost, why)


def _leaves_nothing(machine: RolloutMachine, call: StoredCall) -> bool:
    """Say whether all that a call may have done is gone with its environment, which reaches nothing else."""
    environment = machine.facts.request.environment
    if environment is None or call.members.get("kind", "exec") != "exec":
        return False
    network: str = environment.get("network", NETWORK_NONE)
    return network == NETWORK_NONE


def bounded(end: ActionEnd, limit_bytes: int = MAX_OBSERVATION_BYTES) -> ActionEnd:
    """Return ``end`` with at most so many bytes of text in its result."""
    if end.result is None:
        return end
    budget = _Budget(limit_bytes)
    result = {key: budget.cut(value) for key, value in end.result.items()}
    if budget.exceeded:
        result["truncated"] = True
    return msgspec.structs.replace(end, result=result)


class _Budget:
    """Bytes that are left for the values of one result."""

    def __init__(self, limit_bytes: int) -> None:
        self._left = limit_bytes
        self.exceeded = False

    def cut(self, value: Any) -> Any:
        """Return a value with as much of its text as fits."""
        match value:
            case str():
                encoded = value.encode("utf-8", "replace")
                return self._taken(encoded).decode("utf-8", "ignore")
            case dict():
                return {self.cut(key): self.cut(each) for key, each in value.items()}
            case list() | tuple():
                return [self.cut(each) for each in value] if self._left else []
        return value

    def _taken(self, content: bytes) -> bytes:
        part = content[: max(0, self._left)]
        self.exceeded = self.exceeded or len(part) < len(content)
        self._left -= len(part)
        return part
