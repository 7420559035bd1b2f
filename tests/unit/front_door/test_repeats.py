"""Which failed tests of a run are repeated alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.repeats import MOST, repeatable


@pytest.mark.parametrize(
    ("failed", "may"),
    [
        ([], False),
        (["tests/faults/test_a.py::test_b"], True),
        ([f"tests/doors/test_a.py::test_{number}" for number in range(MOST)], True),
        ([f"tests/doors/test_a.py::test_{number}" for number in range(MOST + 1)], False),
        (["tests/faults/test_a.py::test_b", "tests/unit/core/test_a.py::test_b"], True),
        (["tests/faults/test_a.py::test_b", "tests/architecture/test_tree.py::test_b"], False),
        (["tests/architecture/test_tree.py::test_b"], False),
    ],
)
def test_few_failed_tests_of_processes_are_repeated(failed: list[str], may: bool) -> None:
    assert repeatable(failed) is may


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checks", "broken", "listed"),
    [
        ("", "", ["tests/faults/test_it.py::test_b[x y]", "tests/faults/test_it.py::test_c"]),
        ("mypy", "", []),
        ("", "import nothing_there", []),
    ],
)
def test_a_run_lists_what_may_be_repeated(
    tmp_path: Path, checks: str, broken: str, listed: list[str]
) -> None:
    folder = tmp_path / "tests" / "faults"
    folder.mkdir(parents=True)
    (folder / "test_it.py").write_text(
        f"{broken}\nimport pytest\n\n\ndef test_a():\n    pass\n\n\n"
        '@pytest.mark.parametrize("x", ["x y"])\ndef test_b(x):\n    assert not x\n\n\n'
        "@pytest.fixture\ndef lost():\n    raise OSError\n\n\ndef test_c(lost):\n    pass\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.repeats",
        "-p",
        "no:cacheprovider",
    ]
    environment = {"PYTHONPATH": str(ROOT), "TANGRAM_FAILED_CHECKS": checks}

    subprocess.run(
        [*command, "--list-repeats", "repeats", "tests"],
        cwd=tmp_path,
        env=environment,
        check=False,
        capture_output=True,
    )

    assert (tmp_path / "repeats").read_text().splitlines() == listed
