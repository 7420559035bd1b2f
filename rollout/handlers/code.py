"""Handler ``code``: a program that a model writes, run on test cases in the environment.

| member of the instance | is |
|---|---|
| `question`, `problem` or `prompt` | the task |
| `starter_code` | what the program begins with |
| `tests`, `input_output` or `ground_truth` | the cases (`rollout.handlers.code_cases`) |

RUN returns the last block of code of the answer; with tools, the file ``solution.py`` where the agent wrote one. EVAL runs the cases
on as many cores as are free, each case for at most `case_seconds` of CPU time, and compares the answers in this process. The reward is 1 when all
cases are right, else 0; with the option ``partial`` their share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from domain.rollouts import Stage
from rollout.handlers.agent_runs import AgentOptions, ask_agent, check_agent, final_facts
from rollout.handlers.base import AgentHandler, CallRefused, Job
from rollout.handlers.code_cases import (
    CaseAnswer,
    ProgramCases,
    answers_of,
    batches,
    cases_of,
    is_right,
)
from rollout.handlers.commands import COMPLETED, failure_of, output_of, store_artefact
from rollout.handlers.programs import source
from rollout.handlers.request_members import (
    environment_needed,
    first_text,
    instance_of,
    options_of,
    refused,
)

PROGRAM: Final = "program"
SOLUTION: Final = "solution.py"
MAX_PROGRAM_CHARACTERS: Final = 256 * 1024
_QUESTION: Final = ("question", "problem", "prompt")
_FENCE: Final = "```"
_LANGUAGE: Final = re.compile(r"[ \t]*([A-Za-z0-9+]*)")
_PYTHON: Final = ("", "python", "python3", "py")
_RUNNER: Final = ".rollout/run_cases.py"
_OUTPUT_BYTES: Final = 900 * 1024
_MARGIN_SECONDS: Final = 30.0
_SHOWN: Final = 120
#: Ends that a program can bring about as well as a node.
_MAY_BE_THE_PROGRAM: Final = ("timeout", "oom_killed")
_STANDARD: Final = (
    "Write a Python program that reads from standard input and writes to standard output. End with the whole program in one"
    " ```python block."
)
_FUNCTION: Final = (
    "Write the Python function {name}. End with the whole code in one ```python block."
)
_WITH_TOOLS: Final = " Store it as /workspace/{file}, then call finish."


class CodeMembers(msgspec.Struct, frozen=True):
    """Members of an instance, beside its cases."""

    question: str | None = None
    problem: str | None = None
    prompt: str | None = None
    starter_code: str | None = None


class CodeOptions(AgentOptions, frozen=True, kw_only=True):
    """Options of the handler."""

    #: CPU time of one case; the clock, where it does not compute.
    case_seconds: float = 10.0
    #: Feasible core counts of an action of cases.
    test_cores: tuple[int, ...] = (1, 2, 4, 8)
    #: The reward is the share of cases that are right.
    partial: bool = False
    python: str = "python3"


class _Batch(NamedTuple):
    answers: Mapping[int, CaseAnswer]
    #: Why the cases have no reward; empty: they have one.
    problem: str = ""


class CodeHandler(AgentHandler):
    """Writes a program."""

    async def init(self, job: Job) -> Mapping[str, Any] | None:
        """Check the instance."""
        environment_needed(job, "code")
        first_text(instance_of(job, CodeMembers), _QUESTION)
        cases_of(job.request.instance)
        check_agent(job, _options(job))
        return None

    async def run(self, job: Job) -> Mapping[str, Any] | None:
        """Ask the model, and store its program."""
        members, options = instance_of(job, CodeMembers), _options(job)
        function = cases_of(job.request.instance).function
        system = _FUNCTION.format(name=function) if function else _STANDARD
        if options.tools:
            system += _WITH_TOOLS.format(file=SOLUTION)
        question = first_text(members, _QUESTION)
        if members.starter_code:
            question += f"\n\nBegin with this code:\n```python\n{members.starter_code}\n```"
        ran = await ask_agent(job, options, system, question)
        program = await _program(job, options, str(ran["answer"]))
        await store_artefact(job, PROGRAM, program.encode("utf-8", "replace"))
        return {**ran, "answer": "", "program": program[:MAX_PROGRAM_CHARACTERS]}

    async def eval(self, job: Job) -> Any:
        """Run the cases."""
        program, options = str(job.value(Stage.RUN)["program"]), _options(job)
        if not program.strip():
            return {"reward": 0.0, "reason": "the answer has no program"}
        if len(program) >= MAX_PROGRAM_CHARACTERS:
            return {"reward": 0.0, "reason": "the program is too long"}
        tests = cases_of(job.request.instance)
        right, wrong = 0, ""
        for number, (cases, most) in enumerate(batches(tests.cases)):
            members = _action(program, tests, options, cases, most)
            batch = await _run(job, members, f"cases-{number}", options)
            if batch.problem:
                return {"reward": None, "reason": batch.problem}
            for place, case in enumerate(cases):
                answer = batch.answers.get(place)
                if is_right(answer, tests.cases[case].expected, called=bool(tests.function)):
                    right += 1
                else:
                    wrong = wrong or f"; case {case} {_how(answer)}"
            if wrong and not options.partial:
                break
        share = right / len(tests.cases)
        reward = share if options.partial else float(share == 1.0)
        return {"reward": reward, "reason": f"{right} of {len(tests.cases)} cases are right{wrong}"}

    def final_result(self, job: Job) -> Mapping[str, Any] | None:
        """Say how the agent ended."""
        return final_facts(job.value(Stage.RUN))


def last_program(text: str) -> str:
    """Return the last block of Python in a text; without a block, nothing."""
    found, at = "", 0
    while (begin := text.find(_FENCE, at)) >= 0 and (line_end := text.find("\n", begin)) >= 0:
        language = _LANGUAGE.match(text, begin + len(_FENCE), line_end)
        end = text.find(_FENCE, line_end)
        end = len(text) if end < 0 else end
        if language is not None and language[1].lower() in _PYTHON:
            found = text[line_end + 1 : end]
        at = end + len(_FENCE)
    return found


def _options(job: Job) -> CodeOptions:
    options = options_of(job, CodeOptions)
    if not 0 < options.case_seconds <= 3600:
        raise refused("options", "case_seconds", "give a time above 0 and at most 3600 s")
    if not options.test_cores or min(options.test_cores) < 1:
        raise refused("options", "test_cores", "give core counts of at least 1")
    return options


async def _program(job: Job, options: CodeOptions, answer: str) -> str:
    if options.tools:
        try:
            return (await job.get(SOLUTION)).decode("utf-8", "replace")
        except CallRefused:  # there is none
            pass
    return last_program(answer)


def _action(
    program: str, tests: ProgramCases, options: CodeOptions, cases: range, most_bytes: int
) -> dict[str, Any]:
    """Return the members of the elastic action that runs some cases."""
    order = {
        "program": program,
        "function": tests.function,
        "cases": [tests.cases[case].given for case in cases],
        "seconds": options.case_seconds,
        "most_bytes": most_bytes,
    }
    words = [options.python, "-I", _RUNNER, "{units}"]
    cores = [each for each in sorted(set(options.test_cores)) if each <= len(cases)]
    return {
        "kind": "exec",
        "family": "test",
        "cost": {"cpu": cores or [1]},
        "key": "cpu",
        "malleable": True,
        # All cases may share one core, and use a quarter of it.
        "timeout_seconds": 4 * options.case_seconds * (len(cases) + (cores or [1])[-1])
        + _MARGIN_SECONDS,
        "exec": {
            "command": words,
            "stdin": msgspec.json.encode(order).decode(),
            "output": {"limit_bytes": _OUTPUT_BYTES, "keep": "head"},
        },
        # The command has a sandbox of its own; the cases are judged by their answers.
        "reward": {"from": "exit_code", "files": {_RUNNER: source("run_cases")}},
    }


async def _run(job: Job, members: Mapping[str, Any], name: str, options: CodeOptions) -> _Batch:
    """Return the answers of an action. Raises InvalidRequest where the environment cannot run any program."""
    end = await job.execute(members, name=name)
    begun, answers = answers_of(output_of(end))
    if end.outcome == COMPLETED:
        if not begun:
            raise refused("options", "python", f"{options.python!r} cannot run: {failure_of(end)}")
        return _Batch(answers)
    why = f"the cases: {failure_of(end)}"
    if end.outcome not in _MAY_BE_THE_PROGRAM:
        return _Batch({}, why)
    # A program may stop what runs it, or take its memory: another program shows whether it did.
    order = msgspec.json.decode(members["exec"]["stdin"])
    stdin = msgspec.json.encode({**order, "program": ""}).decode()
    control = {**members, "exec": {**members["exec"], "stdin": stdin}}
    other = await job.execute(control, name=f"{name}-control")
    return _Batch(answers) if other.outcome == COMPLETED else _Batch({}, why)


def _how(answer: CaseAnswer | None) -> str:
    if answer is None:
        return "ended with the program that ran it"
    if answer.how == "ended":
        return "is wrong"
    said = f": {answer.said.strip()[-_SHOWN:]}" if answer.said.strip() else ""
    return {"timeout": "took too long", "long": "answered too much"}.get(
        answer.how, f"failed{said}"
    )
