"""Handler ``sums``: a program of the environment adds two numbers. The smallest rollout with tools in all three stages.

An instance has ``a`` and ``b``. There is no language model here: a real handler asks one in RUN (docs/rollout-handlers.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from domain.rollouts import Stage
from rollout.core.results import Failure
from rollout.handlers.base import AgentHandler, Job


def command(*words: str) -> dict[str, Any]:
    """Return the members of an action that runs a program on one core."""
    return {"kind": "exec", "exec": {"command": list(words)}, "cost": {"cpu": 1}}


class SumsHandler(AgentHandler):
    """Adds two numbers in a shell."""

    async def init(self, job: Job) -> Mapping[str, Any] | None:
        """Store the program; RUN and EVAL are forks of what is here now."""
        await job.put("add.sh", b"echo $(($1 + $2))\n")
        return None

    async def run(self, job: Job) -> Mapping[str, Any] | None:
        """Run the program, and keep its answer."""
        given = job.request.instance
        end = await job.execute(command("sh", "add.sh", str(given["a"]), str(given["b"])))
        answer = str((end.result or {}).get("stdout", "")).strip()
        await job.artefact("answer", answer.encode())
        return {"answer": answer}

    async def eval(self, job: Job) -> Any:
        """Return 1 for the right answer."""
        given, answer = job.request.instance, job.value(Stage.RUN)["answer"]
        right = str(given["a"] + given["b"])
        return {
            "reward": float(answer == right),
            "reason": f"{answer or 'nothing'}, {right} is right",
        }

    def run_exception(self, job: Job, error: Failure) -> Mapping[str, Any] | None:
        """Say which numbers were added when RUN failed."""
        return {"a": job.request.instance["a"], "b": job.request.instance["b"]}
