"""A handler whose agent is outside: RUN answers its calls until its action has ended."""

from __future__ import annotations

import asyncio
from typing import Any

from examples.rollouts.scripted_llm import TOKENIZER
from rollout.handlers.base import AgentHandler
from rollout.handlers.foreign import AgentQuestions
from rollout.handlers.model_access import ModelAccess
from rollout.job import Job
from rollout.llm.model_calls import ForeignChat
from rollout.llm.sampler import SamplerLimits
from rollout.tokens.tokenizer_folders import TokenizerFolders


class Chatting(AgentHandler):
    """Answers chat completions until its action has ended."""

    def __init__(self) -> None:
        limits = SamplerLimits(attempts=2)
        self.models = ModelAccess(TokenizerFolders([TOKENIZER.parent]), limits=limits)

    async def init(self, job: Job) -> Any:
        return None

    async def run(self, job: Job) -> Any:
        questions = AgentQuestions(ForeignChat(await self.models.caller(job)))
        job.serve(questions.answer)
        members = {"kind": "exec", "exec": {"command": ["sleep", "600"]}, "cost": {"cpu": 1}}
        running = asyncio.ensure_future(job.execute(members, name="agent"))
        ends: set[asyncio.Future[Any]] = {running, questions.failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if questions.failed.done():
            questions.failed.result()
        return {"access": dict(await job.agent_access())}

    async def eval(self, job: Job) -> Any:
        return 1.0
