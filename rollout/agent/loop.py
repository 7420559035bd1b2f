"""Agent loop: from the model's answers and the tools' observations to the next step. Pure: a function of both.

The loop asks the model, calls the tools that its answer names, gives it the observations, and asks again, until one of the
`LoopEnd`s. The caller does each `step` and tells its outcome by one method; after a crash, another caller does the same
steps with the stored outcomes.

| step | outcome |
|---|---|
| `AskModel` | `answered`, or `overflowed` when the context has no room |
| `MakeCalls` | `observed`, with one observation for each call in its order |
| `LoopEnded` | none: the loop is over |

Rules
1. Calls of one answer are made in their order. A call of a tool that is not there, or with arguments that are no JSON object, is
   not made: its observation says what is wrong.
2. A call of a finishing tool ends the loop when the calls before it are made. Its arguments are the agent's result.
3. An answer without calls is the result where the agent has no finishing tool. Else the agent is reminded, at most
   `max_reminders` times in a row. An answer that could not be read, or was cut at its length, is a reminder that says so.
4. The same calls with the same observations, `stuck_after` times in a row, are an agent that is stuck.
5. ``max_iterations`` counts answers of the model.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from rollout.agent.observations import MAX_CHARACTERS
from rollout.tokens.chat_template import ChatMessage

_SHOWN_CHARACTERS: Final = 80
_CUT: Final = "Your answer was cut off because it is too long. Answer in fewer words."
_REMINDER: Final = "Continue. Call a tool, or call {finish} when you are done."
_UNREADABLE: Final = "Your answer could not be read: {problem}. Call tools as described."


class LoopEnd(StrEnum):
    """Why a loop ended."""

    FINISHED = "finished"  # a finishing tool was called
    ANSWERED = "answered"  # an answer without calls, where that is the result
    ITERATIONS = "iterations"  # max_iterations
    CONTEXT = "context"  # no token of a response fits behind the conversation
    STUCK = "stuck"  # the same calls gave the same observations
    SILENT = "silent"  # no calls in spite of reminders

    @property
    def properly(self) -> bool:
        """Whether the agent ended the loop itself."""
        return self in {LoopEnd.FINISHED, LoopEnd.ANSWERED}


class LoopLimits(msgspec.Struct, frozen=True):
    """Bounds of a loop."""

    max_iterations: int = 100
    max_reminders: int = 3
    stuck_after: int = 4
    #: Of one observation; a longer one is cut in its middle.
    max_observation_characters: int = MAX_CHARACTERS


class AgentTools(msgspec.Struct, frozen=True):
    """Names of the tools that an agent may call."""

    names: frozenset[str] = frozenset()
    #: Those that end the loop; the first one is named in reminders.
    finishing: tuple[str, ...] = ()


class AgentCall(msgspec.Struct, frozen=True):
    """One call of a tool, as the model made it."""

    id: str
    name: str
    arguments: dict[str, Any]


class AskModel(NamedTuple):
    """Ask with what is new in the conversation."""

    messages: Sequence[ChatMessage]


class MakeCalls(NamedTuple):
    """Make these calls, one after the other."""

    calls: Sequence[AgentCall]


class LoopEnded(NamedTuple):
    """The loop is over."""

    end: LoopEnd
    #: Arguments of the finishing call, or ``{"answer": text}``; empty for an end that is not proper.
    result: Mapping[str, Any] = {}


LoopStep = AskModel | MakeCalls | LoopEnded


class AgentLoop:
    """One loop. ``step`` is what to do next."""

    def __init__(
        self,
        opening: Sequence[ChatMessage],
        tools: AgentTools,
        limits: LoopLimits | None = None,
    ) -> None:
        """``opening``: the system's message and the question."""
        self.step: LoopStep = AskModel(opening)
        self.iterations = 0
        self._tools = tools
        self._limits = limits or LoopLimits()
        self._reminders = 0
        #: Calls and observations of the last answers, all alike.
        self._alike: list[str] = []
        self._pending = _SortedCalls()

    def answered(self, message: ChatMessage, *, problem: str = "", cut: bool = False) -> None:
        """Take the model's answer; ``problem``: what could not be read of it."""
        self._expect(AskModel)
        self.iterations += 1
        calls = message.get("tool_calls") or []
        if calls:
            self._reminders = 0
            self._pending = _sorted_out(calls, self._tools)
            self.step = MakeCalls(self._pending.calls)
            if not self._pending.calls:
                self._observe([])
        elif not self._tools.finishing and not problem and not cut:
            self.step = LoopEnded(LoopEnd.ANSWERED, {"answer": message.get("content") or ""})
        else:
            self._remind(problem, cut)

    def observed(self, observations: Sequence[str]) -> None:
        """Take the observations of the calls, in their order. Raises ValueError for another number."""
        self._expect(MakeCalls)
        if len(observations) != len(self._pending.calls):
            raise ValueError(
                f"{len(observations)} observations of {len(self._pending.calls)} calls"
            )
        self._observe(observations)

    def overflowed(self) -> None:
        """Take that the conversation leaves no room for an answer."""
        self._expect(AskModel)
        self.step = LoopEnded(LoopEnd.CONTEXT)

    def _observe(self, observations: Sequence[str]) -> None:
        pending = self._pending
        if pending.finish is not None:
            self.step = LoopEnded(LoopEnd.FINISHED, pending.finish)
            return
        messages = pending.messages(observations)
        seen = json.dumps([pending.made, [each["content"] for each in messages]], sort_keys=True)
        self._alike = [*self._alike, seen] if self._alike[-1:] == [seen] else [seen]
        if len(self._alike) >= self._limits.stuck_after:
            self.step = LoopEnded(LoopEnd.STUCK)
        else:
            self._ask(messages)

    def _remind(self, problem: str, cut: bool) -> None:
        self._reminders += 1
        if self._reminders > self._limits.max_reminders:
            self.step = LoopEnded(LoopEnd.SILENT)
            return
        finish = self._tools.finishing[0] if self._tools.finishing else "no tool"
        text = _CUT if cut else _REMINDER.format(finish=finish)
        if problem and not cut:
            text = _UNREADABLE.format(problem=problem)
        self._ask([{"role": "user", "content": text}])

    def _ask(self, messages: Sequence[ChatMessage]) -> None:
        over = self.iterations >= self._limits.max_iterations
        self.step = LoopEnded(LoopEnd.ITERATIONS) if over else AskModel(messages)

    def _expect(self, kind: type) -> None:
        if not isinstance(self.step, kind):
            raise ValueError(f"the step is {type(self.step).__name__}, not {kind.__name__}")


class _SortedCalls(msgspec.Struct):
    """The calls of one answer, sorted out."""

    calls: list[AgentCall] = []
    #: Id and name of each call up to a finishing one, with the observation of one that is not made.
    listed: list[tuple[str, str, str | None]] = []
    #: Arguments of a finishing call.
    finish: dict[str, Any] | None = None
    #: Name and arguments of all calls, as the model wrote them.
    made: list[tuple[str, str]] = []

    def messages(self, observations: Sequence[str]) -> list[dict[str, Any]]:
        """Return the messages that answer the calls."""
        left = iter(observations)
        return [
            {
                "role": "tool",
                "tool_call_id": call,
                "name": name,
                "content": refusal if refusal is not None else next(left),
            }
            for call, name, refusal in self.listed
        ]


def _sorted_out(calls: Sequence[Mapping[str, Any]], tools: AgentTools) -> _SortedCalls:
    pending = _SortedCalls()
    for each in calls:
        function = each["function"]
        name, written = str(function["name"]), str(function.get("arguments") or "{}")
        pending.made.append((name, written))
        arguments, refusal = _arguments_of(name, written, tools)
        if refusal is None and name in tools.finishing:
            pending.finish = arguments
            break
        pending.listed.append((str(each["id"]), name, refusal))
        if refusal is None:
            pending.calls.append(AgentCall(str(each["id"]), name, arguments))
    return pending


def _arguments_of(name: str, written: str, tools: AgentTools) -> tuple[dict[str, Any], str | None]:
    """Return the arguments of a call, and why it is not made."""
    known: Collection[str] = {*tools.names, *tools.finishing}
    if name not in known:
        return (
            {},
            f"There is no tool {name[:_SHOWN_CHARACTERS]!r}. The tools are {', '.join(sorted(known))}.",
        )
    try:
        arguments = json.loads(written)
    except (ValueError, RecursionError) as error:
        return {}, f"The arguments of {name} are no JSON: {error}."
    if not isinstance(arguments, dict):
        return {}, f"The arguments of {name} are no JSON object."
    return arguments, None
