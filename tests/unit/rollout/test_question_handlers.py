"""Handlers math, stem and code: right and wrong answers, hostile ones, and instances that cannot be judged."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from domain.rollouts import RolloutOutcome
from rollout.handlers import process_options
from rollout.handlers.agent_runs import TOOLS
from rollout.handlers.code import last_program
from rollout.handlers.model_access import models_of_process, share_models
from rollout.handlers.process_options import ProcessOptions
from rollout.handlers.stem import StemQuestion, chosen, is_right
from tests.unit.rollout.conftest import Bench
from tests.unit.rollout.handler_bench import HandlerBench, call

SUM = {"problem": "What is 1/2 + 1/4?", "answer": r"\frac{3}{4}"}
CHOICE = {"question": "Which gas?", "choices": ["oxygen", "argon", "neon"], "answer": "B"}
SQUARE = {
    "question": "Print the square.",
    "tests": [{"input": f"{n}\n", "output": f"{n * n}\n"} for n in range(1, 4)],
}
ANSWER = "```python\nprint(int(input()) ** 2)\n```"


@pytest.fixture(autouse=True)
def models_are_not_shared_with_other_tests() -> Iterator[None]:
    yield
    share_models(None)
    process_options.use(ProcessOptions())


def test_the_models_of_a_process_have_the_tokenizers_of_its_options(tmp_path) -> None:
    process_options.use(ProcessOptions(tokenizers=(str(tmp_path),)))
    share_models(None)

    models = models_of_process()

    assert models is models_of_process()
    assert models._tokenizers._allowed == [tmp_path]


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        (r"It is \boxed{0.75}.", 1.0),
        (r"It is \boxed{\frac{6}{8}}", 1.0),
        (r"\boxed{3/4} or \boxed{1}", 0.0),
        (r"\boxed{__import__('os').abort()}", 0.0),
        ("Answer: 0.75, 0.5", 0.0),
        (r"\boxed{\frac{0}{0}}", 0.0),
        (r"\boxed{2^{99999}}", 0.0),
        (r"\boxed{501!}", 0.0),
    ],
)
async def test_an_answer_of_mathematics_needs_no_environment(
    bench: Bench, said: str, reward: float
) -> None:
    maths = HandlerBench(bench, "math")

    result = await maths.result(said, instance=SUM, environment=None)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, reward), result.reason
    assert result.turns == 1
    assert maths.port.actions("rol_1") == []
    assert maths.port.finished_trajectories == []


async def test_expressions_that_are_too_large_are_compared_in_the_environment(bench: Bench) -> None:
    maths = HandlerBench(bench, "math")
    sent: list[Any] = []

    async def sympy(members: Any) -> Any:
        sent.append(members["exec"])
        return "completed", {"exit_code": 0, "stdout": 'noise\n{"equal": true}\n'}

    maths.port.program = sympy
    instance = {"problem": "?", "answer": "2^{100000}"}

    result = await maths.result(r"\boxed{4^{50000}}", instance=instance)

    assert result.reward == 1.0
    [work] = sent
    assert json.loads(work["stdin"])[1] == ["^", ["number", "2"], ["number", "100000"]]
    assert "eval(" not in work["command"][-1]


@pytest.mark.parametrize(
    ("output", "environment", "said"),
    [
        ('{"missing": true}', {}, "the environment has no sympy"),
        ("", {}, "sympy does not decide it"),
        ("", None, "it needs an environment with sympy"),
    ],
)
async def test_what_is_not_decided_has_no_reward_and_the_reason(
    bench: Bench, output: str, environment: Any, said: str
) -> None:
    maths = HandlerBench(bench, "math")

    async def program(_: Any) -> Any:
        return "completed", {"exit_code": 0, "stdout": output}

    maths.port.program = program
    instance = {"problem": "?", "answer": "2^{100000}"}

    result = await maths.result(r"\boxed{4^{50000}}", instance=instance, environment=environment)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, None)
    assert said in result.reason


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("Answer: B", 1.0),
        ("Answer: (B) argon", 1.0),
        ("Answer: argon", 1.0),
        ("Answer: A", 0.0),
        ("Answer: A or B", 0.0),
        ("A, B, C", 0.0),
    ],
)
async def test_a_choice_is_named_by_letter_or_text(bench: Bench, said: str, reward: float) -> None:
    result = await HandlerBench(bench, "stem").result(said, instance=CHOICE, environment=None)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, reward), result.reason


LIVING = {"A": "A virus", "B": "A bacterium", "C": "A fungus", "I": "Vitamin A"}


@pytest.mark.parametrize(
    ("said", "letter"),
    [
        ("A fungus", "C"), ("A", "A"), ("A.", "A"), ("(B) a bacterium", "B"), ("B a bacterium", "B"),
        ("B - the bacterium", "B"), ("B because it has no nucleus", "B"), ("I. Vitamin A", "I"),
        ("A fish", None), ("A, B or C", None), ("A or B", None), ("A) or B)", None), ("I do not know", None),
    ],
)  # fmt: skip
def test_an_article_is_no_letter_of_a_choice(said: str, letter: str | None) -> None:
    assert chosen(said, LIVING) == letter


async def test_the_right_choice_may_be_given_by_a_text_with_an_article(bench: Bench) -> None:
    given = {"question": "?", "choices": list(LIVING.values()), "answer": "A fungus"}

    result = await HandlerBench(bench, "stem").result("Answer: C", instance=given, environment=None)

    assert result.reward == 1.0, result.reason


@pytest.mark.parametrize(
    ("said", "right", "same"),
    [
        ("2-chlorobutane", "2-methylbutane", False), ("1,5-octadiene", "1,5-hexadiene", False),
        ("3p orbital", "3d orbital", False), ("3", "3d orbital", False), ("5 km", "5 m", False), ("3", "3/4", False),
        ("10", "10^5", False), ("not 2", "2", False), ("x-5", "-5", False), ("5 MW", "5 mW", False),
        ("5 hydrogen atoms", "5 carbon atoms", False), ("2 or 3", "2", False),
        ("0.75", "3/4", True), ("100000", "10^5", True), ("3d orbital", "3d orbital", True), ("5.02 meters", "5 m", True),
        ("5", "5 m", True), ("about 9.81 m/s²", "9.8 m/s^2", True), ("v = 9.81", "9.8", True), ("−5", "-5", True),
        (r"25\,^\circ\text{C}", "25 °C", True), ("100 kJ mol-1", "100 kJ mol^-1", True),
    ],
)  # fmt: skip
def test_only_a_whole_number_with_its_unit_is_compared_as_one(
    said: str, right: str, same: bool
) -> None:
    assert is_right(StemQuestion("?", {}, [right], 0.01), said) is same


@pytest.mark.parametrize(
    ("said", "instance", "reward"),
    [
        ("Answer: the Krebs cycle.", {"answer": "Krebs cycle"}, 1.0),
        ("Answer: citric acid cycle", {"answer": ["Krebs cycle", "citric acid cycle"]}, 1.0),
        ("Answer: 9.81 m/s^2", {"answer": 9.8}, 1.0),
        ("Answer: 9.81", {"answer": "9.8 m/s^2", "tolerance": 0.0}, 0.0),
        ("Answer: 1 2 3 9.8", {"answer": 9.8}, 0.0),
        (r"Answer: $3.00 \times 10^8$ m/s", {"answer": "299792458 m/s"}, 1.0),
        ("Answer: 300000 km/s", {"answer": "299,792 km/s"}, 1.0),
    ],
)
async def test_a_short_answer_is_compared_by_words_and_numbers(
    bench: Bench, said: str, instance: dict[str, Any], reward: float
) -> None:
    given = {"question": "?", **instance}

    result = await HandlerBench(bench, "stem").result(said, instance=given, environment=None)

    assert result.reward == reward, result.reason


def runs_cases(answers: dict[int, str], *, begun: bool = True, outcome: str = "completed") -> Any:
    """Return a program of actions that answers cases."""

    async def program(members: Any) -> Any:
        order = json.loads(members["exec"]["stdin"])
        lines = [
            {"case": n, "how": "ended", "answer": answer}
            for n, answer in answers.items()
            if n < len(order["cases"]) and order["program"]
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        first = '{"begun": true}\n' if begun else ""
        ended = outcome if order["program"] else "completed"
        return ended, {"exit_code": 0, "stdout": first + text, "reward": 1.0}

    return program


@pytest.mark.parametrize(
    ("answers", "reward", "share"),
    [
        ({0: "1\n", 1: "4\n", 2: "9\n"}, 1.0, 1.0),
        ({0: "1\n", 1: "4\n", 2: "8\n"}, 0.0, 2 / 3),
        ({0: "1\n"}, 0.0, 1 / 3),
        ({}, 0.0, 0.0),
    ],
)
async def test_a_program_is_judged_by_its_answers_and_not_by_what_ran_it(
    bench: Bench, answers: dict[int, str], reward: float, share: float
) -> None:
    code = HandlerBench(bench, "code")
    code.port.program = runs_cases(answers)
    await code.start(ANSWER)

    result = await bench.result(code.submit(SQUARE))
    partial = await bench.result(code.submit(SQUARE, {"partial": True}))

    assert result.reward == reward, result.reason
    assert partial.reward == pytest.approx(share)
    [action] = code.port.actions("rol_1")
    assert action.members["cost"] == {"cpu": [1, 2]}
    assert (action.members["key"], action.members["malleable"]) == ("cpu", True)
    assert action.members["timeout_seconds"] >= 3 * 10.0 * 2  # on one core as on two
    assert "4" not in json.loads(action.members["exec"]["stdin"])["cases"][1]
    assert code.artefacts("rol_1")["program"] == b"print(int(input()) ** 2)\n"


async def test_a_program_that_ends_the_run_of_its_cases_is_wrong(bench: Bench) -> None:
    """It stops what runs it until the time is over: another program shows that the environment is not at fault."""
    code = HandlerBench(bench, "code")
    code.port.program = runs_cases({}, outcome="timeout")

    result = await code.result(ANSWER, instance=SQUARE)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, 0.0)
    assert len(code.port.actions("rol_1")) == 2


async def test_cases_that_time_out_with_any_program_have_no_reward(bench: Bench) -> None:
    code = HandlerBench(bench, "code")

    async def late(_: Any) -> Any:
        return "timeout", {"exit_code": None, "stdout": '{"begun": true}\n'}

    code.port.program = late

    result = await code.result(ANSWER, instance=SQUARE)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, None)
    assert "timeout" in result.reason


async def test_an_environment_without_python_fails_the_rollout(bench: Bench) -> None:
    code = HandlerBench(bench, "code")

    async def missing(_: Any) -> Any:
        return "completed", {"exit_code": 127, "stdout": "", "stderr": "python3: not found"}

    code.port.program = missing

    result = await code.result(ANSWER, instance=SQUARE)

    assert (result.outcome, result.reward) == (RolloutOutcome.FAILED, None)
    assert "options: python" in result.reason


async def test_an_answer_without_a_program_opens_no_environment_of_eval(bench: Bench) -> None:
    code = HandlerBench(bench, "code")

    result = await code.result("I do not know.", instance=SQUARE)

    assert result.reward == 0.0
    assert code.port.actions("rol_1") == []
    assert "rol_1-eval" not in code.port.finished_trajectories


async def test_with_tools_the_agent_ends_by_finish(bench: Bench) -> None:
    maths = HandlerBench(bench, "math")
    answers = [call("think", thought="hm"), call("finish", answer=r"\boxed{3/4}")]

    result = await maths.result(*answers, instance=SUM, options={"tools": ["think"]})

    assert (result.reward, result.turns) == (1.0, 2)
    assert maths.detail("rol_1") == {"answer": "3/4", "end": "finished", "iterations": 2}


@pytest.mark.parametrize(
    ("handler", "request_", "said"),
    [
        ("math", {"instance": {"answer": "1"}}, "instance: problem: is missing"),
        ("math", {"instance": {"problem": "?"}}, "instance: answer: is missing"),
        ("math", {"instance": {"problem": 3, "answer": "1"}}, "instance: problem: Expected"),
        ("math", {"instance": SUM, "options": {"tools": ["hammer"]}}, "options: tools[0]: there is no tool"),
        ("math", {"instance": SUM, "options": {"max_iterations": 0}}, "options: max_iterations"),
        ("math", {"instance": SUM, "sampling": {"max_iterations": "9"}}, "sampling: max_iterations"),
        (
            "math",
            {"instance": SUM, "options": {"tools": ["bash"]}, "environment": None},
            "options: tools[0]: bash needs an environment",
        ),
        ("stem", {"instance": {"answer": "B"}}, "instance: question: is missing"),
        ("stem", {"instance": {"question": "?"}}, "instance: answer: is missing"),
        ("stem", {"instance": {**CHOICE, "answer": "D"}}, "instance: answer: 'D' is none of the choices"),
        ("stem", {"instance": {**CHOICE, "choices": {"1": "x"}}}, "instance: choices['1']"),
        ("stem", {"instance": {**CHOICE, "tolerance": 2}}, "instance: tolerance"),
        ("code", {"instance": SQUARE, "environment": None}, "environment: handler code"),
        ("code", {"instance": {"question": "?"}}, "instance: tests: is missing"),
        ("code", {"instance": {"tests": SQUARE["tests"]}}, "instance: question: is missing"),
        ("code", {"instance": SQUARE, "options": {"case_seconds": 0}}, "options: case_seconds"),
        ("code", {"instance": SQUARE, "options": {"test_cores": []}}, "options: test_cores"),
    ],
)  # fmt: skip
async def test_a_bad_instance_fails_before_a_token_is_sampled(
    bench: Bench, handler: str, request_: dict[str, Any], said: str
) -> None:
    asked = HandlerBench(bench, handler)

    result = await asked.result("Answer: 1", **request_)

    assert (result.outcome, result.reward, result.turns) == (RolloutOutcome.FAILED, None, 0)
    assert said in result.reason


def test_the_last_block_of_python_is_the_program() -> None:
    text = "```python\na\n```\n```\nb\n```\n```json\n{}\n```\nend"

    assert last_program(text) == "b\n"
    assert last_program("no block") == ""
    assert last_program("```python\na\n``` and ```python``` in a line\nb\n```") == "b\n"
    assert last_program("```py\ncut off") == "cut off"


@pytest.mark.parametrize("text", ["```" + "a" * 250_000, "```" * 80_000, "```a\n" * 50_000])
def test_fences_without_an_end_take_no_time(text: str) -> None:
    begin = time.process_time()

    last_program(text)

    assert time.process_time() - begin < 0.2


def test_every_tool_can_be_made() -> None:
    from rollout.handlers.agent_runs import AgentOptions

    assert {name: TOOLS[name](AgentOptions()).name for name in TOOLS}.keys() == TOOLS.keys()
