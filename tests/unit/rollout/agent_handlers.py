"""A handler whose agent has tools, over backends in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from examples.rollouts.scripted_llm import TOKENIZER
from rollout.agent.bash import BashTool
from rollout.agent.loop import LoopLimits
from rollout.agent.run_agent import run_agent
from rollout.agent.tools import FinishTool, ThinkTool, Tool, ToolRefused, function_schema
from rollout.handlers.base import AgentHandler, Job
from rollout.handlers.model_access import ModelAccess
from rollout.llm.engine_client import EngineClient
from rollout.llm.sampler import SamplerLimits
from rollout.tokens.tokenizer_folders import TokenizerFolders
from tests.scripted_backends import Backends

BACKENDS = Backends()
OPENING = [{"role": "user", "content": "Mend it."}]


class EchoTool:
    """Says what it is given, many times, or refuses."""

    name = "echo"
    schema = function_schema("echo", "Say it.", {"text": {"type": "string"}})
    finishing = False

    async def call(self, job: Job, arguments: Mapping[str, Any], key: str) -> str:
        """Return the text ``times`` times."""
        if "text" not in arguments:
            raise ToolRefused("text is missing")
        return str(arguments["text"]) * int(arguments.get("times", 1))


class ToolAgent(AgentHandler):
    """Runs an agent with a shell."""

    def __init__(self) -> None:
        client = EngineClient(transport=BACKENDS)
        limits = SamplerLimits(attempts=2)
        self.models = ModelAccess(TokenizerFolders([TOKENIZER.parent]), client, limits)

    async def init(self, job: Job) -> Any:
        return None

    async def run(self, job: Job) -> Any:
        tools: list[Tool] = [BashTool(), EchoTool(), ThinkTool(), FinishTool()]
        limits = LoopLimits(max_iterations=8, max_observation_characters=1000)
        run = await run_agent(job, self.models, OPENING, tools, limits)
        return {"end": run.end, "result": run.result, "iterations": run.iterations}

    async def eval(self, job: Job) -> Any:
        return 1.0
