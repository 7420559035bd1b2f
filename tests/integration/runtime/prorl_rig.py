"""ProRL's door over real HTTP, with rollout workers whose work a test states, and bodies as the published clients write them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import uvicorn

from domain.rollouts import RolloutOutcome, RolloutResult, Stage
from rollout.ports import Assigned, Record, RolloutPort
from rollout.tokens.sampled import SampledTokens
from rollout.tokens.segments import SampledTurn
from rollout.tokens.turn_records import turn_record
from scheduler.runtime.node.door.server import EmbeddedServer
from tests.integration.runtime.rollout_rig import RolloutRig

#: Sampling parameters of ``scripts/run_swe.py``.
RUN_SWE = {
    "model": "hosted_vllm/Qwen/Qwen3-8B", "api_key": "mykey", "modify_params": False,
    "log_completions": False, "native_tool_calling": True, "temperature": 0.6, "top_p": 0.9,
    "max_iterations": 35,
}  # fmt: skip
#: Those of the batch processor beside the trainer.
BATCH = {**RUN_SWE, "model": "hosted_vllm/Qwen/Qwen3-14B", "top_p": 0.95, "max_output_tokens": 3072}
#: Those of NeMo RL's environment.
NEMO_RL = {
    "model": "hosted_vllm/Qwen/Qwen3-8B", "api_key": "dummy_key", "modify_params": False,
    "log_completions": False, "native_tool_calling": True, "temperature": 1.0, "top_p": 1.0,
    "max_iterations": 50, "max_output_tokens": 4096, "token_level_generation": True,
    "custom_tokenizer": "Qwen/Qwen3-8B", "max_model_len": 32768, "ensure_thinking_end_properly": False,
    "strict_loop_detector": True, "is_reasoning_task": False,
}  # fmt: skip
#: An instance of SWE-Gym, shortened.
INSTANCE = {
    "instance_id": "getmoto__moto-5752", "repo": "getmoto/moto", "base_commit": "b2300f1eae1323e3e8bc45f97e530ce129dff12e",
    "problem_statement": "Filter ’name’ is wrong \u2028 here", "hints_text": None, "FAIL_TO_PASS": ["tests/a.py::t"],
    "PASS_TO_PASS": [], "version": 4.1,
}  # fmt: skip
#: What the model of the tests is asked and answers: the context of each turn, then its response.
CONTEXTS = ([7, 8, 9], [10, 11])
RESPONSES = ([100, 101], [102, 103, 104])
LOGPROBS = ([-0.5, -0.25], [-1.0, -2.0, -0.125])


def body(instance: dict[str, Any], sampling: dict[str, Any], **more: Any) -> bytes:
    """Return a body of ``/process`` as aiohttp writes it."""
    return json.dumps({"instance": instance, "sampling_params": sampling, **more}).encode()


#: Handlers of the workers.
HANDLERS = ("swe", "math", "code", "noop")
#: A job as ``scripts/run_swe.py`` posts it, and the pool of its task.
JOB = body({**INSTANCE, "trajectory_id": 3}, RUN_SWE)
POOL = "prorl.T@default"


def sampled_turns() -> list[SampledTurn]:
    """Return two turns of a conversation."""
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "bash", "arguments": '{"command": "ls"}'},
    }
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "reasoning_content": "Look.", "tool_calls": [call]},
        {"role": "assistant", "content": "Done."},
    ]
    asked = (
        [{"role": "system", "content": "Help."}, {"role": "user", "content": "Fix it."}],
        [{"role": "tool", "tool_call_id": "c", "name": "bash", "content": "setup.py"}],
    )
    return [
        SampledTurn(
            context=np.array(CONTEXTS[number], np.int32),
            tokens=SampledTokens(
                np.array(RESPONSES[number], np.int32), np.array(LOGPROBS[number], np.float32)
            ),
            weights_version=1,
            follows=number - 1 if number else None,
            message=messages[number],
            asked=asked[number],
            tools=[{"type": "function", "function": {"name": "bash"}}] if not number else (),
        )
        for number in range(2)
    ]


class Agent:
    """The work of a rollout worker: two turns, a patch and a reward; it may wait before, or end in another way."""

    def __init__(
        self,
        result: RolloutResult | None = None,
        *,
        turns: int = 2,
        end: str = "finished",
        held: bool = False,
    ) -> None:
        self.result = result or RolloutResult(RolloutOutcome.COMPLETED, 1.0)
        self.turns, self.end = turns, end
        self.released = asyncio.Event()
        if not held:
            self.released.set()
        #: Rollouts that began, in order.
        self.begun: list[Assigned] = []

    async def __call__(self, port: RolloutPort, given: Assigned) -> None:
        rollout, attempt = given.rollout, given.attempt
        self.begun.append(given)
        await self.released.wait()
        number = len(await port.read(rollout))
        records = [turn_record(turn) for turn in sampled_turns()[: self.turns]]
        if self.turns:
            records.append(Record("artefact", {"name": "patch"}, {"content": b"diff --git"}))
            records.append(Record("stage", {"stage": Stage.RUN, "value": {"end": self.end}}))
        error = {"stage": "eval", "type": "ValueError", "message": "no"}
        failed = self.result.outcome is RolloutOutcome.FAILED
        records.append(Record("result", {"detail": {}, **({"error": error} if failed else {})}))
        for record in records:
            await port.append(rollout, attempt, number, record)
            number += 1
        await port.finished(rollout, attempt, self.result)

    async def until_begun(self, number: int) -> None:
        """Wait until so many rollouts have begun."""
        async with asyncio.timeout(120):
            while len(self.begun) < number:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def prorl(
    rollouts: RolloutRig, token: str = "operator", **headers: str
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the door by a web process of its own; headers are settings, as the listener of the door adds them."""
    async with rollouts.rig.gateway() as gateway:
        config = uvicorn.Config(gateway, port=0, lifespan="off", log_level="warning", ws="none")
        server = EmbeddedServer(config)
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            serving = asyncio.create_task(server.serve([listening]))
            url = f"http://127.0.0.1:{listening.getsockname()[1]}/prorl"
            own = {"Authorization": f"Bearer {token}", "X-Tangram-Task": "T", **headers}
            async with httpx.AsyncClient(base_url=url, headers=own, timeout=300) as client:
                yield client
            server.end()
            await serving


async def started(client: httpx.AsyncClient, address: str = "http://127.0.0.1:8000/v1") -> None:
    """Begin a session with a server, as ``run_swe.py`` does."""
    (await client.post("/add_llm_server", json={"address": address})).raise_for_status()
    (await client.post("/start")).raise_for_status()


async def process(client: httpx.AsyncClient, content: bytes) -> httpx.Response:
    """Post a job."""
    return await client.post(
        "/process", content=content, headers={"Content-Type": "application/json"}
    )
