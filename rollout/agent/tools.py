"""Tools of an agent: what the model may call, and what it sees of it. `ThinkTool` and `FinishTool` need nothing else.

    run = await run_agent(job, models, opening, [BashTool(), ThinkTool(), FinishTool()])

Lifetimes: a tool that has a state, as a shell has, is made for each run of an agent.

Rules
1. Whatever a tool does outside its process is an action of the job under a name that begins with its ``key``. The key is the
   same after a crash, so the call is made once (I3), and cores are granted while it runs only.
2. An observation is a function of the ends of those actions: a run that is continued gives the model the same texts.
3. `ToolRefused` is the model's mistake: its text is the observation. Any other error ends the rollout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from rollout.job import Job

_THOUGHT: Final = "Your thought is noted."


class ToolRefused(Exception):
    """The tool does not make the call; the text tells the model why."""


class Tool(Protocol):
    """One tool."""

    @property
    def name(self) -> str:
        """Name by which the model calls it."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """Description as in ``tools`` of OpenAI's chat completions."""

    @property
    def finishing(self) -> bool:
        """Whether a call ends the loop, with its arguments as the agent's result."""

    async def call(self, job: Job, arguments: Mapping[str, Any], key: str) -> str:
        """Make a call and return the observation; ``key`` names its actions. Raises ToolRefused."""


class ThinkTool:
    """Notes a thought: does nothing, which some models need to reason between calls."""

    finishing = False

    def __init__(self, name: str = "think") -> None:
        self.name = name
        self.schema = function_schema(
            name,
            "Note a thought, such as a plan or the cause of an error. Nothing is changed by it.",
            {"thought": {"type": "string", "description": "The thought."}},
            ["thought"],
        )

    async def call(self, job: Job, arguments: Mapping[str, Any], key: str) -> str:
        """Return that the thought is noted."""
        text_argument(arguments, "thought")
        return _THOUGHT


class FinishTool:
    """Ends the loop with a result."""

    finishing = True

    def __init__(
        self,
        name: str = "finish",
        description: str = "End the task. Call it when the task is done, or cannot be done.",
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """``parameters``: members of the result by name, as JSON Schema; all are required."""
        self.name = name
        members = parameters or {
            "message": {"type": "string", "description": "What was done, or the answer."}
        }
        self.schema = function_schema(name, description, members, list(members))

    async def call(self, job: Job, arguments: Mapping[str, Any], key: str) -> str:
        """Return nothing: the loop has ended."""
        return ""


def function_schema(
    name: str, description: str, parameters: Mapping[str, Any], required: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the schema of a tool, as chat templates and OpenAI's protocol have it."""
    members = {"type": "object", "properties": dict(parameters), "required": list(required)}
    function = {"name": name, "description": description, "parameters": members}
    return {"type": "function", "function": function}


def text_argument(arguments: Mapping[str, Any], name: str) -> str:
    """Return an argument that is a text. Raises ToolRefused."""
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ToolRefused(f"{name} is missing: give a text." if value is None else f"{name} is no text.")  # fmt: skip
    return value


def optional_text(arguments: Mapping[str, Any], name: str) -> str | None:
    """Return an argument that is a text or not given. Raises ToolRefused."""
    return None if arguments.get(name) is None else text_argument(arguments, name)


def seconds_argument(arguments: Mapping[str, Any], name: str, default: float, most: float) -> float:
    """Return an argument that is a time in seconds, at most ``most``. Raises ToolRefused."""
    value = arguments.get(name)
    if value is None:
        return default
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not number > 0:
        raise ToolRefused(f"{name} is a number of seconds above 0, at most {most:g}.")
    return float(min(number, most))
