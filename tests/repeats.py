"""Which failed tests `./tangram test` repeats once, alone: those of processes, when they are few.

A test of real processes can fail because the machine was busy with the other tests of its part. A repeat without these
tells a wrong program from a slow machine: what fails alone fails the run, and what passes is named in the last line of
the run. Unit and architecture tests are never repeated, and neither are many failed tests, a failed check, or a run that
broke off (docs/decisions/0171). Two exceptions: what an earlier test left open is found when memory is freed, in whichever
test that is, and CPU time above a limit, which busy neighbours on the same core add to. A pytest plugin, named in
pyproject.toml.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

import pytest

from tests.cpu_budget import OVER_LIMIT

#: More failed tests than these are not repeated.
MOST: Final = 8
#: Tests of these folders depend on nothing that is slow.
_NEVER: Final = ("tests/unit/", "tests/architecture/")

#: What pytest raises in a test for an object that another one may have left.
_LEFT_BEHIND: Final = ("PytestUnraisableExceptionWarning", "multiple unraisable exception warnings")

_failed: dict[str, None] = {}  # in the order of their failures
#: Those of them whose failure says nothing about their own code.
_excused: set[str] = set()


def repeatable(failed: Collection[str], excused: Collection[str] = ()) -> bool:
    """Say whether a run that failed for these tests alone is repeated for them.

    ``excused``: those of them that failed for an object of an earlier test, or for their CPU time.
    """
    own = [nodeid for nodeid in failed if nodeid not in excused]
    return 0 < len(failed) <= MOST and not any(nodeid.startswith(_NEVER) for nodeid in own)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--list-repeats", type=Path, help="write the failed tests that may be repeated to this file"
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a failed test, whichever phase failed, and name it at once: a run that is cut short has no summary."""
    if report.failed:
        if "PYTEST_XDIST_WORKER" not in os.environ:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = "" if crash is None else f": {crash.message.splitlines()[0][:300]}"
            sys.stderr.write(f"\n{report.nodeid} failed after {report.duration:.0f} s{said}\n")
        _failed[report.nodeid] = None
        crash = getattr(report.longrepr, "reprcrash", None)
        is_left_behind = crash and any(each in crash.message for each in _LEFT_BEHIND)
        if is_left_behind or (OVER_LIMIT, True) in report.user_properties:
            _excused.add(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module that cannot be imported is no test of a process."""
    if report.failed:
        _failed["tests/unit/"] = None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the list, one test a line, or an empty file."""
    path: Path | None = session.config.getoption("--list-repeats")
    if path is None or "PYTEST_XDIST_WORKER" in os.environ:
        return
    only_tests = session.exitstatus == pytest.ExitCode.TESTS_FAILED and not os.environ.get(
        "TANGRAM_FAILED_CHECKS"
    )
    again = only_tests and repeatable(_failed, _excused)
    path.write_text("".join(f"{each}\n" for each in _failed) if again else "")
