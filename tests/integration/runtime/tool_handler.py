"""A handler whose agent has a shell, a kernel and an editor, in a real handler process."""

from __future__ import annotations

from typing import Any

from examples.rollouts.scripted_llm import TOKENIZER
from rollout.agent.action_server import ActionServer
from rollout.agent.bash import BashTool
from rollout.agent.environment_tools import EditorTool, IPythonTool
from rollout.agent.run_agent import run_agent
from rollout.agent.tools import FinishTool, Tool
from rollout.handlers.base import AgentHandler, Job
from rollout.handlers.model_access import ModelAccess
from rollout.tokens.tokenizer_folders import TokenizerFolders


class Tooled(AgentHandler):
    """Runs an agent with all tools."""

    def __init__(self) -> None:
        self.models = ModelAccess(TokenizerFolders([TOKENIZER.parent]))

    async def init(self, job: Job) -> Any:
        return None

    async def run(self, job: Job) -> Any:
        server = ActionServer(cost={"cpu": 1})
        tools: list[Tool] = [
            BashTool(output_bytes=1001), IPythonTool(server), EditorTool(server), FinishTool(),
        ]  # fmt: skip
        opening = [{"role": "user", "content": "Mend it."}]
        run = await run_agent(job, self.models, opening, tools)
        return {"end": run.end, **run.result}

    async def eval(self, job: Job) -> Any:
        return 1.0

    def final_result(self, job: Job) -> Any:
        return {"ended": job.history[-1].header["value"]["end"]}
