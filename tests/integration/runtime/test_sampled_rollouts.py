"""Rollouts with a model, from the trainer's request to its answer: the tokens are those that the server sampled."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from rollout.tokens.packed import unpacked_segment
from rollout.worker.worker import RolloutWorker
from tests.integration.runtime.rollout_rig import RolloutRig, finished
from tests.integration.runtime.talking_handler import Talking
from tests.scripted_backends import ListeningModel, scripted_model, serving

pytestmark = pytest.mark.slow

HANDLERS = {"noop": f"{Talking.__module__}:{Talking.__name__}"}
ONE = [{"id": "sum-1", "data": {"question": "What is 2 + 2?"}}]
SAMPLING = {"custom_tokenizer": "tokenizer", "max_tokens": 64, "seed": 1}


async def test_a_trainer_gets_the_tokens_that_its_server_sampled(
    rollouts: RolloutRig,
) -> None:
    served = ListeningModel(
        scripted_model("It is 4, as two and two are.", "Yes.", odd_share=0.3), "sglang"
    )
    port = await rollouts.start_port()
    worker = asyncio.create_task(RolloutWorker(port, HANDLERS, 8).run())
    try:
        async with (
            serving(served) as address,
            rollouts.client() as client,
            rollouts.client("cluster") as operator,
        ):
            await operator.backends.add("small", f"{address}/v1", seats=4)
            [rollout] = await client.rollouts.submit(
                "t", "noop", ONE, llm="small", sampling=SAMPLING
            )
            found = await finished(client, rollout)
            packed = msgspec.msgpack.decode(await client.rollouts.packed(rollout))
    finally:
        worker.cancel()
        await asyncio.wait({worker})

    assert (found.outcome, found.reward) == ("completed", 1.0), found
    first, second = served.answered
    assert second.prompt_ids[: len(first.prompt_ids) + len(first.ids)] == [
        *first.prompt_ids,
        *first.ids,
    ]
    assert found.segments is not None
    [segment] = found.segments
    context = second.prompt_ids[len(first.prompt_ids) + len(first.ids) :]
    assert segment["prompt_ids"] == first.prompt_ids
    assert segment["response_ids"] == [*first.ids, *context, *second.ids]
    assert segment["loss_mask"] == [1] * len(first.ids) + [0] * len(context) + [1] * len(second.ids)
    assert segment["weights_version"][0] == 1
    [read] = packed["segments"]
    assert unpacked_segment(read).response_ids.tolist() == segment["response_ids"]
