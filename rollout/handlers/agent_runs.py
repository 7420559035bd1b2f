"""Runs of agents whose result is a text: the limits, the tools by name, and the text of the answer.

A trainer names the tools of handlers ``math``, ``code`` and ``stem`` in the option ``tools``; without any, the first answer of the
model is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from rollout.agent.bash import BashTool
from rollout.agent.environment_tools import EditorTool, IPythonTool
from rollout.agent.loop import LoopLimits
from rollout.agent.run_agent import AgentRun, run_agent
from rollout.agent.tools import FinishTool, ThinkTool, Tool
from rollout.agent.web_search import WebSearchTool
from rollout.handlers.base import Job
from rollout.handlers.model_access import models_of_process
from rollout.handlers.request_members import refused

MAX_ITERATIONS: Final = "max_iterations"


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that handlers of questions share."""

    max_iterations: int | None = None
    system_prompt: str | None = None
    #: Names of tools: `TOOLS`.
    tools: list[str] = []
    #: API that the tool ``search`` asks.
    search_api: str = "api:search"


#: Name → the tool; those of `_IN_ENVIRONMENT` need an environment.
TOOLS: Final[Mapping[str, Callable[[AgentOptions], Tool]]] = {
    "bash": lambda options: BashTool(),
    "editor": lambda options: EditorTool(),
    "python": lambda options: IPythonTool(),
    "search": lambda options: WebSearchTool(options.search_api),
    "think": lambda options: ThinkTool(),
}
_IN_ENVIRONMENT: Final = frozenset({"bash", "editor", "python"})


def loop_limits(job: Job, option: int | None) -> LoopLimits:
    """Return the limits of the loop: an option, or a member of ``sampling``, as published clients send it. Raises InvalidRequest."""
    stated = option if option is not None else job.request.sampling.get(MAX_ITERATIONS)
    if stated is None:
        return LoopLimits()
    if isinstance(stated, bool) or not isinstance(stated, int) or stated < 1:
        where = "options" if option is not None else "sampling"
        raise refused(where, MAX_ITERATIONS, "give a count of at least 1")
    return msgspec.structs.replace(LoopLimits(), max_iterations=stated)


def check_agent(job: Job, options: AgentOptions) -> None:
    """Raise InvalidRequest for options that no run can have."""
    loop_limits(job, options.max_iterations)
    for number, name in enumerate(options.tools):
        if name not in TOOLS:
            problem = f"there is no tool {name[:40]!r}; there are {', '.join(sorted(TOOLS))}"
            raise refused("options", f"tools[{number}]", problem)
        if name in _IN_ENVIRONMENT and job.request.environment is None:
            problem = f"{name} needs an environment; submit the rollouts with one"
            raise refused("options", f"tools[{number}]", problem)


def agent_tools(options: AgentOptions) -> list[Tool]:
    """Return the tools of one run, with ``finish`` where there are any."""
    chosen = [TOOLS[name](options) for name in dict.fromkeys(options.tools)]
    answer = {"answer": {"type": "string", "description": "The answer."}}
    finish = FinishTool(description="Give the answer, and end.", parameters=answer)
    return [*chosen, finish] if chosen else []


async def ask_agent(
    job: Job, options: AgentOptions, system: str, question: str
) -> Mapping[str, Any]:
    """Run an agent on a question; return the value of RUN: ``answer``, ``end``, ``iterations``."""
    opening = [
        {"role": "system", "content": options.system_prompt or system},
        {"role": "user", "content": question},
    ]
    limits = loop_limits(job, options.max_iterations)
    ran = await run_agent(job, models_of_process(), opening, agent_tools(options), limits)
    return {"answer": answer_of(ran), "end": ran.end.value, "iterations": ran.iterations}


def answer_of(ran: AgentRun) -> str:
    """Return the text of an answer; empty where there is none."""
    answer = ran.result.get("answer")
    return answer if isinstance(answer, str) else ""


def final_facts(
    value: Mapping[str, Any], names: Sequence[str] = ("end", "iterations")
) -> dict[str, Any]:
    """Return what the result says of a run."""
    return {name: value[name] for name in names if name in value}
