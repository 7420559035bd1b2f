"""Which failed tests `./tangram test` repeats once, alone: those that run programs, when they are few.

A test of processes, threads or sockets can fail because the machine was busy with the other tests of its part. A repeat without these
tells a wrong program from a slow machine: what fails alone fails the run, and what passes is named in the last line of
the run. Architecture tests read text alone, and are never repeated; neither are many failed tests, a failed check, or a run that
broke off (docs/decisions/0171). A pytest plugin, named in pyproject.toml.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

import pytest

#: More failed tests than these are not repeated.
MOST: Final = 8
#: Tests of this folder depend on nothing that is slow.
_NEVER: Final = "tests/architecture/"

_failed: dict[str, None] = {}  # in the order of their failures


def repeatable(failed: Collection[str]) -> bool:
    """Say whether a run that failed for these tests alone is repeated for them."""
    return 0 < len(failed) <= MOST and not any(nodeid.startswith(_NEVER) for nodeid in failed)


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


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module that cannot be imported is no test of a process."""
    if report.failed:
        _failed[_NEVER] = None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the list, one test a line, or an empty file."""
    path: Path | None = session.config.getoption("--list-repeats")
    if path is None or "PYTEST_XDIST_WORKER" in os.environ:
        return
    only_tests = session.exitstatus == pytest.ExitCode.TESTS_FAILED and not os.environ.get(
        "TANGRAM_FAILED_CHECKS"
    )
    again = only_tests and repeatable(_failed)
    path.write_text("".join(f"{each}\n" for each in _failed) if again else "")
