"""Calls of one rollout to its model: a conversation of our agents, and chat completions of foreign ones.

Lifetimes: `ModelCaller` lasts for one RUN of a rollout on one worker. Its successor makes it from the turns of the log.

Rules
1. A turn is stored before its message is returned: what an agent acts on survives a crash. Turns are stored one after the other,
   in the order of their numbers.
2. The trainer's options decide how tokens are sampled; an agent may only ask for fewer tokens and for texts at which to stop.
3. Samples of one group and turns of one conversation have seeds of their own, derived from the trainer's, so that a turn
   that is sampled again after a crash is sampled alike.
4. A response that was cut at its length or could not be read is a message like any other; `ModelAnswer` says so.
5. A conversation that is asked again from its beginning, after a crash, gets the stored turns, one for each question in
   their order, and then new ones. A question that the log answers otherwise raises `OtherTurnStored`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from domain.errors import InvalidRequest, TangramError
from rollout.llm.sampler import SampleRequest, SamplesTurns, TurnSample
from rollout.llm.sampling_options import SamplingOptions
from rollout.tokens.chat_template import ChatMessage
from rollout.tokens.foreign_calls import CallRecorder, PlannedCall
from rollout.tokens.prompts import PromptEncoder
from rollout.tokens.sampled import SampledTokens
from rollout.tokens.segments import SampledTurn, TokenThread
from rollout.tokens.tool_calls import ReadResponse, encodable, read_response

#: Appends a turn to the rollout's log; returns when it is on disk.
StoreTurn = Callable[[SampledTurn], Awaitable[None]]
#: Between the seeds of two samples of a group: more than a rollout has turns.
_SEED_STEP: Final = 1_000_003
_MOST_SEED: Final = 2**31
#: Tokens at the end of a prompt that show whether it has begun the model's reasoning.
_ENDING_TOKENS: Final = 8


class OtherTurnStored(TangramError):
    """The log has another turn where the agent asks: it asked otherwise before."""


class ModelAnswer(NamedTuple):
    """A stored response."""

    turn: SampledTurn
    message: dict[str, Any]
    #: What could not be read of it, for the model; empty: everything was read.
    problem: str = ""

    @property
    def cut(self) -> bool:
        """Whether it ended at its length."""
        return self.turn.tokens.finish == "length"


class ModelCaller:
    """What all calls of one rollout share."""

    def __init__(
        self,
        sampler: SamplesTurns,
        encoder: PromptEncoder,
        options: SamplingOptions,
        store: StoreTurn,
        *,
        sample: int = 0,
        max_version_span: int | None = None,
        turns: Iterable[SampledTurn] = (),
    ) -> None:
        """``sample``: number of the rollout in its group; ``turns``: those that the log has already."""
        self.encoder = encoder
        self.options = options
        self.stored = list(turns)
        self._sampler = sampler
        self._store = store
        self._sample = sample
        self._span = max_version_span
        self._begun = len(self.stored)
        #: Held while a turn gets its number and is stored.
        self.storing = asyncio.Lock()

    async def sample(
        self, prompt_ids: Sequence[int], options: SamplingOptions | None = None
    ) -> TurnSample:
        """Return a response to a prompt. Raises as `TurnSampler.sample`."""
        number, self._begun = self._begun, self._begun + 1
        asked = options or self.options
        if asked.seed is not None:
            seed = (asked.seed + _SEED_STEP * self._sample + number) % _MOST_SEED
            asked = msgspec.structs.replace(asked, seed=seed)
        first = self.stored[0].weights_version if self.stored else None
        request = SampleRequest(
            prompt_ids, asked, self.encoder.tokenizer.vocabulary_size, first, self._span
        )
        return await self._sampler.sample(request)

    async def store(self, turn: SampledTurn) -> None:
        """Store a turn, with ``storing`` held."""
        await self._store(turn)
        self.stored.append(turn)

    def read(self, prompt_ids: Sequence[int], tokens: SampledTokens, number: int) -> ReadResponse:
        """Return the message of a response."""
        tokenizer = self.encoder.tokenizer
        ending = tokenizer.decode(prompt_ids[-_ENDING_TOKENS:], special=True)
        begun = ending.rstrip().endswith("<think>")
        text = tokenizer.response_text(tokens.ids.tolist())
        return read_response(text, number, reasoning_begun=begun)


class ChatSession:
    """A conversation of our own agent, in tokens."""

    def __init__(
        self, caller: ModelCaller, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """``tools``: their schemas, for the first prompt."""
        self._caller = caller
        self._tools = tools
        self._thread = TokenThread()

    @property
    def turns(self) -> Sequence[SampledTurn]:
        """Return the turns so far."""
        return self._thread.turns

    @property
    def tokens(self) -> int:
        """Return the number of tokens of the conversation."""
        return len(self._thread)

    async def ask(self, messages: Sequence[ChatMessage], *, afresh: bool = False) -> ModelAnswer:
        """Return the answer to what is new in the conversation: all of it at first, then what follows the last answer.

        ``afresh``: ``messages`` are a whole conversation, such as a condensed one; a segment begins. Raises as
        `TurnSampler.sample`, TemplateRefused and OtherTurnStored.
        """
        number = len(self._thread.turns)
        last = self._thread.turns[-1] if number and not afresh else None
        if last is None:
            context = self._caller.encoder.opening(messages, self._tools)
        else:
            context = self._caller.encoder.continuation(
                last.tokens.ids.tolist(), last.message, messages
            )
        prompt = context if last is None else [*self._thread.ids.tolist(), *context]
        follows = None if last is None else self._thread.last
        if number < len(self._caller.stored):
            turn = self._again(self._caller.stored[number], context, follows)
        else:
            turn = await self._new(prompt, context, follows, messages)
        self._thread.append(turn)
        read = self._caller.read(prompt, turn.tokens, number)
        return ModelAnswer(turn, read.message, read.problem)

    def _again(
        self, stored: SampledTurn, context: Sequence[int], follows: int | None
    ) -> SampledTurn:
        if stored.follows != follows or stored.context.tolist() != list(context):
            number = len(self._thread.turns)
            raise OtherTurnStored(f"turn {number} of the log was asked with other messages")
        return stored

    async def _new(
        self,
        prompt: Sequence[int],
        context: Sequence[int],
        follows: int | None,
        asked: Sequence[ChatMessage],
    ) -> SampledTurn:
        found = await self._caller.sample(prompt)
        turn = SampledTurn(
            context=np.asarray(context, np.int32),
            tokens=found.tokens,
            weights_version=found.seat.weights_version,
            backend=found.seat.backend,
            follows=follows,
            message=self._caller.read(prompt, found.tokens, len(self._thread.turns)).message,
            asked=asked,
            tools=self._tools or () if follows is None else (),
        )
        async with self._caller.storing:
            await self._caller.store(turn)
        return turn


class ForeignChat:
    """Chat completions of an agent that is not ours: recorded, and its sampled tokens kept."""

    def __init__(self, caller: ModelCaller) -> None:
        self._caller = caller
        self._recorder = CallRecorder(caller.encoder, caller.stored)

    @property
    def turns(self) -> int:
        """Return the number of calls that were answered."""
        return len(self._recorder.turns)

    async def complete(
        self, body: Mapping[str, Any], request: str = "", *, repeated: bool = False
    ) -> dict[str, Any]:
        """Return the answer to ``POST /v1/chat/completions``, without ``created``.

        ``request``: its name, under which it is answered once. ``repeated``: its client says that it asks again, under
        another name perhaps: then a stored answer to the same conversation that nothing continues is its answer.
        Raises InvalidRequest, and as `TurnSampler.sample`.
        """
        messages, tools, options = self._asked(body)
        number = self._recorder.answer_to(request) if request else None
        if number is None:
            planned = self._recorder.plan(messages, tools)
            number = self._recorder.latest_answer(planned) if repeated else None
            if number is None:
                found = await self._caller.sample(planned.prompt_ids, options)
                # Kept to its end: the numbers of later turns depend on it.
                keeping = asyncio.ensure_future(self._keep(planned, found, request))
                number = await asyncio.shield(keeping)
        turn, prompt = self._recorder.turns[number], self._recorder.prompt_tokens(number)
        return _completion(turn, number, prompt, str(body.get("model") or ""))

    async def _keep(self, planned: PlannedCall, found: TurnSample, request: str) -> int:
        """Record and store an answer; return the number of its turn, or of the one that answered the request before."""
        async with self._caller.storing:
            if request and (before := self._recorder.answer_to(request)) is not None:
                return before
            number = len(self._recorder.turns)
            read = self._caller.read(planned.prompt_ids, found.tokens, number)
            turn = self._recorder.turn_of(
                planned,
                found.tokens,
                read.message,
                weights_version=found.seat.weights_version,
                backend=found.seat.backend,
                request=request,
            )
            await self._caller.store(turn)
            self._recorder.add(turn)
        return number

    def _asked(
        self, body: Mapping[str, Any]
    ) -> tuple[list[ChatMessage], list[Mapping[str, Any]] | None, SamplingOptions]:
        messages, tools = _storable(body, "messages"), _storable(body, "tools")
        if not isinstance(messages, list) or not messages:
            raise InvalidRequest("messages is a list of at least one message", pointer="/messages")
        for message in messages:
            _check_message(message)
        if body.get("n") not in (None, 1):
            raise InvalidRequest("n is 1: a rollout is one sample", pointer="/n")
        limits = [self._caller.options.max_tokens, _wanted_tokens(body)]
        options = msgspec.structs.replace(
            self._caller.options,
            max_tokens=min((each for each in limits if each), default=None),
            stop=(*self._caller.options.stop, *_stop_texts(body)),
        )
        return messages, tools if isinstance(tools, list) else None, options


def _storable(body: Mapping[str, Any], member: str) -> Any:
    """Return a member that can be tokenised and stored: agents send half characters of binary output. Raises InvalidRequest."""
    try:
        found = encodable(body.get(member))
        msgspec.msgpack.encode(found)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"{member} cannot be stored: {error}", pointer=f"/{member}") from None
    return found


def _check_message(message: Any) -> None:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or not role:
        raise InvalidRequest("each message is an object with a role", pointer="/messages")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(
        isinstance(call, dict) and isinstance(call.get("function", call), dict) for call in calls
    ):
        raise InvalidRequest("tool_calls is a list of calls of functions", pointer="/messages")


def _wanted_tokens(body: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        wanted = body.get(name)
        if wanted is None:
            continue
        if not isinstance(wanted, int) or wanted < 1:
            raise InvalidRequest(f"{name} is an integer of at least 1", pointer=f"/{name}")
        return wanted
    return None


def _stop_texts(body: Mapping[str, Any]) -> list[str]:
    stop = body.get("stop") or []
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise InvalidRequest("stop is a text or a list of texts", pointer="/stop")
    return [encodable(each) for each in texts]


def _completion(turn: SampledTurn, number: int, prompt: int, model: str) -> dict[str, Any]:
    finish = "tool_calls" if turn.message.get("tool_calls") else turn.tokens.finish
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "model": model,
        "choices": [{"index": 0, "message": dict(turn.message), "finish_reason": finish}],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": len(turn.tokens),
            "total_tokens": prompt + len(turn.tokens),
        },
    }


def chunks_of(completion: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a completion as the chunks of a stream: its message, then its end. The caller adds ``created``."""
    choice = completion["choices"][0]
    delta = dict(choice["message"])
    if delta.get("tool_calls"):
        delta["tool_calls"] = [
            {"index": index, **call} for index, call in enumerate(delta["tool_calls"])
        ]
    shared = {"id": completion["id"], "object": "chat.completion.chunk"}
    shared["model"] = completion["model"]
    return [
        {**shared, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {
            **shared,
            "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}],
            "usage": completion["usage"],
        },
    ]
