"""Whole conversations with a server of each dialect, over HTTP: the tokens are those that the server sampled."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from examples.rollouts.scripted_llm import logprob_of
from rollout.llm.dialects import DIALECTS
from rollout.llm.engine_client import EngineClient
from rollout.llm.sampler import SampleRequest, TurnSampler
from rollout.llm.sampling_options import SamplingOptions
from rollout.ports import Seat
from rollout.tokens.segments import SampledTurn, TokenThread, segments_of
from rollout.tokens.tool_calls import read_response
from rollout.tokens.turn_records import turn_of, turn_record
from tests.chat_models import encoder, tokenizer
from tests.scripted_backends import ListeningModel, TestBinding, scripted_model, serving

ASKED = [{"role": "user", "content": "Count the files below src, then those below tests."}]
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls src | wc -l"}}\n</tool_call>'
ANSWERS = ("I look at the sources first.\n" + CALL, CALL.replace("src", "tests"), "3 and 4.")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_conversation_has_the_tokens_that_the_server_sampled(dialect: str) -> None:
    served = ListeningModel(scripted_model(*ANSWERS, odd_share=0.3), dialect)
    client = EngineClient()
    sampler, encode, thread = TurnSampler(client), encoder(), TokenThread()
    context = encode.opening(ASKED)
    async with serving(served) as address:
        binding = TestBinding(Seat("policy", "b1", address, 7))
        try:
            for turn in range(len(ANSWERS)):
                prompt = [*thread.ids.tolist(), *context]
                options = SamplingOptions(max_tokens=200, seed=turn)
                request = SampleRequest(prompt, options, tokenizer().vocabulary_size)
                found = await sampler.sample(binding, request)
                text = tokenizer().decode(found.tokens.ids.tolist())
                message = read_response(text, turn).message
                sampled = SampledTurn(
                    context=np.array(context, np.int32),
                    tokens=found.tokens,
                    weights_version=found.seat.weights_version,
                    backend=found.seat.backend,
                    follows=thread.last,
                    message=message,
                )
                thread.append(turn_of(turn_record(sampled)))
                calls = message.get("tool_calls", [])
                results = [
                    {"role": "tool", "content": "3", "tool_call_id": call["id"]} for call in calls
                ]
                assert len(results) == (turn < 2)
                context = encode.continuation(found.tokens.ids.tolist(), message, results)
        finally:
            await client.close()

    answered = [each for each in served.answered if len(each.prompt_ids) > 1]
    assert [turn.tokens.ids.tolist() for turn in thread.turns] == [each.ids for each in answered]
    for former, later in pairwise(answered):
        grown = former.prompt_ids + former.ids
        assert later.prompt_ids[: len(grown)] == grown
    (segment,) = segments_of(thread.turns)
    assert segment.sampled == sum(len(each.ids) for each in answered)
    assert segment.logprobs is not None
    trained = segment.loss_mask == 1
    wanted = np.array([logprob_of(each) for each in segment.response_ids[trained]], np.float32)
    assert np.array_equal(segment.logprobs[trained], wanted)
    assert set(segment.weights_versions.tolist()) == {7, -1}
