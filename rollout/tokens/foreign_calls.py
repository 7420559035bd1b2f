"""Calls of agents that are not ours, recorded and merged into segments.

An agent that speaks OpenAI's protocol sends its whole conversation with each call, as text. `CallRecorder` finds the former
call that the conversation continues, and gives the prompt as that call's tokens with the new messages behind them: the
response in the middle keeps the ids that were sampled, although the agent returned it as text. `merged_calls` merges calls
that were recorded elsewhere, by ids alone.

Lifetimes: one recorder for each trajectory. It is a function of its turns: another worker makes it from the log.

Rules
1. A call continues the longest recorded conversation that its messages begin with. Compared is what a model sees: tools, role,
   text, calls of tools, and which call a result belongs to. Clients change the rest (``null`` for an empty content, texts as
   lists of parts, members of their own).
2. A conversation that continues no recorded one is tokenised whole and begins a segment. So do the second and later
   branches of one call; their prompt repeats the tokens that they grew from.
3. A request that is repeated, under its name or by a client that says so, has the turn that answered it: its answer may have
   been lost on its way.
4. Merging by ids is exact: a prompt that has other ids for the same text begins a segment, because the model's probabilities
   belong to the ids that it saw.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollout.tokens.chat_template import ChatMessage
from rollout.tokens.prompts import PromptEncoder
from rollout.tokens.sampled import Ids, SampledTokens
from rollout.tokens.segments import SampledTurn, TokenSegment, segments_of

_Digest = bytes


@dataclass(eq=False, slots=True)
class _RecordedTurn:
    """A recorded call: its turn, and all tokens up to the end of its response."""

    number: int
    turn: SampledTurn
    ids: Ids
    #: Another call has continued it in its segment.
    continued: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class PlannedCall:
    """Prompt of a call that is about to be made."""

    prompt_ids: list[int]
    #: Tokens at the end of the prompt that are new to the call that it continues; all of them without one.
    added: int
    #: Number of the turn that is continued.
    continues: int | None
    #: The conversation without the response.
    digest: bytes
    #: The conversation, the number of its messages that the continued call has, and its tools.
    messages: Sequence[ChatMessage] = ()
    known: int = 0
    tools: Sequence[Mapping[str, Any]] = ()


class CallRecorder:
    """Calls of one trajectory."""

    def __init__(self, encoder: PromptEncoder, turns: Iterable[SampledTurn] = ()) -> None:
        """``turns``: those that the log has already."""
        self._encoder = encoder
        self._calls: list[_RecordedTurn] = []
        self._by_digest: dict[_Digest, _RecordedTurn] = {}
        self._by_request: dict[str, int] = {}
        for turn in turns:
            self.add(turn)

    @property
    def turns(self) -> list[SampledTurn]:
        """Return all turns, in the order of the log."""
        return [call.turn for call in self._calls]

    def plan(
        self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> PlannedCall:
        """Return the prompt of a call. Raises TemplateRefused."""
        given = [with_text(message) for message in messages]
        digests = _digests(given, tools)
        for count in range(len(given), 0, -1):
            call = self._by_digest.get(digests[count])
            if call is not None:
                turn = call.turn
                added = self._encoder.continuation(
                    turn.tokens.ids.tolist(), turn.message, given[count:]
                )
                prompt = [*call.ids.tolist(), *added]
                number, digest = call.number, digests[-1]
                return PlannedCall(prompt, len(added), number, digest, given, count, tools or ())
        opening = self._encoder.opening(given, tools)
        return PlannedCall(opening, len(opening), None, digests[-1], given, 0, tools or ())

    def turn_of(
        self,
        planned: PlannedCall,
        tokens: SampledTokens,
        message: Mapping[str, Any],
        *,
        weights_version: int,
        backend: str = "",
        request: str = "",
    ) -> SampledTurn:
        """Return the next turn of the log, which `add` records once it is stored.

        ``request``: the name of the request.
        """
        prompt, follows = np.asarray(planned.prompt_ids, np.int32), planned.continues
        if follows is not None and self._calls[follows].continued:
            follows = None
        return SampledTurn(
            context=prompt if follows is None else prompt[len(prompt) - planned.added :],
            tokens=tokens,
            weights_version=weights_version,
            backend=backend,
            follows=follows,
            message=dict(message),
            conversation=_with(planned.digest, message).hex(),
            asked=planned.messages[0 if follows is None else planned.known :],
            tools=planned.tools if follows is None else (),
            request=request,
        )

    def answer_to(self, request: str) -> int | None:
        """Return the number of the turn that answers the request of this name."""
        return self._by_request.get(request)

    def latest_answer(self, planned: PlannedCall) -> int | None:
        """Return the number of the last turn that answers the same conversation and that no call continues."""
        for call in reversed(self._calls):
            if not call.continued and call.turn.conversation == (
                _with(planned.digest, call.turn.message).hex()
            ):
                return call.number
        return None

    def prompt_tokens(self, number: int) -> int:
        """Return the number of tokens of the prompt of a turn."""
        call = self._calls[number]
        return len(call.ids) - len(call.turn.tokens)

    def segments(self) -> list[TokenSegment]:
        """Return the segments of all calls, in the order of their last ones."""
        return segments_of(self.turns)

    def add(self, turn: SampledTurn) -> None:
        """Record the next turn of the log."""
        parts = [turn.context, turn.tokens.ids]
        if turn.follows is not None:
            former = self._calls[turn.follows]
            former.continued = True
            parts.insert(0, former.ids)
        call = _RecordedTurn(len(self._calls), turn, np.concatenate(parts))
        self._calls.append(call)
        self._by_digest[bytes.fromhex(turn.conversation)] = call
        if turn.request:
            self._by_request[turn.request] = call.number


@dataclass(frozen=True, eq=False, slots=True)
class RecordedCall:
    """A call as an engine reported it: the prompt that it saw, and the response."""

    prompt_ids: Ids
    tokens: SampledTokens
    weights_version: int
    backend: str = ""


def merged_calls(calls: Iterable[RecordedCall]) -> list[SampledTurn]:
    """Return the turns of calls in their order; one continues another where its prompt begins with all of that call."""
    turns: list[SampledTurn] = []
    ends: dict[int, Ids] = {}  # turn that none continues → all tokens up to its end
    for call in calls:
        prompt = np.asarray(call.prompt_ids, np.int32)
        follows = _longest_prefix(prompt, ends)
        known = 0 if follows is None else len(ends.pop(follows))
        turn = SampledTurn(
            context=prompt[known:],
            tokens=call.tokens,
            weights_version=call.weights_version,
            backend=call.backend,
            follows=follows,
        )
        ends[len(turns)] = np.concatenate((prompt, call.tokens.ids))
        turns.append(turn)
    return turns


def _longest_prefix(prompt: Ids, known: Mapping[int, Ids]) -> int | None:
    fitting = [
        (len(ids), number)
        for number, ids in known.items()
        if len(ids) <= len(prompt) and np.array_equal(prompt[: len(ids)], ids)
    ]
    return max(fitting)[1] if fitting else None


def with_text(message: ChatMessage) -> ChatMessage:
    """Return a message whose content is text, as chat templates expect it."""
    if isinstance(message.get("content"), str):
        return message
    return {**message, "content": _text_of(message.get("content"))}


def _text_of(content: Any) -> str:
    """Return the text of a message's content: a string, a list of parts, or None."""
    if isinstance(content, list):
        parts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _digests(
    messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] | None
) -> list[_Digest]:
    """Return the digest of each beginning of a conversation, from none of its messages to all."""
    found = [hashlib.sha256(_canonical(list(tools or ()))).digest()]
    for message in messages:
        found.append(_with(found[-1], message))
    return found


def _with(digest: _Digest, message: Mapping[str, Any]) -> _Digest:
    return hashlib.sha256(digest + _canonical(_seen(message))).digest()


def _seen(message: Mapping[str, Any]) -> list[Any]:
    """Return what a model sees of a message, in one form for all clients."""
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    return [
        message.get("role"),
        _text_of(message.get("content")),
        [[call.get("name"), _arguments(call.get("arguments"))] for call in calls],
        message.get("tool_call_id") if message.get("role") == "tool" else None,
    ]


def _arguments(stated: Any) -> Any:
    if not isinstance(stated, str):
        return stated
    try:
        return json.loads(stated)
    except (ValueError, RecursionError):
        return stated


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
