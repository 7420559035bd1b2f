"""Handler ``math``: a question with one right answer: a number, an expression, or a short list of them.

| member of the instance | is |
|---|---|
| `problem`, `question` or `prompt` | the question |
| `answer`, `ground_truth`, `expected_answer` or `solution` | the answer; of a longer text the last box, or what follows "answer" |

The reward is 1 for the right answer and 0 for another one. Answers are compared as `rollout.handlers.answers` says, in this process,
which runs nothing of them. An answer without a value, or one that is too large for that, is wrong. Where the right answer is too
large, both are compared by sympy in the environment, where the rollout has one and sympy is installed there; else the rollout has
no reward, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from domain.rollouts import Stage
from rollout.handlers.agent_runs import AgentOptions, ask_agent, check_agent, final_facts
from rollout.handlers.answers import final_answer, same_answer
from rollout.handlers.base import AgentHandler, Job
from rollout.handlers.commands import command, output_of
from rollout.handlers.expressions import NoExpression, read
from rollout.handlers.programs import source
from rollout.handlers.request_members import first_text, instance_of, options_of

_QUESTION: Final = ("problem", "question", "prompt")
_ANSWER: Final = ("answer", "ground_truth", "expected_answer", "solution")
_SYSTEM: Final = "Solve the problem step by step. Put the final answer, and nothing else, into \\boxed{} at the end."
_SYMPY_SECONDS: Final = 60.0
_SHOWN: Final = 80


class MathMembers(msgspec.Struct, frozen=True):
    """Members of an instance."""

    problem: str | None = None
    question: str | None = None
    prompt: str | None = None
    answer: str | int | float | None = None
    ground_truth: str | int | float | None = None
    expected_answer: str | int | float | None = None
    solution: str | None = None


class MathHandler(AgentHandler):
    """Answers a question of mathematics."""

    async def init(self, job: Job) -> Mapping[str, Any] | None:
        """Check the instance."""
        _question(job), _expected(job)
        check_agent(job, options_of(job, AgentOptions))
        return None

    async def run(self, job: Job) -> Mapping[str, Any] | None:
        """Ask the model."""
        ran = await ask_agent(job, options_of(job, AgentOptions), _SYSTEM, _question(job))
        return {**ran, "answer": final_answer(str(ran["answer"]))}

    async def eval(self, job: Job) -> Any:
        """Compare the answer."""
        answer, expected = str(job.value(Stage.RUN)["answer"]), _expected(job)
        if not answer:
            return {"reward": 0.0, "reason": "there is no answer"}
        same = same_answer(answer, expected)
        why = f"{answer[:_SHOWN]!r}, {expected[:_SHOWN]!r} is right"
        if same is None and (trees := _trees(answer, expected)) is not None:
            same, problem = await _compared_by_sympy(job, trees)
            if same is None:
                return {"reward": None, "reason": f"{why}; it is not decided: {problem}"}
        return {"reward": float(bool(same)), "reason": why}

    def final_result(self, job: Job) -> Mapping[str, Any] | None:
        """Give the answer."""
        return final_facts(job.value(Stage.RUN), ("answer", "end", "iterations"))


def _question(job: Job) -> str:
    return first_text(instance_of(job, MathMembers), _QUESTION)


def _expected(job: Job) -> str:
    return final_answer(first_text(instance_of(job, MathMembers), _ANSWER))


def _trees(answer: str, expected: str) -> list[Any] | None:
    """Return both as expressions; None: one of them is none, so they differ."""
    try:
        return [read(answer), read(expected)]
    except NoExpression:
        return None


async def _compared_by_sympy(job: Job, trees: list[Any]) -> tuple[bool | None, str]:
    """Return whether two expressions are equal; else why that is not known."""
    if job.request.environment is None:
        return None, "it needs an environment with sympy"
    given = msgspec.json.encode(trees).decode()
    words = ("python3", "-I", "-c", source("compare_expressions"))
    members = {
        **command(*words, family="reward", stdin=given),
        "timeout_seconds": _SYMPY_SECONDS,
    }
    end = await job.execute(members, name="sympy")
    lines = output_of(end).splitlines()
    try:
        said = msgspec.json.decode(lines[-1], type=dict[str, Any]) if lines else {}
    except msgspec.MsgspecError:
        said = {}
    if isinstance(said.get("equal"), bool):
        return said["equal"], ""
    return None, "the environment has no sympy" if said.get(
        "missing"
    ) else "sympy does not decide it"
