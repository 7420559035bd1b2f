"""A handler that talks to a model, over backends in this process."""

from __future__ import annotations

from typing import Any

from examples.rollouts.scripted_llm import TOKENIZER
from rollout.handlers.base import AgentHandler, Job
from rollout.handlers.model_access import ModelAccess
from rollout.llm.engine_client import EngineClient
from rollout.llm.sampler import SamplerLimits
from rollout.tokens.tokenizer_folders import TokenizerFolders
from tests.scripted_backends import Backends

BACKENDS = Backends()
COMMAND = {"kind": "exec", "exec": {"command": ["ls"]}, "cost": {"cpu": 1}}


class Counting(AgentHandler):
    """Asks, does what the model calls, asks again with what it saw."""

    def __init__(self) -> None:
        client = EngineClient(transport=BACKENDS)
        limits = SamplerLimits(attempts=2)
        self.models = ModelAccess(TokenizerFolders([TOKENIZER.parent]), client, limits)

    async def init(self, job: Job) -> Any:
        return None

    async def run(self, job: Job) -> Any:
        session = await self.models.session(job)
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Count the files."}]
        while True:
            answer = await session.ask(messages)
            calls = answer.message.get("tool_calls", [])
            if not calls:
                return {"answer": answer.message["content"]}
            end = await job.execute(COMMAND)
            content = f"exit code {(end.result or {}).get('exit_code')}"
            messages = [
                {"role": "tool", "tool_call_id": call["id"], "content": content} for call in calls
            ]

    async def eval(self, job: Job) -> Any:
        return 1.0
