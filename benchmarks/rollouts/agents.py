"""Handler of the benchmarks: an agent with a shell that does what its plan says, with our own loop and tools.

Options: ``bash`` is ``session`` (the tool of the product) or ``tmux`` (a command is typed into tmux and looked for each 0.5 s, as
OpenHands does it: the product without its efficient shell); ``audit`` has the result say which steps ran.

A package that exists only for a run makes the handler known to its rollout worker (`handlers_on_path`): a folder with metadata of
an entry point, on `PYTHONPATH`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from domain.rollouts import Stage
from examples.rollouts.scripted_llm import TOKENIZER
from rollout.agent.run_agent import run_agent
from rollout.agent.tools import Tool
from rollout.handlers.base import AgentHandler, Job
from rollout.handlers.model_access import ModelAccess
from rollout.tokens.tokenizer_folders import TokenizerFolders

HANDLER: Final = "planned"
#: Of requests: the tokenizer of the scripted models.
SAMPLING: Final = {"custom_tokenizer": TOKENIZER.name, "max_tokens": 512}
_METADATA: Final = "Metadata-Version: 2.1\nName: bench-rollouts\nVersion: 1.0\n"
_SYSTEM: Final = (
    "You have a shell. Call the tool `bash` for each step, and then say that you are done."
)
_TYPED: Final = """
number=$1
tmux has-session 2>/dev/null || tmux new-session -d -s agent -x 1000 -y 1000 'bash --norc'
tmux send-keys -t agent "$2; echo ended-\\$(($number))-\\$?" Enter
until tmux capture-pane -p -J -S - -t agent | grep -q "^ended-$number-"; do sleep 0.5; done
"""


class TypedBash:
    """Shell of the product without its sessions: keys for tmux, and a look at its screen each half a second."""

    name = "bash"
    finishing = False
    schema: Mapping[str, Any] = {
        "type": "function",
        "function": {
            "name": name,
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }

    def __init__(self) -> None:
        self._commands = 0

    async def call(self, job: Job, arguments: Mapping[str, Any], key: str) -> str:
        """Return when the screen shows that the command has ended."""
        self._commands += 1
        command = ["bash", "-c", _TYPED, "typed", str(self._commands), str(arguments["command"])]
        members = {"kind": "exec", "exec": {"command": command}, "cost": {"cpu": 1}}
        end = await job.execute(members, name=key)
        return str((end.result or {}).get("exit_code"))


class TimedTool:
    """A tool whose calls are timed."""

    def __init__(self, tool: Tool, seconds: list[float]) -> None:
        self._tool, self._seconds = tool, seconds
        self.name, self.schema, self.finishing = tool.name, tool.schema, tool.finishing

    async def call(self, job: Job, arguments: Mapping[str, Any], key: str) -> str:
        """Call it."""
        began = time.monotonic()
        observation = await self._tool.call(job, arguments, key)
        self._seconds.append(time.monotonic() - began)
        return observation


class PlannedAgent(AgentHandler):
    """Does the steps of its plan."""

    def __init__(self) -> None:
        self._models = ModelAccess(TokenizerFolders([TOKENIZER.parent]))

    async def init(self, job: Job) -> Any:
        """Prepare the environment with one command."""
        if job.request.environment is not None:
            await job.execute(_once("mkdir -p work"))

    async def run(self, job: Job) -> Any:
        """Run the agent."""
        seconds: list[float] = []
        bash = _bash(str(job.request.options.get("bash", "session")))
        opening = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": job.request.instance["question"]},
        ]
        tools = [TimedTool(bash, seconds)]
        found = await run_agent(job, self._models, opening, tools)
        ran: list[str] = []
        if job.request.options.get("audit"):
            end = await job.execute(_once("cat ran"), name="audit")
            ran = str((end.result or {}).get("stdout", "")).split()
        return {
            "end": found.end,
            "ran": ran,
            "tools": len(seconds),
            "tool_seconds": round(sum(seconds), 3),
        }

    async def eval(self, job: Job) -> Any:
        """Return the reward that the plan states."""
        return job.request.instance["reward"]

    def final_result(self, job: Job) -> Mapping[str, Any]:
        """Return what RUN found."""
        return dict(job.value(Stage.RUN))


def _bash(kind: str) -> Tool:
    if kind == "tmux":
        return TypedBash()
    from rollout.agent.bash import BashTool

    return BashTool()


def _once(command: str) -> dict[str, Any]:
    """Return a command that may run again: when its node worker is killed, it does."""
    work = {"kind": "exec", "exec": {"command": ["sh", "-c", command]}, "cost": {"cpu": 1}}
    return {**work, "replay_safe": True}


def handlers_on_path(folder: Path) -> str:
    """Write the package that has the handler into ``folder``; return the value of `PYTHONPATH`."""
    package = folder / "bench_rollouts-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text(_METADATA)
    place = f"{PlannedAgent.__module__}:{PlannedAgent.__name__}"
    (package / "entry_points.txt").write_text(f"[tangram.rollouts]\n{HANDLER} = {place}\n")
    return str(folder)
