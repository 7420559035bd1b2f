"""Bugs in copies of installed libraries, and the tests that notice them: instances of handler ``swe``.

    for bug in library_bugs(count=6, seed=0): print(bug.name, bug.line, bug.right, "→", bug.wrong)

A bug is one changed operator, number or condition (mutation testing) that makes at least one test fail and leaves at least one that
passes. The same seed gives the same bugs, for the same versions of the libraries. The libraries and their tests are in
``libraries.yaml``; nothing that is installed is changed.
"""

from __future__ import annotations

import ast
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import yaml

LIBRARIES: Final = Path(__file__).with_name("libraries.yaml")
#: A bug that makes tests hang is not used.
_TEST_SECONDS: Final = 20.0
_OPERATORS: Final[Mapping[type, tuple[str, str]]] = {
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.Add: ("+", "-"), ast.Sub: ("-", "+"),
    ast.Mod: ("%", "//"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
#: Runs test functions, and prints those that fail; pytest is for the rollout.
_RUNNER: Final = """
import sys, traceback
names = {}
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), names)
for name in sorted(names):
    if name.startswith("test_"):
        try:
            names[name]()
        except Exception:
            print(name)
"""


@dataclass(frozen=True)
class Change:
    """One changed expression of a source."""

    #: From 1.
    line: int
    begin: int
    right: str
    wrong: str

    def applied(self, source: str) -> str:
        """Return the source with the bug."""
        lines = source.split("\n")
        text = lines[self.line - 1]
        assert text[self.begin :].startswith(self.right)
        lines[self.line - 1] = (
            text[: self.begin] + self.wrong + text[self.begin + len(self.right) :]
        )
        return "\n".join(lines)


@dataclass(frozen=True)
class LibraryBug:
    """A library with a bug, and what its tests say."""

    name: str
    library: str
    #: Path → text of the library.
    files: Mapping[str, str] = field(repr=False)
    #: File, line, and both texts of it.
    path: str
    line: int
    right: str
    wrong: str
    tests: str = field(repr=False)
    failing: Sequence[str]
    passing: Sequence[str]

    @property
    def test_path(self) -> str:
        """Where the tests are in the repository."""
        return f"tests/test_{self.library}.py"

    def data(self) -> dict[str, Any]:
        """Return the instance, as handler ``swe`` takes it."""
        example = self.assertion(self.failing[0])
        return {
            "problem_statement": f"Instance {self.name}. {self.library} does not behave as documented:\n\n"
            f"    assert {example}\n\nfails. Other calls may fail for the same reason.",
            "files": {**self.files, "README": f"A copy of {self.library}.\n"},
            "test_files": {self.test_path: self.tests},
            "FAIL_TO_PASS": [f"{self.test_path}::{name}" for name in self.failing],
            "PASS_TO_PASS": [f"{self.test_path}::{name}" for name in self.passing],
        }

    def assertion(self, name: str) -> str:
        """Return what a test asserts."""
        return self.tests.partition(f"def {name}():\n    assert ")[2].partition("\n")[0]


def library_bugs(count: int, seed: int = 0) -> Iterator[LibraryBug]:
    """Yield bugs, library by library in turn. Raises LookupError for a library that is not installed."""
    chance = random.Random(seed)
    described = yaml.safe_load(LIBRARIES.read_text())
    sources = [_bugs_of(name, each, chance) for name, each in described.items()]
    for number in range(count):
        yield next(sources[number % len(sources)])


def changes(source: str) -> list[Change]:
    """Return the changes of a source that can be made, in their order."""
    lines = source.split("\n")
    found: list[Change] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            found += _between(lines, node.left, node.comparators[0], node.ops[0])
        elif isinstance(node, ast.BinOp) and not _is_text(node):
            found += _between(lines, node.left, node.right, node.op)
        elif isinstance(node, ast.BoolOp):
            found += _between(lines, node.values[0], node.values[1], node.op)
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            right = ast.get_source_segment(source, node)
            if right == str(node.value):
                found.append(Change(node.lineno, node.col_offset, right, str(node.value + 1)))
    ascii_lines = [each for each in found if lines[each.line - 1].isascii()]
    return sorted(set(ascii_lines), key=lambda each: (each.line, each.begin, each.wrong))


def _bugs_of(
    library: str, described: Mapping[str, Any], chance: random.Random
) -> Iterator[LibraryBug]:
    folder = _folder_of(library)
    files = {path: (folder / path).read_text() for path in described["files"]}
    tests = written_tests(library, described["tests"])
    with tempfile.TemporaryDirectory() as place:
        run = _TestRun(Path(place), files, tests)
        if run.failing():
            raise LookupError(f"the installed {library} fails its own tests: {run.failing()}")
    places = [
        (path, change)
        for path in described.get("mutate", described["files"][:1])
        for change in changes(files[path])
    ]
    chance.shuffle(places)
    number = 0
    for path, change in places:
        broken = {**files, path: change.applied(files[path])}
        with tempfile.TemporaryDirectory() as place:
            run = _TestRun(Path(place), broken, tests)
            failing = run.failing()
        if failing and len(failing) < len(run.names):
            passing = [name for name in run.names if name not in failing]
            right, wrong = (
                text.split("\n")[change.line - 1] for text in (files[path], broken[path])
            )
            yield LibraryBug(
                f"{library}-{number}", library, broken, path, change.line, right, wrong, tests,
                failing, passing,
            )  # fmt: skip
            number += 1


def written_tests(library: str, groups: Mapping[str, Sequence[str]]) -> str:
    """Return the text of a file of tests."""
    functions = [
        f"def test_{group}_{number}():\n    assert {line}\n"
        for group, lines in groups.items()
        for number, line in enumerate(lines)
    ]
    return "\n\n".join([f'"""What {library} promises."""\n\nimport {library}\n', *functions])


class _TestRun:
    """Runs the tests of a library in a folder."""

    def __init__(self, folder: Path, files: Mapping[str, str], tests: str) -> None:
        self._folder = folder
        self.names = [line[4:-3] for line in tests.splitlines() if line.startswith("def test_")]
        for path, text in {**files, "tests_of_it.py": tests}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)

    def failing(self) -> list[str]:
        """Return the names of the tests that fail; none where they cannot be run."""
        try:
            done = subprocess.run(
                [sys.executable, "-c", _RUNNER, "tests_of_it.py"], cwd=self._folder, text=True,
                capture_output=True, timeout=_TEST_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return []
        return done.stdout.split() if done.returncode == 0 else []


def _folder_of(library: str) -> Path:
    """Return the folder that a library is imported from."""
    spec = find_spec(library)
    if spec is None or spec.origin is None:
        raise LookupError(f"{library} is not installed for {sys.executable}")
    origin = Path(spec.origin)
    return origin.parent.parent if origin.name == "__init__.py" else origin.parent


def _between(lines: Sequence[str], left: ast.expr, right: ast.expr, operator: Any) -> list[Change]:
    """Return the change of the operator between two expressions of one line."""
    pair = _OPERATORS.get(type(operator))
    if pair is None or left.end_lineno != right.lineno or left.end_col_offset is None:
        return []
    text = lines[right.lineno - 1][left.end_col_offset : right.col_offset]
    if text.strip(" ()") != pair[0]:
        return []
    return [Change(right.lineno, left.end_col_offset + text.index(pair[0]), *pair)]


def _is_text(node: ast.BinOp) -> bool:
    """Say whether an operation is on a literal text, as ``"%s" % x``."""
    return any(
        isinstance(each, ast.JoinedStr) or (isinstance(each, ast.Constant) and isinstance(each.value, str))
        for each in (node.left, node.right)
    )  # fmt: skip
