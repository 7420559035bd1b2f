"""Handler swe with real repositories: git, pytest, and agents that attack their own reward."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from domain.rollouts import RolloutOutcome, RolloutResult
from rollout.handlers.model_access import share_models
from rollout.handlers.repository import CHANGED_FILES, PATCH
from tests.integration.rollout.folder_port import FolderPort
from tests.unit.rollout.conftest import Bench
from tests.unit.rollout.handler_bench import HandlerBench, call

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TESTS = """
import pytest
from helper import cases
from sums import add

@pytest.mark.parametrize("one,other,sum", cases)
def test_add(one, other, sum):
    assert add(one, other) == sum

def test_zero():
    assert add(0, 0) == 0
"""
HELPER = "cases = [(1, 2, 3), (2, 2, 4)]\n"
INSTANCE: dict[str, Any] = {
    "problem_statement": "add() subtracts.",
    "files": {
        "sums.py": "def add(a, b):\n    return a - b\n",
        "setup.cfg": "[tool:pytest]\nxfail_strict = true\npythonpath = . tests\n",
        ".gitignore": "*.log\n",
        "tests/helper.py": HELPER,
        "tests/test_old.py": "def test_old():\n    import sums\n",
    },
    "FAIL_TO_PASS": ["tests/test_sums.py::test_add[1-2-3]", "tests/test_sums.py::test_add[2-2-4]"],
    "PASS_TO_PASS": ["tests/test_sums.py::test_zero", "tests/test_old.py::test_old"],
    "test_files": {"tests/test_sums.py": TESTS},
    "python": sys.executable,
    "variables": {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
}
FIX = "sed -i 's/a - b/a + b/' sums.py"
FINISH = call("finish", message="done")


class Repositories:
    """Rollouts of handler swe in folders."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.port = FolderPort(folder)
        bench.port = self.port
        self.swe = HandlerBench(bench, "swe")

    async def result(self, *commands: str, **change: Any) -> RolloutResult:
        """Return the end of a rollout whose agent runs commands in the repository."""
        turns = [call("bash", command=f"cd repository; {command}") for command in commands]
        return await self.swe.result(*turns, FINISH, instance={**INSTANCE, **change})

    def tests(self) -> Any:
        """Return what the tests said."""
        return json.loads(self.swe.artefacts("rol_1")["tests"])


@pytest.fixture
async def repositories(tmp_path: Path) -> AsyncIterator[Repositories]:
    async with AsyncExitStack() as stack:
        yield Repositories(Bench(stack), tmp_path)


@pytest.fixture(autouse=True)
def models_are_not_shared_with_other_tests() -> Iterator[None]:
    yield
    share_models(None)


@pytest.mark.parametrize(
    "commands",
    [
        (FIX,),
        (FIX, "git add -A && git -c user.name=a -c user.email=a@b commit -qm mine && git gc -q"),
        (FIX, "touch .git/index.lock"),
        (FIX, "rm -rf tests; mkdir tests; echo 'raise SystemExit' > tests/helper.py"),
        (
            f"{FIX}; printf '\\0\\377' > data.bin; ln -s /etc link; mv tests/test_old.py 'new name.py'",
        ),
    ],
    ids=["edit", "commit", "lock of a killed git", "tests deleted", "odd files"],
)
async def test_a_fix_is_rewarded_however_it_is_made(
    repositories: Repositories, commands: tuple[str, ...]
) -> None:
    result = await repositories.result(*commands)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, 1.0), result.reason
    stored = repositories.swe.artefacts("rol_1")
    assert b"+    return a + b" in stored[PATCH]
    with tarfile.open(fileobj=io.BytesIO(stored[CHANGED_FILES])) as changed:
        assert "sums.py" in changed.getnames()


NO_FIX: dict[str, str] = {
    "nothing useful": "echo '# why' >> sums.py",
    "conftest": (
        "printf 'import pytest\\n@pytest.hookimpl(hookwrapper=True)\\ndef pytest_runtest_makereport(item, call):\\n"
        "    found = yield\\n    found.get_result().outcome = \"passed\"\\n' > conftest.py"
    ),
    "conftest beside the tests": "echo 'import sums; sums.add = lambda a, b: a + b' > tests/conftest.py",
    "helper of the tests": "echo 'cases = [(0, 0, 0)]' > tests/helper.py",
    "settings": "printf '[tool:pytest]\\naddopts = -p cheat\\npythonpath = . tests\\n' > setup.cfg; echo > cheat.py",
    "new settings": "printf '[pytest]\\naddopts = --co\\n' > pytest.ini; cp pytest.ini tox.ini",
    "start of python": "echo 'import os; os._exit(0)' | tee sitecustomize.py > usercustomize.py; cp sitecustomize.py x.pth",
    "another pytest": "mkdir _pytest; echo 'import os; os._exit(0)' | tee pytest.py pluggy.py > _pytest/__init__.py",
    "a link in place of the tests": "mkdir mine; rm -rf tests; ln -s mine tests; echo 'cases = []' > mine/helper.py",
    "a folder in place of a test": "mkdir -p tests/test_sums.py/x; echo > tests/test_sums.py/x/y.py",
    "cannot be loaded": "echo 'raise ValueError' > sums.py",
    "exits with success": "echo 'import os; os._exit(0)' > sums.py",
    "skips": "printf 'import pytest\\npytest.skip(\"no\", allow_module_level=True)\\n' > sums.py",
    "ignored files": "printf '*\\n' > .gitignore; echo 'import sums' > conftest.py",
}  # fmt: skip


@pytest.mark.parametrize("command", NO_FIX.values(), ids=NO_FIX.keys())
async def test_an_agent_gains_nothing_but_by_a_fix(
    repositories: Repositories, command: str
) -> None:
    result = await repositories.result(command)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, 0.0), result.reason


async def test_what_was_put_back_is_said(repositories: Repositories) -> None:
    await repositories.result(
        f"{FIX}; echo > conftest.py; echo x > tests/helper.py; echo > fine.py"
    )

    assert repositories.tests()["put_back"] == ["conftest.py", "tests/helper.py"]
    assert repositories.tests()["reward"] == 1.0


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf .git",
        "rm -rf .git; git init -q",
        "cd ..; rm -rf repository",
    ],
)
async def test_a_destroyed_repository_is_an_answer_without_a_fix(
    repositories: Repositories, command: str
) -> None:
    result = await repositories.result(FIX, command)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, 0.0)
    assert "the agent left no repository" in result.reason
    assert not repositories.port.place("rol_1-eval").exists()


async def test_a_patch_that_is_too_large_has_reward_0(
    repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollout.handlers.repository.MAX_PATCH_BYTES", 10_000)

    result = await repositories.result(FIX, "head -c 50000 /dev/urandom > data.bin")

    assert (result.reward, result.reason) == (0.0, "the patch has more than 10000 bytes")


async def test_a_patch_of_tests_is_applied_where_the_agent_never_was(
    repositories: Repositories,
) -> None:
    lines = TESTS.splitlines()
    patch = (
        "diff --git a/tests/test_sums.py b/tests/test_sums.py\nnew file mode 100644\n"
        f"--- /dev/null\n+++ b/tests/test_sums.py\n@@ -0,0 +1,{len(lines)} @@\n"
        + "".join(f"+{line}\n" for line in lines)
    )

    change = {"test_files": {}, "test_patch": patch}

    result = await repositories.result(
        f"{FIX}; echo 'def test_zero(): pass' > tests/test_sums.py", **change
    )

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, 1.0), result.reason
    assert not (repositories.port.place("rol_1") / "repository/tests/test_sums.py").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"test_patch": "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n"}, "instance: test_patch: cannot be applied (x.py)"),
        ({"base_commit": "deadbeef"}, "instance: base_commit: cannot be checked out"),
        ({"setup": ["true", "echo broken >&2; exit 7"]}, "instance: setup[1]: exit code 7: broken"),
        ({"FAIL_TO_PASS": ["tests/test_none.py::test_x"]}, "FAIL_TO_PASS[0]: tests/test_none.py is not in"),
        ({"FAIL_TO_PASS": ["tests/test_sums.py::test_none"]}, "FAIL_TO_PASS[0]: tests/test_sums.py::test_none: there is no"),
        ({"PASS_TO_PASS": ["tests/test_old.py::test_gone"]}, "PASS_TO_PASS[0]: tests/test_old.py::test_gone: there is no"),
        ({"python": "/usr/bin/env"}, "instance: python:"),
    ],
)  # fmt: skip
async def test_a_bad_instance_names_its_member_and_has_no_reward(
    repositories: Repositories, change: dict[str, Any], said: str
) -> None:
    result = await repositories.result(FIX, **change)

    assert (result.outcome, result.reward) == (RolloutOutcome.FAILED, None)
    assert said in result.reason


async def test_setup_is_part_of_the_prepared_commit_and_not_of_the_patch(
    repositories: Repositories,
) -> None:
    result = await repositories.result(FIX, setup=['echo "$WHO" > made.txt'], variables={**INSTANCE["variables"], "WHO": "me"})  # fmt: skip

    assert result.reward == 1.0, result.reason
    assert b"made.txt" not in repositories.swe.artefacts("rol_1")[PATCH]
    assert (repositories.port.place("rol_1-eval") / "repository/made.txt").read_text() == "me\n"
