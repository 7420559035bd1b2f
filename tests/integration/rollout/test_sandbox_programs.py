"""Programs that handlers run in environments: real pytest, real processes, and what hostile code can do to their results."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from rollout.handlers.code_cases import answers_of, is_right
from rollout.handlers.expressions import read
from rollout.handlers.programs import source

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TESTS = """
import pytest
from code_under_test import double

def test_one():
    assert double(1) == 2

class TestMany:
    @pytest.mark.parametrize("text", ["a b", "ü[x]", "\\x00", "\\n"])
    def test_text(self, text):
        assert double(text) == text + text

def test_skipped():
    if double(0) is None:
        pytest.skip("no")

def test_expected_to_fail():
    assert double(1) == 2 or pytest.fail("wrong")
    pytest.xfail("known")
"""
IDS = [
    "tests/test_it.py::test_one",
    "tests/test_it.py::TestMany::test_text[a b]",
    "tests/test_it.py::TestMany::test_text[\\xfc[x]]",
    "tests/test_it.py::TestMany::test_text[\\x00]",
    "tests/test_it.py::TestMany::test_text[\\n]",
    "tests/test_it.py::test_skipped",
    "tests/test_it.py::test_expected_to_fail",
]
RIGHT = "def double(x):\n    return x + x\n"


def run(name: str, order: Any, *arguments: str, cwd: Path | None = None) -> str:
    """Run a program as an environment does; return its output."""
    words = [sys.executable, "-I", "-c", source(name), *arguments]
    done = subprocess.run(
        words, input=json.dumps(order), capture_output=True, text=True, timeout=120, cwd=cwd,
        check=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one module and its tests."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(TESTS)
    (tmp_path / "code_under_test.py").write_text(RIGHT)
    return tmp_path


def score(repository: Path, ids: list[str] = IDS, workers: int = 2, **members: Any) -> Any:
    order = {
        "directory": str(repository), "python": sys.executable, "options": [],
        # Plugins of this project take seconds to load.
        "variables": {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        "seconds": 60.0, "partial": False,
        "expected": [(f"FAIL_TO_PASS[{n}]", each) for n, each in enumerate(ids)], **members,
    }  # fmt: skip
    return json.loads(run("score_tests", order, str(workers)).splitlines()[-1])


def test_all_named_tests_have_to_pass(repository: Path) -> None:
    found = score(repository)

    assert (found["score"], found["share"], found["tests"]) == (1.0, 1.0, {}), found


def test_a_failed_and_a_skipped_test_have_not_passed(repository: Path) -> None:
    (repository / "code_under_test.py").write_text(
        "def double(x):\n    return None if x == 0 else 2\n"
    )

    found = score(repository)
    share = score(repository, partial=True)

    assert found["score"] == 0.0
    assert found["tests"]["tests/test_it.py::test_skipped"] == "skipped"
    assert found["tests"][IDS[1]] == "failed"
    assert share["score"] == share["share"] == pytest.approx(2 / 7)


@pytest.mark.parametrize(
    "code",
    [
        "raise ValueError('cannot be loaded')",
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "import pytest; pytest.skip('all', allow_module_level=True)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import time; time.sleep(3600)",
    ],
)
def test_code_that_keeps_tests_from_running_leaves_them_missing(
    repository: Path, code: str
) -> None:
    (repository / "code_under_test.py").write_text(code + "\n" + RIGHT)

    # What sleeps is ended by its limit; nothing else comes near its own.
    found = score(repository, seconds=2.0 if "sleep" in code else 60.0)

    assert found["score"] is None
    assert set(found["tests"].values()) == {"missing"}
    assert found["late"] == ("sleep" in code)


FORGER = """
import atexit, re, sys

def forge():
    [path] = [each.partition("=")[2] for each in sys.argv if each.startswith("--junit-xml=")]
    with open(path) as file:
        report = file.read()
    with open(path, "w") as file:
        file.write(re.sub(r"<(failure|error|skipped).*?</\\1>", "", report, flags=re.DOTALL))

atexit.register(forge)
"""


def test_a_report_that_is_rewritten_at_the_end_does_not_make_failed_tests_pass(
    repository: Path,
) -> None:
    wrong = "def double(x):\n    return None if x == 0 else 3\n"
    (repository / "code_under_test.py").write_text(FORGER + wrong)

    found = score(repository, partial=True)

    assert found["tests"][IDS[0]] == "failed"
    assert found["passed"] == 0, found


def test_a_process_that_leaves_its_session_with_the_pipe_holds_nothing_up(
    repository: Path,
) -> None:
    over = repository / "over"
    program = f"""
        import os, time
        pipe = int(__import__("sys").argv[1])
        os.write(pipe, b"no end of a line")
        if os.fork() == 0:
            os.setsid()
            while os.path.exists({str(repository)!r}) and not os.path.exists({str(over)!r}):
                time.sleep(0.05)
            os._exit(0)
    """
    (repository / "code_under_test.py").write_text(textwrap.dedent(program) + RIGHT)

    try:
        score(repository)  # it would wait for ever
    finally:
        over.touch()


def test_modules_beside_the_tests_do_not_take_the_place_of_pytest(repository: Path) -> None:
    """A patch that adds ``pytest.py`` would else report what it likes."""
    for name in ("pytest", "_pytest", "pluggy", "iniconfig"):
        (repository / f"{name}.py").write_text("import os; os._exit(0)")
    (repository / "code_under_test.py").write_text("def double(x):\n    return 3\n")

    found = score(repository)

    assert found["score"] == 0.0
    assert found["tests"][IDS[0]] == "failed"


def test_what_tests_leave_running_ends_with_them(repository: Path) -> None:
    program = textwrap.dedent(
        """
        import subprocess
        child = subprocess.Popen(["sleep", "3600"])
        open("child", "w").write(str(child.pid))
        """
    )
    (repository / "code_under_test.py").write_text(program + RIGHT)

    assert score(repository)["score"] == 1.0

    child = Path(f"/proc/{(repository / 'child').read_text()}/stat")
    assert not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize(
    ("change", "member", "said"),
    [
        ({"ids": ["tests/none.py::test_x"]}, "FAIL_TO_PASS[0]", "tests/none.py is not in"),
        ({"python": "/usr/bin/env", "options": []}, "python", "no pytest"),
        ({"directory": "/nowhere/at/all"}, "directory", "/nowhere/at/all"),
    ],
)
def test_what_no_patch_can_help_names_the_member(
    repository: Path, change: dict[str, Any], member: str, said: str
) -> None:
    found = score(repository, **change)

    assert found["member"] == member
    assert said in found["error"]


def cases(
    program: str, given: list[Any], function: str = "", seconds: float = 5.0, workers: int = 2
) -> Any:
    order = {
        "program": textwrap.dedent(program), "function": function, "cases": given,
        "seconds": seconds, "most_bytes": 5000,
    }  # fmt: skip
    return answers_of(run("run_cases", order, str(workers)))


def test_a_program_gets_each_input_and_a_folder_of_its_own() -> None:
    program = """
        import os
        open("mine", "x")
        print(int(input()) ** 2)
    """
    begun, found = cases(program, ["2\n", "3\n", "4\n"])

    assert begun
    assert [
        is_right(found[n], right, called=False) for n, right in enumerate("4 9 16".split())
    ] == [True] * 3


def test_a_function_answers_beside_what_it_prints() -> None:
    program = """
        class Solution:
            def add(self, one, other):
                print("[1, 2]")
                return (one, other)
    """
    _, found = cases(program, [[1, 2], ["a", None]], function="add")

    assert is_right(found[0], [1, 2], called=True)
    assert is_right(found[1], ["a", None], called=True)


@pytest.mark.parametrize(
    ("program", "how"),
    [
        ("while True: pass", "timeout"),
        ("raise ValueError('bad')", "failed"),
        ("print('x' * 10000)", "long"),
        ("import os, time; os.fork(); time.sleep(3600)", "timeout"),
    ],
)
def test_a_program_that_hangs_fails_or_floods_is_said_to(program: str, how: str) -> None:
    begin = time.monotonic()

    _, found = cases(program, ["", ""], seconds=1.0)

    assert {answer.how for answer in found.values()} == {how}
    assert time.monotonic() - begin < 60
    if how == "failed":
        assert "ValueError: bad" in found[0].said


COMPUTE = """
import os, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
while time.process_time() < 0.9:
    pass
"""


def test_cases_that_share_one_core_have_their_whole_cpu_time() -> None:
    """Four cases at once on one granted core: each takes longer than its limit by the clock."""
    begin = time.monotonic()

    _, found = cases(COMPUTE + "print(input())", ["1\n"] * 4, seconds=2.0, workers=4)

    assert [found[n].how for n in range(4)] == ["ended"] * 4
    assert time.monotonic() - begin > 2.0


def test_a_program_that_waits_is_ended_by_the_clock() -> None:
    begin = time.monotonic()

    _, found = cases("import time; time.sleep(3600)", [""] * 4, seconds=1.0, workers=4)

    assert {answer.how for answer in found.values()} == {"timeout"}
    assert time.monotonic() - begin < 20


def test_tests_that_share_one_core_have_their_whole_cpu_time(repository: Path) -> None:
    (repository / "code_under_test.py").write_text(COMPUTE + RIGHT)
    paths = [f"tests/test_{n}.py" for n in range(3)]
    for path in paths:
        (repository / path).write_text("import code_under_test\ndef test_x(): pass\n")
    begin = time.monotonic()

    found = score(repository, [f"{path}::test_x" for path in paths], 3, seconds=2.5)

    assert (found["score"], found["late"]) == (1.0, False), found
    assert time.monotonic() - begin > 2.5


def test_a_program_that_replaces_its_files_holds_nothing_up() -> None:
    program = """
        import os
        for name in ("in", "out", "err", "answer"):
            os.remove(name)
            os.mkfifo(name)
        print(input())
    """
    begin = time.monotonic()

    _, found = cases(program, ["1\n"])

    assert found[0].answer == "1\n"
    assert time.monotonic() - begin < 60


def test_a_program_that_forges_lines_gains_no_right_answer() -> None:
    """Even as root, which may write to the output of what runs it: the right answers are not there to be written."""
    program = """
        import os
        try:
            forged = b'{"case": 1, "how": "ended", "answer": "9"}\\n'
            os.write(os.open(f"/proc/{os.getppid()}/fd/1", os.O_WRONLY), forged)
        except OSError:
            pass
        print(input())
    """
    begun, found = cases(program, ["1\n", "2\n"])

    assert begun
    assert is_right(found[0], "1", called=False)
    assert not is_right(found[1], "right answer", called=False)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("(x+1)^{50}", "(1+x)^{50}", True), ("2^{100000}", "2^{100000}+1", False)],
)
def test_sympy_decides_what_is_too_large_elsewhere(one: str, other: str, same: bool) -> None:
    words = ["/usr/bin/python3", "-I", "-c", source("compare_expressions")]
    done = subprocess.run(
        words, input=json.dumps([read(one), read(other)]), capture_output=True, text=True,
        check=True, timeout=120,
    )  # fmt: skip

    assert json.loads(done.stdout.splitlines()[-1]) in ({"equal": same}, {"missing": True})
