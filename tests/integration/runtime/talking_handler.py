"""A handler whose agent talks to its model twice, in a real handler process."""

from __future__ import annotations

from typing import Any

from examples.rollouts.scripted_llm import TOKENIZER
from rollout.handlers.base import AgentHandler, Job
from rollout.handlers.model_access import ModelAccess
from rollout.tokens.tokenizer_folders import TokenizerFolders


class Talking(AgentHandler):
    """Asks the instance's question, and then whether the model is sure."""

    def __init__(self) -> None:
        self.models = ModelAccess(TokenizerFolders([TOKENIZER.parent]))

    async def init(self, job: Job) -> Any:
        return None

    async def run(self, job: Job) -> Any:
        session = await self.models.session(job)
        question = str(job.request.instance["question"])
        await session.ask([{"role": "user", "content": question}])
        answer = await session.ask([{"role": "user", "content": "Are you sure?"}])
        return {"answer": answer.message["content"]}

    async def eval(self, job: Job) -> Any:
        return 1.0
