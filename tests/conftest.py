"""Fixtures of all tests, and rules of a run: on CI a skipped test or a failed check fails it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from whitenoise.middleware import WhiteNoiseMiddleware

from managers.cpu.tree import base
from tests.not_run import why_not_run
from tests.tiers import in_ci

#: Checks of `./tangram test` that failed before the tests began.
FAILED_CHECKS = os.environ.get("TANGRAM_FAILED_CHECKS", "")


@pytest.fixture(scope="session", autouse=True)
def one_base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make the base of environments once: drivers of tests have links to it, where each would copy 800 files and delete them."""
    real, made = base._fill, dict[tuple[tuple[str, str], ...], Path]()

    def fill(tree: Path, sources: list[Any]) -> None:
        facts = tuple((each.path, each.describe()) for each in sources)
        if facts not in made:
            made[facts] = tmp_path_factory.mktemp("base") / "tree"
            real(made[facts], sources)
        tree.parent.mkdir(parents=True)
        tree.symlink_to(made[facts])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "_fill", fill)
        yield


@pytest.fixture(scope="session", autouse=True)
def static_files_once() -> Iterator[None]:
    """Find the static files once: each client of Django's tests has an application of its own, which lists and opens them all."""
    real, found = WhiteNoiseMiddleware.add_files_from_finders, dict[str, Any]()

    def find(self: WhiteNoiseMiddleware) -> None:
        if not found:
            real(self)
            found.update(self.files)
        self.files.update(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WhiteNoiseMiddleware, "add_files_from_finders", find)
        yield


@pytest.fixture
def program() -> Callable[[str], str]:
    """Find a program that a test needs; without it the test is left out, on CI it fails."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            pytest.skip(f"{name} is not installed")
        return path

    return find


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """On CI a test that was left out is a failed test, unless no machine like this one can run it."""
    report = yield
    why = why_not_run(call)
    if why is not None:
        report.user_properties.append(("not run", f"{item.nodeid}: {why}"))
    elif in_ci() and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"left out, which CI does not accept: {report.longrepr}"
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A failed check fails the run."""
    if FAILED_CHECKS and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print figures of the code base, and name failed checks beside failed tests."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    figures = [text for each in reports for name, text in each.user_properties if name == "figure"]
    if figures:
        terminalreporter.section("Figures of the code base")
        terminalreporter.write_line(", ".join(map(str, sorted(set(figures)))))
    skipped = terminalreporter.getreports("skipped")
    not_run = [text for each in skipped for name, text in each.user_properties if name == "not run"]
    if not_run:
        terminalreporter.section("Not run: this machine cannot")
        terminalreporter.write_line("\n".join(map(str, not_run)))
    if FAILED_CHECKS:
        terminalreporter.write_line(f"FAILED checks (above): {FAILED_CHECKS}", red=True, bold=True)
