"""Conversations with a model: stored turn by turn, continued by another worker, kept in tokens for agents of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from domain.errors import InvalidRequest
from rollout.llm.engine_client import EngineClient
from rollout.llm.model_calls import (
    ChatSession,
    ForeignChat,
    ModelCaller,
    OtherTurnStored,
    chunks_of,
)
from rollout.llm.sampler import BoundSampler, TurnSampler, VersionSpanExceeded
from rollout.llm.sampling_options import SamplingOptions
from rollout.tokens.segments import SampledTurn, segments_of
from rollout.tokens.turn_records import turn_of, turn_record
from tests.chat_models import FORGETFUL, encoder, tokenizer
from tests.scripted_backends import Backends, FaultyBackend, TestBinding, scripted_model, seat_of

ASKED = [{"role": "user", "content": "Count the files."}]
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
RESULT = {"role": "tool", "content": "a b c", "tool_call_id": "call_0_0"}


class Log(list[SampledTurn]):
    """Turns as a log keeps them; refuses those from a number on."""

    refuse_from: int | None = None
    #: How often it yields to others before a turn is on disk; less each time.
    slow: int = 1

    async def __call__(self, turn: SampledTurn) -> None:
        ticks, self.slow = self.slow, max(1, self.slow - 10)
        for _ in range(ticks):
            await asyncio.sleep(0)
        if self.refuse_from == len(self):
            raise RuntimeError("the disk is full")
        self.append(turn_of(turn_record(turn)))


@asynccontextmanager
async def calling(
    backend: FaultyBackend, log: Log, binding: TestBinding | None = None, **options: Any
) -> AsyncIterator[ModelCaller]:
    client = EngineClient(transport=Backends(b1=backend))
    template = options.pop("template", None)
    sampling = options.pop("sampling", SamplingOptions(seed=5))
    try:
        yield ModelCaller(
            BoundSampler(TurnSampler(client), binding or TestBinding(seat_of("b1"))),
            encoder(template),
            sampling,
            log,
            turns=list(log),
            **options,
        )
    finally:
        await client.close()


def backend(*answers: str) -> FaultyBackend:
    found = FaultyBackend("vllm")
    found.served.model = scripted_model(*answers, odd_share=0.3)
    return found


async def test_an_agent_asks_with_what_is_new_and_gets_messages():
    log, model = Log(), backend("I look.\n" + CALL, "There are 3.")
    async with calling(model, log) as caller:
        session = ChatSession(caller)
        first = await session.ask(ASKED)
        second = await session.ask([RESULT])

    assert first.message["tool_calls"][0]["function"]["name"] == "bash"
    assert second.message == {"role": "assistant", "content": "There are 3."}
    (segment,) = segments_of(log)
    assert model.asked[1]["prompt"] == [
        *segment.prompt_ids.tolist(),
        *segment.response_ids[: -len(log[1].tokens)].tolist(),
    ]
    assert session.tokens == len(segment.prompt_ids) + len(segment.response_ids)


async def test_another_worker_continues_with_the_same_prompt_and_the_same_seed():
    log, first, second = Log(), backend(CALL, "There are 3."), backend(CALL, "There are 3.")
    async with calling(first, log) as caller:
        session = ChatSession(caller)
        await session.ask(ASKED)
        log.refuse_from = 1
        with pytest.raises(RuntimeError, match="disk is full"):
            await session.ask([RESULT])
        assert len(session.turns) == 1

    log.refuse_from = None
    async with calling(second, log) as caller:
        session = ChatSession(caller)
        again = await session.ask(ASKED)
        answer = await session.ask([RESULT])

    assert again.message["tool_calls"][0]["function"]["name"] == "bash"
    assert second.asked == first.asked[1:]
    assert len(log) == 2
    assert answer.message["content"] == "There are 3."


async def test_samples_of_a_group_and_turns_have_seeds_of_their_own():
    seeds: list[int] = []
    for sample in range(2):
        model = backend(CALL, "3.")
        async with calling(model, Log(), sample=sample) as caller:
            session = ChatSession(caller)
            await session.ask(ASKED)
            await session.ask([RESULT])
        seeds += [body["seed"] for body in model.asked]

    assert len(set(seeds)) == 4
    assert seeds[:2] == [5, 6]


async def test_a_condensed_history_begins_a_segment():
    log = Log()
    async with calling(backend("One.", "Two."), log) as caller:
        session = ChatSession(caller)
        await session.ask(ASKED)
        await session.ask([{"role": "user", "content": "In short: count."}], afresh=True)

    assert [turn.follows for turn in log] == [None, None]
    assert len(segments_of(log)) == 2


async def test_the_span_of_versions_is_counted_from_the_first_token_of_the_log():
    log = Log()
    async with calling(backend("One."), log) as caller:
        await ChatSession(caller).ask(ASKED)
    newer = TestBinding(seat_of("b1", 4))
    async with calling(backend("One."), log, newer, max_version_span=2) as caller:
        session = ChatSession(caller)
        await session.ask(ASKED)
        with pytest.raises(VersionSpanExceeded):
            await session.ask([RESULT])
    assert len(log) == 1


@pytest.mark.parametrize("asked", [[{"role": "user", "content": "Count the words."}], [RESULT]])
async def test_an_agent_that_asks_otherwise_than_the_log_is_refused(asked):
    log = Log()
    async with calling(backend("One."), log) as caller:
        await ChatSession(caller).ask(ASKED)
    async with calling(backend("One."), log) as caller:
        with pytest.raises(OtherTurnStored, match="turn 0"):
            await ChatSession(caller).ask(asked)


async def test_reasoning_that_the_prompt_began_is_read_as_such():
    template = FORGETFUL.replace("{{ '<|im_start|>assistant\\n' }}", "{{ '<think>\\n' }}")
    async with calling(backend("I add.\n</think>\n\n4"), Log(), template=template) as caller:
        answer = await ChatSession(caller).ask(ASKED)

    assert answer.message["reasoning_content"] == "I add."
    assert answer.message["content"] == "4"


async def test_an_answer_that_is_cut_says_so():
    sampling = SamplingOptions(max_tokens=3)
    async with calling(backend("One two three four."), Log(), sampling=sampling) as caller:
        assert (await ChatSession(caller).ask(ASKED)).cut


def spoken(answer: dict[str, Any]) -> dict[str, Any]:
    return answer["choices"][0]["message"]


async def test_a_foreign_agent_keeps_its_tokens_though_it_returns_text():
    log, model = Log(), backend("I look.\n" + CALL, "There are 3.")
    async with calling(model, log) as caller:
        chat = ForeignChat(caller)
        first = await chat.complete({"model": "m", "messages": ASKED})
        returned = {**spoken(first), "refusal": None}
        second = await chat.complete({"messages": [*ASKED, returned, RESULT], "max_tokens": 50})

    assert first["choices"][0]["finish_reason"] == "tool_calls"
    assert (second["choices"][0]["finish_reason"], second["model"]) == ("stop", "")
    assert spoken(second)["content"] == "There are 3."
    assert model.asked[1]["max_tokens"] == 50
    (segment,) = segments_of(log)
    assert segment.sampled == len(log[0].tokens) + len(log[1].tokens)
    assert second["usage"]["prompt_tokens"] == len(model.asked[1]["prompt"])


async def test_calls_of_agents_at_once_are_stored_in_the_order_of_their_numbers():
    log = Log()
    log.slow = 60
    chats = [[{"role": "user", "content": f"Question {number}."}] for number in range(6)]
    async with calling(backend("One.", "Two."), log) as caller:
        chat = ForeignChat(caller)
        answers = await asyncio.gather(*(chat.complete({"messages": each}) for each in chats))
        await asyncio.gather(
            *(
                chat.complete({"messages": [*each, spoken(answer), *ASKED]})
                for each, answer in zip(chats, answers, strict=True)
            )
        )

    assert list(map(turn_record, log)) == list(map(turn_record, chat._recorder.turns))
    segments = segments_of(log)
    assert len(segments) == 6
    runs = [np.diff(each.loss_mask.astype(int), prepend=0) for each in segments]
    assert [int((each == 1).sum()) for each in runs] == [2] * 6


async def test_another_worker_continues_the_chat_of_a_foreign_agent():
    log = Log()
    async with calling(backend("One.", "Two."), log) as caller:
        first = await ForeignChat(caller).complete({"messages": ASKED})
    async with calling(backend("One.", "Two."), log) as caller:
        await ForeignChat(caller).complete({"messages": [*ASKED, spoken(first), *ASKED]})

    assert [turn.follows for turn in log] == [None, 0]


async def test_the_trainer_s_options_decide_and_an_agent_may_ask_for_less():
    model = backend("One.")
    sampling = SamplingOptions(temperature=0.9, max_tokens=40, stop=("END",))
    async with calling(model, Log(), sampling=sampling) as caller:
        body = {"messages": ASKED, "temperature": 0, "max_tokens": 100, "stop": "STOP"}
        await ForeignChat(caller).complete(body)

    asked = model.asked[0]
    assert (asked["temperature"], asked["max_tokens"]) == (0.9, 40)
    assert asked["stop"] == ["END", "STOP"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/messages"),
        ({"messages": []}, "/messages"),
        ({"messages": ["hello"]}, "/messages"),
        ({"messages": [{"content": "hello"}]}, "/messages"),
        ({"messages": [{"role": ["user"], "content": "hello"}]}, "/messages"),
        ({"messages": [*ASKED, {"role": "assistant", "tool_calls": ["x"]}]}, "/messages"),
        ({"messages": [*ASKED, {"role": "assistant", "tool_calls": 7}]}, "/messages"),
        (
            {"messages": [*ASKED, {"role": "assistant", "tool_calls": [{"function": 7}]}]},
            "/messages",
        ),
        ({"messages": [{"role": "user", "content": "hello", "count": 2**70}]}, "/messages"),
        ({"messages": ASKED, "n": 2}, "/n"),
        ({"messages": ASKED, "stop": 3}, "/stop"),
        ({"messages": ASKED, "max_tokens": "many"}, "/max_tokens"),
        ({"messages": ASKED, "max_tokens": -1}, "/max_tokens"),
    ],
)
async def test_an_invalid_request_of_an_agent_is_refused_by_member(body, pointer):
    async with calling(backend("One."), Log()) as caller:
        with pytest.raises(InvalidRequest) as refused:
            await ForeignChat(caller).complete(body)
    assert refused.value.pointer == pointer


async def test_a_stream_has_the_whole_message_and_its_end():
    async with calling(backend(CALL), Log()) as caller:
        answer = await ForeignChat(caller).complete({"messages": ASKED})

    first, last = chunks_of(answer)

    calls = first["choices"][0]["delta"]["tool_calls"]
    assert [each["index"] for each in calls] == [0]
    assert last["choices"][0]["finish_reason"] == "tool_calls"
    assert last["usage"] == answer["usage"]


def test_calls_in_special_tokens_are_read_and_the_end_of_the_turn_is_not():
    ids: Sequence[int] = tokenizer().encode("4<|im_start|><|im_end|>")

    assert tokenizer().response_text(ids) == "4<|im_start|>"
    assert tokenizer().response_text(ids[:1]) == "4"
    assert tokenizer().response_text([]) == ""


async def test_a_stored_turn_has_what_the_model_was_asked():
    log, tools = Log(), [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
    async with calling(FaultyBackend(), log) as caller:
        session = ChatSession(caller, tools)
        await session.ask(ASKED)
        await session.ask([RESULT])
        await session.ask(ASKED, afresh=True)

    assert [list(turn.asked) for turn in log] == [ASKED, [RESULT], ASKED]
    assert [list(turn.tools) for turn in log] == [tools, [], tools]


async def test_a_request_of_an_agent_is_answered_once_under_its_name():
    """Its answer may be lost between this process and the agent, and a crash may come between."""
    log, model = Log(), backend("One.", "Two.")
    body = {"messages": ASKED}
    async with calling(model, log) as caller:
        first = await ForeignChat(caller).complete(body, "r1")
        again = await ForeignChat(caller).complete(body, "r1")
    async with calling(model, log) as caller:
        successor = ForeignChat(caller)
        assert await successor.complete(body, "r1") == first == again
        assert (len(log), len(model.asked)) == (1, 1)
        other = await successor.complete(body, "r2")

    assert (other["id"], len(log)) == ("chatcmpl-1", 2)


async def test_a_client_that_says_it_repeats_gets_the_answer_that_was_lost():
    log, model = Log(), backend("One.", "Two.")
    async with calling(model, log) as caller:
        first = await ForeignChat(caller).complete({"messages": ASKED}, "r1")
        again = await ForeignChat(caller).complete({"messages": ASKED}, "r2", repeated=True)

    assert again == first
    assert len(segments_of(log)) == 1


async def test_a_call_that_is_cancelled_while_it_is_stored_is_stored():
    log = Log()
    log.slow = 60
    async with calling(backend("One.", "Two."), log) as caller:
        chat = ForeignChat(caller)
        call = asyncio.create_task(chat.complete({"messages": ASKED}, "r1"))
        async with asyncio.timeout(60):
            while log.slow == 60:
                await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        await chat.complete({"messages": [{"role": "user", "content": "Other?"}]})

    assert list(map(turn_record, log)) == list(map(turn_record, chat._recorder.turns))
    assert [turn.request for turn in log] == ["r1", ""]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "binary \udc80 output"},
        {"role": "tool", "content": "binary \udc80 output", "tool_call_id": "call_0_0"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "ls", "arguments": '{"a": "\\udc80"}'}}]},
    ],
)  # fmt: skip
async def test_half_characters_of_an_agent_s_message_are_replaced(message):
    log = Log()
    async with calling(backend("One."), log) as caller:
        answer = await ForeignChat(caller).complete({"messages": [*ASKED, message]})

    assert spoken(answer)["content"] == "One."
    assert len(log) == 1


async def test_a_turn_that_is_not_stored_is_none():
    """Later turns have its number: they would follow another one."""
    log = Log()
    async with calling(backend("One.", "Two."), log) as caller:
        chat, log.refuse_from = ForeignChat(caller), 0
        with pytest.raises(RuntimeError, match="the disk is full"):
            await chat.complete({"messages": ASKED})
        log.refuse_from = None
        first = await chat.complete({"messages": ASKED})
        await chat.complete({"messages": [*ASKED, spoken(first), *ASKED]})

    assert [turn.follows for turn in log] == [None, 0]
