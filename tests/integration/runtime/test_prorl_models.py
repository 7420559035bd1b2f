"""ProRL's door with a model: published requests in, and the tokens that the LLM server sampled out."""

from __future__ import annotations

import asyncio

import pytest

from rollout.worker.worker import RolloutWorker
from tests.integration.runtime.prorl_rig import NEMO_RL, body, process, prorl, started
from tests.integration.runtime.rollout_rig import RolloutRig
from tests.integration.runtime.talking_handler import Talking
from tests.scripted_backends import ListeningModel, scripted_model, serving

pytestmark = pytest.mark.slow

HANDLERS = {"noop": f"{Talking.__module__}:{Talking.__name__}"}
INSTANCE = {"data_source": "noop", "instance_id": "sum-1", "question": "What is 2 + 2?"}


@pytest.mark.parametrize("dialect", ["prorl", "vllm"])
async def test_a_trainer_gets_the_tokens_that_its_server_sampled(
    rollouts: RolloutRig, dialect: str
) -> None:
    """The server is added before the start, with ``/v1``; ``/generate`` is that of ProRL's trainer."""
    served = ListeningModel(
        scripted_model("It is 4, as two and two are.", "Yes.", odd_share=0.3), dialect
    )
    port = await rollouts.start_port()
    worker = asyncio.create_task(RolloutWorker(port, HANDLERS, 8).run())
    sampling = {**NEMO_RL, "custom_tokenizer": "tokenizer"}
    try:
        async with serving(served) as address, prorl(rollouts) as client:
            await started(client, f"{address}/v1")
            answer = await process(client, body({**INSTANCE, "trajectory_id": 0}, sampling))
    finally:
        worker.cancel()
        await asyncio.wait({worker})

    result = answer.json()
    assert (result["resolved"], result["error"]) == (True, None), result
    messages = result["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant", "user", "assistant"]
    assert [each["content"] for each in messages[::2]] == ["What is 2 + 2?", "Are you sure?"]
    assert messages[3]["content"] == "Yes."
    first, second = served.answered[-2:]  # after what tells its dialect
    assert [message["token_ids"] for message in messages[1::2]] == [first.ids, second.ids]
    assert [message["input_ids"] for message in messages[1::2]] == [
        first.prompt_ids,
        second.prompt_ids,
    ]
    assert messages[1]["logprobs"] == pytest.approx(first.logprobs)
    whole = [number for message in messages for number in message["token_ids"]]
    assert whole == [*second.prompt_ids, *second.ids]
