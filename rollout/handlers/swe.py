"""Handler ``swe``: an agent fixes an issue in a repository, and tests that it does not see are the reward (SWE-bench).

| stage | does |
|---|---|
| INIT | the repository at its commit, the setup commands, one commit with everything |
| RUN | the agent with a shell, an editor, `think` and `finish`; artefacts ``patch`` and ``changed-files.tar`` |
| EVAL | the patch and the hidden tests in another fork; artefact ``tests`` |

An answer without a patch has reward 0, and no environment is opened for it. The members of an instance are those of
`rollout.handlers.swe_instances`, the rewards those of `rollout.handlers.repository_tests`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from domain.rollouts import Stage
from rollout.agent.action_server import ActionServer
from rollout.agent.bash import BashTool
from rollout.agent.environment_tools import EditorTool, IPythonTool
from rollout.agent.run_agent import run_agent
from rollout.agent.tools import FinishTool, ThinkTool, Tool
from rollout.handlers.agent_runs import loop_limits
from rollout.handlers.base import AgentHandler, Job
from rollout.handlers.commands import store_artefact, stored_artefact
from rollout.handlers.model_access import models_of_process
from rollout.handlers.repository import PATCH, apply_patch, prepare_repository, read_patch
from rollout.handlers.repository_tests import judge
from rollout.handlers.request_members import environment_needed
from rollout.handlers.swe_instances import SweInstance, swe_instance, swe_options

#: Artefact of EVAL.
TESTS: Final = "tests"

_SYSTEM: Final = (
    "You are a software engineer. You fix an issue in a repository with the tools that you have. Change the code, not its tests:"
    " changes of tests and of their configuration are taken back before your work is judged by other tests."
)
_TASK: Final = """\
The repository is in {place}. Fix this issue:

<issue>
{issue}
</issue>

Find the cause, change the code, and check that it works. Then call finish."""


class SweHandler(AgentHandler):
    """Fixes an issue in a repository."""

    async def init(self, job: Job) -> Mapping[str, Any] | None:
        """Check the whole instance, and prepare the repository."""
        environment_needed(job, "swe")
        instance, options = swe_instance(job), swe_options(job)
        loop_limits(job, options.max_iterations)
        return {"base": await prepare_repository(job, instance)}

    async def run(self, job: Job) -> Mapping[str, Any] | None:
        """Run the agent, and store its patch."""
        instance, options = swe_instance(job), swe_options(job)
        limits = loop_limits(job, options.max_iterations)
        opening = [
            {"role": "system", "content": options.system_prompt or _SYSTEM},
            {"role": "user", "content": question(instance)},
        ]
        ran = await run_agent(
            job, models_of_process(), opening, tools(instance, options.tools), limits
        )
        patch = await read_patch(job, instance.directory, job.value(Stage.INIT)["base"])
        return {
            "end": ran.end.value,
            "iterations": ran.iterations,
            "patch_bytes": patch.size,
            "problem": patch.problem,
        }

    async def eval(self, job: Job) -> Any:
        """Return what the tests say of the patch."""
        instance, options = swe_instance(job), swe_options(job)
        ran, base = job.value(Stage.RUN), job.value(Stage.INIT)["base"]
        if ran["problem"]:
            return {"reward": 0.0, "reason": ran["problem"]}
        patch = stored_artefact(job, PATCH) or b""
        if not patch and instance.fail_to_pass:
            return {"reward": 0.0, "reason": "the agent changed nothing"}
        applied = await apply_patch(job, instance, base, patch)
        if applied.problem:
            return {"reward": 0.0, "reason": applied.problem}
        verdict = await judge(job, instance, options, base)
        facts = {"reward": verdict.reward, "put_back": list(applied.put_back)}
        report = msgspec.json.format(msgspec.json.encode({**verdict.report, **facts}))
        await store_artefact(job, TESTS, report, facts)
        return {"reward": verdict.reward, "reason": verdict.reason}

    def final_result(self, job: Job) -> Mapping[str, Any] | None:
        """Say how the agent ended."""
        ran = job.value(Stage.RUN)
        return {name: ran[name] for name in ("end", "iterations", "patch_bytes") if name in ran}


def question(instance: SweInstance) -> str:
    """Return what the agent is asked."""
    return _TASK.format(place=place_of(instance), issue=instance.problem_statement.strip())


def place_of(instance: SweInstance) -> str:
    """Return the absolute path of the repository."""
    place = instance.directory
    return place if place.startswith("/") else f"/workspace/{place}"


def tools(instance: SweInstance, names: Sequence[str]) -> list[Tool]:
    """Return the tools of one run of the agent, and ``finish``."""
    place, variables = place_of(instance), instance.variables
    server = ActionServer(python=instance.python, cwd=place, env=variables)
    made: Mapping[str, Callable[[], Tool]] = {
        "bash": lambda: BashTool(cwd=place, env=variables),
        "editor": lambda: EditorTool(server),
        "python": lambda: IPythonTool(server),
        "think": ThinkTool,
    }
    return [*(made[name]() for name in dict.fromkeys(names)), FinishTool()]
