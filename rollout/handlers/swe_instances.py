"""Instances of handler ``swe``: an issue in a repository and the tests that judge its fix, with the columns of SWE-bench.

| member | is |
|---|---|
| `problem_statement` | the issue, as the agent reads it |
| `directory` | the repository in the environment (default: ``/testbed`` of an image, else ``repository``) |
| `files` | path → text: files of the repository that no image has |
| `base_commit` | commit that is checked out |
| `setup` | commands of a shell, run in the repository |
| `FAIL_TO_PASS`, `PASS_TO_PASS` | ids of pytest, ``path::name``; lists, or JSON in a text |
| `test_patch`, `test_files` | tests that the agent does not see: a patch, path → text |
| `test_command`, `reward` | tests of another runner: words, and a rule as of actions |
| `python`, `pytest_options`, `variables` | how tests are run; the variables also hold in `setup` |
| `protected` | patterns of further files that a patch may not change |

Rules
1. A patch changes no file that decides what tests say: those that the instance names, all below a directory ``tests`` or ``test`` with
   such a file, and settings of pytest (`PROTECTED`). What it changes there is put back before the tests.
2. Without `FAIL_TO_PASS` and `test_command` there is nothing to judge: the instance is bad.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec

from domain.errors import InvalidRequest
from domain.rewards import RewardRule, check_reward
from rollout.handlers.base import Job
from rollout.handlers.request_members import instance_of, options_of, refused, texts_of

#: Files that change what pytest or Python do, wherever they are in a repository.
PROTECTED: Final = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini",
    "setup.cfg", "pyproject.toml", "sitecustomize.py", "usercustomize.py", "*.pth",
)  # fmt: skip
_TEST_DIRECTORIES: Final = ("tests", "test")
#: Paths in the headers of a patch.
_PATCHED: Final = re.compile(
    r"^(?:--- a/|\+\+\+ b/|rename from |rename to )(.+?)\s*$", re.MULTILINE
)
_CORES: Final = (1, 2, 4)
#: Tools that the option ``tools`` names.
TOOLS: Final = ("bash", "editor", "python", "think")


class SweMembers(
    msgspec.Struct, kw_only=True,
    rename={"fail_to_pass": "FAIL_TO_PASS", "pass_to_pass": "PASS_TO_PASS"},
):  # fmt: skip
    """Members as a trainer states them."""

    problem_statement: str
    directory: str | None = None
    files: dict[str, str] | None = None
    base_commit: str | None = None
    setup: list[str] = []
    fail_to_pass: str | list[str] | None = None
    pass_to_pass: str | list[str] | None = None
    test_patch: str | None = None
    test_files: dict[str, str] | None = None
    test_command: list[str] = []
    reward: RewardRule | None = None
    python: str = "python3"
    pytest_options: list[str] = []
    variables: dict[str, str] = {}
    protected: list[str] = []


class SweOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the handler."""

    #: Of the agent; also as member of ``sampling``.
    max_iterations: int | None = None
    system_prompt: str | None = None
    #: Of `TOOLS`; ``finish`` is always there.
    tools: tuple[str, ...] = ("bash", "editor", "think")
    #: Limit of the tests within their action.
    test_seconds: float = 900.0
    #: Feasible core counts of the tests.
    test_cores: tuple[int, ...] = _CORES
    #: The reward is the share of tests that pass, not all or nothing.
    partial: bool = False


class SweInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A checked instance. Immutable."""

    problem_statement: str
    directory: str
    files: dict[str, str]
    base_commit: str
    setup: tuple[str, ...]
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    test_patch: str
    test_files: dict[str, str]
    test_command: tuple[str, ...]
    reward: RewardRule | None
    python: str
    pytest_options: tuple[str, ...]
    variables: dict[str, str]
    protected: tuple[str, ...]

    @property
    def test_paths(self) -> list[str]:
        """Return the files of the tests that it names, sorted."""
        return sorted(
            {each.partition("::")[0] for each in (*self.fail_to_pass, *self.pass_to_pass)}
        )

    def pathspecs(self) -> list[str]:
        """Return what a patch may not change, as git's path specifications."""
        named = {*self.test_paths, *self.test_files, *patched_paths(self.test_patch)}
        exact = {directory_of_tests(path) or path for path in named}
        return [
            *(f":(top,glob)**/{name}" for name in PROTECTED),
            *(f":(top,glob){pattern}" for pattern in self.protected),
            *(f":(top,literal){path}" for path in sorted(exact)),
        ]


def swe_instance(job: Job) -> SweInstance:
    """Return the instance of a rollout. Raises InvalidRequest, which names the member."""
    members = instance_of(job, SweMembers)
    if not members.problem_statement.strip():
        raise refused("instance", "problem_statement", "is empty")
    environment = job.request.environment or {}
    default = "/testbed" if environment.get("image") and not members.files else "repository"
    instance = SweInstance(
        problem_statement=members.problem_statement,
        directory=_checked_path(members.directory or default, "directory", absolute=True),
        files=_checked_files(members.files, "files"),
        base_commit=members.base_commit or "",
        setup=tuple(members.setup),
        fail_to_pass=_test_ids(members.fail_to_pass, "FAIL_TO_PASS", members),
        pass_to_pass=_test_ids(members.pass_to_pass, "PASS_TO_PASS", members),
        test_patch=members.test_patch or "",
        test_files=_checked_files(members.test_files, "test_files"),
        test_command=tuple(members.test_command),
        reward=_checked_rule(members.reward, members.test_command),
        python=members.python,
        pytest_options=tuple(members.pytest_options),
        variables=members.variables,
        protected=tuple(members.protected),
    )
    if instance.base_commit.startswith("-"):
        raise refused("instance", "base_commit", "is no commit")
    if not instance.fail_to_pass and not instance.test_command:
        raise refused("instance", "FAIL_TO_PASS", "names no test, and there is no test_command")
    return instance


def swe_options(job: Job) -> SweOptions:
    """Return the options of a rollout. Raises InvalidRequest, which names the member."""
    options = options_of(job, SweOptions)
    if not options.test_cores or min(options.test_cores) < 1:
        raise refused("options", "test_cores", "give core counts of at least 1")
    for number, name in enumerate(options.tools):
        if name not in TOOLS:
            problem = f"there is no tool {name[:40]!r}; there are {', '.join(TOOLS)}"
            raise refused("options", f"tools[{number}]", problem)
    if not 0 < options.test_seconds < float("inf"):
        raise refused("options", "test_seconds", "give a time above 0")
    return options


def patched_paths(patch: str) -> set[str]:
    """Return the paths that the headers of a patch name."""
    return {path for path in _PATCHED.findall(patch) if path != "/dev/null"}


def directory_of_tests(path: str) -> str:
    """Return the outermost directory of tests that a file is in; empty: there is none."""
    parts = PurePosixPath(path).parts
    for number, part in enumerate(parts[:-1], start=1):
        if part in _TEST_DIRECTORIES:
            return "/".join(parts[:number])
    return ""


def _test_ids(value: Any, member: str, members: SweMembers) -> tuple[str, ...]:
    ids = texts_of(value, member)
    if members.test_command:
        return ids
    for number, each in enumerate(ids):
        path, _, name = each.partition("::")
        if not name or not path.endswith(".py"):
            problem = f"{each[:80]!r} is no id of pytest, path.py::name; give test_command for another runner"
            raise refused("instance", f"{member}[{number}]", problem)
        _checked_path(path, f"{member}[{number}]")
    return ids


def _checked_files(files: Mapping[str, str] | None, member: str) -> dict[str, str]:
    for path in files or {}:
        _checked_path(path, f"{member}[{path[:80]!r}]")
    return dict(files or {})


def _checked_path(path: str, member: str, *, absolute: bool = False) -> str:
    """Return a path that does not climb. Raises InvalidRequest."""
    parts = PurePosixPath(path).parts
    bad = ".." in parts or ".git" in parts or "\0" in path or path.startswith("-") or not parts
    if bad or (path.startswith("/") and not absolute):
        raise refused("instance", member, f"{path[:80]!r} is no path below the repository")
    return path


def _checked_rule(rule: RewardRule | None, words: list[str]) -> RewardRule | None:
    if not words:
        if rule is not None:
            raise refused("instance", "reward", "goes with test_command")
        return None
    found = rule or RewardRule(source="exit_code")
    try:
        check_reward(found, is_call=False)
    except InvalidRequest as error:
        raise refused("instance", "reward", str(error)) from None
    return found


def all_ids(instance: SweInstance) -> Iterator[tuple[str, int, str]]:
    """Yield the member, the number in it, and the id of each test."""
    for member, ids in (
        ("FAIL_TO_PASS", instance.fail_to_pass),
        ("PASS_TO_PASS", instance.pass_to_pass),
    ):
        for number, each in enumerate(ids):
            yield member, number, each
