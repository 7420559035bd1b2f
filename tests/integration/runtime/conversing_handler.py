"""A handler whose agent says the same in each turn, in a real handler process."""

from __future__ import annotations

from typing import Any

from rollout.handlers.base import AgentHandler, Job
from rollout.handlers.model_access import models_of_process


class Conversing(AgentHandler):
    """Asks as often as the instance says."""

    async def init(self, job: Job) -> Any:
        return None

    async def run(self, job: Job) -> Any:
        session = await models_of_process().session(job)
        for _ in range(int(job.request.instance["turns"])):
            await session.ask([{"role": "user", "content": "Go on."}])
        return {}

    async def eval(self, job: Job) -> Any:
        return 1.0
