"""Handler swe: what its stages do to a repository, what its rewards mean, and which instances it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from domain.rollouts import RolloutOutcome, RolloutResult
from rollout.handlers.model_access import share_models
from rollout.handlers.repository import CHANGED_FILES, PATCH
from rollout.handlers.swe_instances import directory_of_tests, patched_paths
from rollout.testing.fake_port import FakePort
from tests.unit.rollout.conftest import Bench
from tests.unit.rollout.handler_bench import HandlerBench, call

BUG: dict[str, Any] = {
    "problem_statement": "add() subtracts.",
    "files": {"sums.py": "def add(a, b):\n    return a - b\n"},
    "FAIL_TO_PASS": ["tests/test_sums.py::test_add"],
    "PASS_TO_PASS": json.dumps(["tests/test_sums.py::test_zero"]),
    "test_files": {"tests/test_sums.py": "from sums import add\n"},
}
FINISH = call("finish", message="done")
PASSED: dict[str, Any] = {"score": 1.0, "share": 1.0, "count": 2, "passed": 2}
FAILED: dict[str, Any] = {
    "score": 0.0, "share": 0.5, "count": 2, "passed": 1, "tests": {BUG["FAIL_TO_PASS"][0]: "failed"},
}  # fmt: skip
MISSING: dict[str, Any] = {
    **FAILED, "score": None, "tests": {"tests/test_sums.py::test_zero": "missing"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def models_are_not_shared_with_other_tests() -> Iterator[None]:
    yield
    share_models(None)


class Repositories:
    """Answers the actions of handler swe as an environment with git and pytest does."""

    def __init__(self, port: FakePort) -> None:
        self.port = port
        #: Name of the call → what its action answers; else it succeeds.
        self.ends: dict[str, tuple[str, dict[str, Any]]] = {}
        self.patch = b"--- a/sums.py\n+++ b/sums.py\n"
        port.program = self.perform

    def says(self, name: str, score: Mapping[str, Any] | None, outcome: str = "completed") -> None:
        """Have a run of tests end so."""
        text = "" if score is None else json.dumps(score)
        reward = None if score is None else score.get("score")
        self.ends[name] = outcome, {"exit_code": 0, "stdout": f"{text}\n", "reward": reward}

    async def perform(self, members: Mapping[str, Any]) -> Any:
        """Do an action."""
        [name] = [
            each.key.rpartition("/")[2]
            for held in self.port._held.values()
            for each in held.actions.values()
            if each.members is members or each.members == members
        ][-1:]
        if name == "patch":
            name_of = members["trajectory"]
            [files] = [
                held.trajectories[name_of]
                for held in self.port._held.values()
                if name_of in held.trajectories
            ]
            files[".rollout.patch"], files[".rollout-files.tar"] = self.patch, b"tar"
        usual = "completed", {"exit_code": 0, "stdout": "c0ffee\n"}
        return self.ends.get(name, usual)

    def calls(self) -> list[str]:
        """Return the names of all calls, by stage."""
        return [each.key.split("/", 2)[2] for each in self.port.actions("rol_1")]


@pytest.fixture
def swe(bench: Bench) -> HandlerBench:
    """The handler on a port."""
    return HandlerBench(bench, "swe")


@pytest.fixture
def repositories(swe: HandlerBench) -> Repositories:
    """Environments with git and pytest, whose tests pass."""
    found = Repositories(swe.port)
    found.says("score", PASSED)
    return found


async def test_a_patch_that_passes_the_hidden_tests_has_reward_1(
    swe: HandlerBench, repositories: Repositories
) -> None:
    result = await swe.result(FINISH, instance=BUG)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, 1.0), result.reason
    assert result.reason == "2 of 2 tests passed"
    assert repositories.calls() == [
        "init/checkout",
        "init/commit",
        "run/patch",
        "eval/apply",
        "eval/score",
    ]
    [patch] = [each for each in swe.port.actions("rol_1") if each.key.endswith("/patch")]
    assert patch.members["replay_safe"] is True  # a killed node worker does not end RUN
    stored = swe.artefacts("rol_1")
    assert stored[PATCH] == repositories.patch
    assert stored[CHANGED_FILES] == b"tar"
    assert json.loads(stored["tests"])["passed"] == 2
    assert swe.detail("rol_1") == {"end": "finished", "iterations": 1, "patch_bytes": 28}


async def test_tests_are_elastic_hidden_and_judged_in_a_fork_without_the_agent(
    swe: HandlerBench, repositories: Repositories
) -> None:
    files = {f"tests/test_{n}.py": "" for n in range(3)}
    more = [f"{path}::test_x" for path in files]
    instance = {**BUG, "PASS_TO_PASS": more, "test_files": {**BUG["test_files"], **files}}

    await swe.result(FINISH, instance=instance, options={"test_seconds": 100})

    [score] = [each for each in swe.port.actions("rol_1") if each.key.endswith("/score")]
    assert score.members["trajectory"] == "rol_1-eval"
    assert score.members["cost"] == {"cpu": [1, 2, 4]}
    assert score.members["timeout_seconds"] >= 4 * 100.0  # on one core as on four
    assert (score.members["key"], score.members["malleable"]) == ("cpu", True)
    rule = score.members["reward"]
    assert (rule["from"], rule["path"]) == ("json", "score")
    assert "repository/tests/test_sums.py" in rule["files"]
    # Neither RUN nor INIT has them.
    assert not [each for each in swe.port.actions("rol_1")[:3] if "test_sums" in str(each.members)]
    assert swe.port.finished_trajectories.index("rol_1-run") == 0


async def test_an_answer_without_a_patch_opens_no_environment_of_eval(
    swe: HandlerBench, repositories: Repositories
) -> None:
    repositories.patch = b""

    result = await swe.result(FINISH, instance=BUG)

    assert (result.reward, result.reason) == (0.0, "the agent changed nothing")
    assert "rol_1-eval" not in swe.port.finished_trajectories
    assert repositories.calls()[-1] == "run/patch"


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [("patch", 61, "the agent left no repository"), ("apply", 62, "the patch cannot be applied")],
)
async def test_what_the_agent_did_to_its_repository_is_its_answer(
    swe: HandlerBench, repositories: Repositories, name: str, code: int, said: str
) -> None:
    repositories.ends[name] = "completed", {"exit_code": code, "stderr": "fatal"}

    result = await swe.result(FINISH, instance=BUG)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, 0.0)
    assert said in result.reason


async def test_protected_files_that_cannot_be_put_back_give_no_reward(
    swe: HandlerBench, repositories: Repositories
) -> None:
    repositories.ends["apply"] = "completed", {"exit_code": 1, "stderr": "no"}

    result = await swe.result(FINISH, instance=BUG)

    assert (result.outcome, result.reward) == (RolloutOutcome.FAILED, None)
    assert "protected files cannot be put back" in result.reason


@pytest.mark.parametrize(("partial", "reward"), [(False, 0.0), (True, 0.5)])
async def test_failed_tests_give_0_or_their_share(
    swe: HandlerBench, repositories: Repositories, partial: bool, reward: float
) -> None:
    repositories.says("score", {**FAILED, "score": reward})

    result = await swe.result(FINISH, instance=BUG, options={"partial": partial})

    assert result.reward == reward
    assert result.reason == "1 of 2 tests passed: tests/test_sums.py::test_add failed"


async def test_a_patch_that_keeps_tests_from_running_has_reward_0(
    swe: HandlerBench, repositories: Repositories
) -> None:
    repositories.says("score", MISSING)
    repositories.says("score-base", FAILED)

    result = await swe.result(FINISH, instance=BUG)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, 0.0)
    assert repositories.calls()[-2:] == ["eval/reset", "eval/score-base"]


@pytest.mark.parametrize("ended", [("completed", None), ("timeout", None), ("oom_killed", None)])
async def test_a_patch_that_ends_the_run_of_tests_has_reward_0(
    swe: HandlerBench, repositories: Repositories, ended: Any
) -> None:
    repositories.says("score", ended[1], ended[0])
    repositories.says("score-base", FAILED)

    result = await swe.result(FINISH, instance=BUG)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, 0.0)
    assert "without the patch they do" in result.reason


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [("completed", RolloutOutcome.FAILED), ("timeout", RolloutOutcome.COMPLETED)],
)
async def test_tests_that_never_run_give_no_reward(
    swe: HandlerBench, repositories: Repositories, outcome: str, expected: str
) -> None:
    repositories.says("score", None, outcome)
    repositories.says("score-base", None, outcome)

    result = await swe.result(FINISH, instance=BUG)

    assert (result.outcome, result.reward) == (expected, None)
    assert result.reason


@pytest.mark.parametrize(
    ("missing", "unloaded", "said"),
    [
        ("tests/test_sums.py::test_zero", ["tests/test_sums.py"], "instance: PASS_TO_PASS[0]: "),
        ("tests/test_sums.py::test_add", [], "instance: FAIL_TO_PASS[0]: "),
    ],
)
async def test_a_test_that_is_nowhere_makes_the_instance_bad(
    swe: HandlerBench, repositories: Repositories, missing: str, unloaded: list[str], said: str
) -> None:
    score = {**MISSING, "tests": {missing: "missing"}, "unloaded": unloaded}
    repositories.says("score", score)
    repositories.says("score-base", score)

    result = await swe.result(FINISH, instance=BUG)

    assert (result.outcome, result.reward) == (RolloutOutcome.FAILED, None)
    assert f"{said}{missing}: there is no such test" in result.reason


async def test_tests_that_take_too_long_without_the_patch_do_not_blame_the_instance(
    swe: HandlerBench, repositories: Repositories
) -> None:
    repositories.says("score", {**MISSING, "late": True})
    repositories.says("score-base", {**MISSING, "late": True})

    result = await swe.result(FINISH, instance=BUG)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, None)
    assert "took too long, also without the patch: give more than 900 test_seconds" in result.reason


async def test_a_test_that_needs_the_fix_to_be_loaded_is_the_patch_not_the_instance(
    swe: HandlerBench, repositories: Repositories
) -> None:
    score = {
        **MISSING, "tests": {BUG["FAIL_TO_PASS"][0]: "missing"}, "unloaded": ["tests/test_sums.py"],
    }  # fmt: skip
    repositories.says("score", score)
    repositories.says("score-base", score)

    result = await swe.result(FINISH, instance=BUG)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, 0.0)


@pytest.mark.parametrize(
    ("name", "end", "said"),
    [
        ("checkout", {"exit_code": 60}, "environment: image: it has no git"),
        ("checkout", {"exit_code": 63, "stderr": "no such commit"}, "instance: base_commit: cannot be"),
        ("setup-1", {"exit_code": 2, "stderr": "make: no rule"}, "instance: setup[1]: exit code 2: make: no rule"),
        ("tests", {"exit_code": 1, "stderr": "corrupt"}, "instance: test_patch: cannot be applied (tests/test_a.py)"),
        ("score", {"exit_code": 127, "stdout": ""}, "instance: python: 'python3'"),
        (
            "score",
            {"exit_code": 0, "stdout": '{"error": "t.py is not there", "member": "FAIL_TO_PASS[0]"}'},
            "instance: FAIL_TO_PASS[0]: t.py is not there",
        ),
    ],
)  # fmt: skip
async def test_what_the_environment_lacks_fails_the_rollout_and_names_the_member(
    swe: HandlerBench, repositories: Repositories, name: str, end: dict[str, Any], said: str
) -> None:
    repositories.ends[name] = "completed", end
    instance = {
        **BUG,
        "setup": ["true", "make"],
        "test_patch": "--- a/tests/test_a.py\n+++ b/tests/test_a.py\n",
    }

    result = await swe.result(FINISH, instance=instance)

    assert (result.outcome, result.reward) == (RolloutOutcome.FAILED, None)
    assert said in result.reason


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"problem_statement": None}, "instance: problem_statement: Expected"),
        ({"problem_statement": " "}, "instance: problem_statement: is empty"),
        ({"FAIL_TO_PASS": "[]"}, "instance: FAIL_TO_PASS: names no test"),
        ({"FAIL_TO_PASS": "[", }, "instance: FAIL_TO_PASS: is a text, and no JSON"),
        ({"FAIL_TO_PASS": ["test_x (sums.Tests)"]}, "instance: FAIL_TO_PASS[0]: 'test_x (sums.Tests)' is no id"),
        ({"FAIL_TO_PASS": ["../t.py::x"]}, "instance: FAIL_TO_PASS[0]: '../t.py' is no path"),
        ({"files": {"/etc/x": ""}}, "instance: files['/etc/x']: '/etc/x' is no path"),
        ({"files": {".git/hooks/x": ""}}, "is no path below the repository"),
        ({"files": {"a": 1}}, "instance: files"),
        ({"base_commit": "--upload-pack=x"}, "instance: base_commit: is no commit"),
        ({"directory": "-x"}, "instance: directory"),
        ({"reward": {"from": "exit_code"}}, "instance: reward: goes with test_command"),
        ({"test_command": ["make"], "reward": {"from": "luck"}}, "instance: reward: from is one of"),
    ],
)  # fmt: skip
async def test_a_bad_instance_fails_before_anything_is_done(
    swe: HandlerBench, repositories: Repositories, change: dict[str, Any], said: str
) -> None:
    result = await swe.result(FINISH, instance={**BUG, **change})

    assert (result.outcome, result.reward, result.turns) == (RolloutOutcome.FAILED, None, 0)
    assert said in result.reason
    assert repositories.calls() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"test_cores": [0]}, "options: test_cores"),
        ({"test_seconds": 0}, "options: test_seconds"),
        ({"max_iterations": "many"}, "options: max_iterations"),
        ({"tools": ["bash", "hammer"]}, "options: tools[1]: there is no tool 'hammer'"),
    ],
)
async def test_bad_options_are_refused(
    swe: HandlerBench, repositories: Repositories, options: dict[str, Any], said: str
) -> None:
    result = await swe.result(FINISH, instance=BUG, options=options)

    assert result.outcome is RolloutOutcome.FAILED
    assert said in result.reason


async def test_a_rollout_without_an_environment_is_refused(
    swe: HandlerBench, repositories: Repositories
) -> None:
    result = await swe.result(FINISH, instance=BUG, environment=None)

    assert result.outcome is RolloutOutcome.FAILED
    assert "environment: handler swe runs commands" in result.reason


@pytest.mark.parametrize(
    ("reward", "base", "expected"),
    [(1.0, None, 1.0), (0.5, None, 0.0), (None, 0.0, 0.0)],
)
async def test_another_runner_is_judged_by_its_own_rule(
    swe: HandlerBench,
    repositories: Repositories,
    reward: float | None,
    base: float | None,
    expected: float,
) -> None:
    rule = {"from": "junit", "path": "repository/report.xml"}
    repositories.ends["score"] = "completed", {"exit_code": 0, "reward": reward}
    repositories.ends["score-base"] = "completed", {"exit_code": 1, "reward": base}
    instance = {**BUG, "test_command": ["make", "test"], "reward": rule}

    result = await swe.result(FINISH, instance=instance)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, expected), result.reason
    [score] = [each for each in swe.port.actions("rol_1") if each.key.endswith("/score")]
    assert score.members["exec"]["cwd"] == "repository"


async def test_a_runner_without_evidence_makes_the_instance_bad(
    swe: HandlerBench, repositories: Repositories
) -> None:
    for name in ("score", "score-base"):
        repositories.ends[name] = "completed", {"exit_code": 127, "detail": "no reward: not found"}

    result = await swe.result(FINISH, instance={**BUG, "test_command": ["mvn"]})

    assert (result.outcome, result.reward) == (RolloutOutcome.FAILED, None)
    assert "instance: test_command: gives no reward, also without the patch" in result.reason


def test_directories_of_tests_are_protected_as_a_whole() -> None:
    assert directory_of_tests("astropy/io/tests/helper/test_x.py") == "astropy/io/tests"
    assert directory_of_tests("test_x.py") == ""
    assert directory_of_tests("src/tests.py") == ""


def test_the_paths_of_a_patch_are_read_from_its_headers() -> None:
    patch = (
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x\n+y\n"
        "--- /dev/null\n+++ b/tests/new.py\nrename from old.py\nrename to moved.py\n"
    )

    assert patched_paths(patch) == {"a.py", "tests/new.py", "old.py", "moved.py"}


async def crashed(
    bench: Bench, swe: HandlerBench, instance: Mapping[str, Any], held: str, program: Any
) -> RolloutResult:
    """Return the result of a rollout whose worker ends while the call ``held`` runs; ``program`` does the actions."""
    reached, goes_on = asyncio.Event(), asyncio.Event()

    async def holding(members: Mapping[str, Any]) -> Any:
        name = swe.port.actions("rol_1")[-1].key.rpartition("/")[2]
        answer = await program(name, members)
        if name == held:
            reached.set()
            await goes_on.wait()
        return answer

    swe.port.program = holding
    first = await swe.start(FINISH)
    rollout = swe.submit(instance)
    await asyncio.wait_for(reached.wait(), 60)
    await bench.stop(first)
    swe.port.lose_worker()
    await swe.start(FINISH)
    goes_on.set()
    return await bench.result(rollout)


@pytest.mark.parametrize("held", ["checkout", "patch", "apply", "score"])
async def test_a_worker_that_ends_in_any_stage_runs_nothing_twice(
    bench: Bench, swe: HandlerBench, repositories: Repositories, held: str
) -> None:
    ran: list[str] = []

    async def perform(name: str, members: Mapping[str, Any]) -> Any:
        ran.append(name)
        return await repositories.perform(members)

    result = await crashed(bench, swe, BUG, held, perform)

    assert (result.outcome, result.reward, result.turns) == (RolloutOutcome.COMPLETED, 1.0, 1)
    assert ran == ["checkout", "commit", "patch", "apply", "score"]
    names = [each.header["name"] for each in swe.port.log("rol_1") if each.kind == "artefact"]
    assert names == [PATCH, CHANGED_FILES, "tests"]


@pytest.mark.parametrize("held", ["setup-0", "commit"])
async def test_files_that_setup_changed_survive_a_worker_that_ends_in_init(
    bench: Bench, swe: HandlerBench, repositories: Repositories, held: str
) -> None:
    path, found = "repository/sums.py", dict[str, bytes]()

    async def perform(name: str, members: Mapping[str, Any]) -> Any:
        files = swe.port._held["rol_1"].trajectories[members["trajectory"]]
        if name == "setup-0":
            files[path] = b"changed"
        found[name] = files[path]
        return await repositories.perform(members)

    await crashed(bench, swe, {**BUG, "setup": ["sed -i s/-/+/ sums.py"]}, held, perform)

    assert (found["commit"], found["patch"]) == (b"changed", b"changed")


async def test_the_agent_has_the_tools_that_its_trainer_names(
    swe: HandlerBench, repositories: Repositories
) -> None:
    await swe.start(FINISH)
    await swe.bench.result(swe.submit(BUG))
    await swe.bench.result(swe.submit(BUG, {"tools": ["python"]}))

    usual, chosen = (
        swe.backend.served.model.tokenizer.decode(each["prompt"]) for each in swe.backend.asked
    )
    assert '"name": "bash"' in usual
    assert '"name": "ipython"' not in usual
    assert '"name": "ipython"' in chosen
    assert '"name": "bash"' not in chosen
