"""Agent handlers: what a kind of rollout does in INIT, RUN and EVAL (Listing 1 of ProRL Agent).

    class Riddles(AgentHandler):
        async def init(self, job):
            await job.execute({"kind": "exec", "exec": {"command": ["pip", "install", "sympy"]}, "cost": {"cpu": 1}})

        async def run(self, job):
            end = await job.execute({"kind": "exec", "exec": {"command": ["python", "solve.py"]}, "cost": {"cpu": 1}})
            return {"answer": end.result["stdout"]}

        async def eval(self, job):
            return {"reward": float(job.value(Stage.RUN)["answer"] == job.request.instance["solution"])}

Lifetimes: a handler process makes one handler of each name, and calls it for many rollouts at once. A `Job` is one
rollout there. It ends with the process; the rollout continues from its log in another one.

Rules
1. A method is a function of its job: continued after a crash, it is called again from its beginning, makes the same
   calls in the same order, and gets the stored ends of those that had ended. A handler with a state of its own
   continues from ``job.history``.
2. Methods of stages are coroutines and never block: a handler that blocks its process for `BLOCKED_SECONDS` has failed.
3. ``init`` and ``run`` return a dict or None; ``eval`` a number, None, or a dict with ``reward`` and ``reason``. An
   error that a method raises ends the rollout: it has no reward, and its type is part of the reason.
4. Exception callbacks and ``final_result`` return members of the result's ``detail``. They do not wait, call no actions,
   and cannot change outcome or reward.
5. What ends a stage from outside (cancel, time limit, lost environment) arrives as `asyncio.CancelledError`. A handler
   that keeps running is left to its process, which ends with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from rollout.core.results import Failure
from rollout.job import CallRefused, Job

__all__ = ["BLOCKED_SECONDS", "AgentHandler", "CallRefused", "Job"]

#: Longest time for which a handler may keep the event loop of its process.
BLOCKED_SECONDS: Final = 30.0


class AgentHandler(ABC):
    """Does the stages of one kind of rollout."""

    @abstractmethod
    async def init(self, job: Job) -> Mapping[str, Any] | None:
        """Prepare the environment."""

    @abstractmethod
    async def run(self, job: Job) -> Mapping[str, Any] | None:
        """Run the agent, in a fork of the prepared environment."""

    @abstractmethod
    async def eval(self, job: Job) -> Any:
        """Return the reward; its first call makes a fork of the prepared environment."""

    def init_exception(self, job: Job, error: Failure) -> Mapping[str, Any] | None:
        """Return what the result says beside an error of INIT."""
        return None

    def run_exception(self, job: Job, error: Failure) -> Mapping[str, Any] | None:
        """Return what the result says beside an error of RUN."""
        return None

    def eval_exception(self, job: Job, error: Failure) -> Mapping[str, Any] | None:
        """Return what the result says beside an error of EVAL."""
        return None

    def final_result(self, job: Job) -> Mapping[str, Any] | None:
        """Return what every result says besides."""
        return None
