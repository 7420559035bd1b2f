"""CPU time of unit tests: each stays below a limit, and so does their median.

A test that is not marked `slow` and uses more is run again, up to twice, because its first run may
have paid for imports, caches and garbage of other tests; the least of its runs counts. Properties have the limit in the tier
`quick` alone, where they try few examples. ``@pytest.mark.cpu_seconds(5)`` states another limit.
On a machine that is slower or busier than the reference, measured when a test exceeds its limit, the
limit grows in proportion. A pytest plugin, named in pyproject.toml.
"""

from __future__ import annotations

import gc
import resource
import statistics
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from _pytest.runner import runtestprotocol

from tests.architecture.tree import ROOT
from tests.tiers import is_quick

LIMIT_SECONDS: Final = 0.25
MEDIAN_LIMIT_SECONDS: Final = 0.01
#: The median is checked in a run of at least so many tests.
_MANY: Final = 500
#: What `_reference_work` takes on an idle core of the machine that the limits were set on.
_REFERENCE_SECONDS: Final = 0.0142
_RUNS: Final = 3
_PROPERTY: Final = "cpu_seconds"
_SHOWN: Final = 20
_UNIT_TESTS = ROOT / "tests" / "unit"

_measured: dict[str, float] = {}
#: The file of the last test.
_file: Path | None = None


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the children that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _limit(item: pytest.Item) -> float | None:
    """Return how many CPU seconds a test may use, None without a limit."""
    if not item.path.is_relative_to(_UNIT_TESTS) or item.get_closest_marker("slow"):
        return None
    stated = item.get_closest_marker("cpu_seconds")
    is_property = stated or getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    if is_property and not is_quick():
        return None
    return float(stated.args[0]) if stated else LIMIT_SECONDS


def _reference_work() -> float:
    """Do a fixed amount of work; return its CPU time."""
    began, kept = time.process_time(), {}
    for number in range(200_000):
        kept[number & 1023] = str(number)
    return time.process_time() - began


def _slowness() -> float:
    """Return how many times slower than the reference this machine is now; at least 1."""
    return max(1.0, min(_reference_work() for _ in range(3)) / _REFERENCE_SECONDS)


def _run(item: pytest.Item, nextitem: pytest.Item | None) -> tuple[float, list[pytest.TestReport]]:
    """Run a test, with its fixtures; return its CPU time and its reports."""
    item._initrequest()  # type: ignore[attr-defined]  # as in a first run
    before = cpu_seconds()
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    return cpu_seconds() - before, reports


def _run_without_earlier_garbage(
    item: pytest.Item, nextitem: pytest.Item | None
) -> tuple[float, list[pytest.TestReport]]:
    """Run a test as `_run` does, and collect before it what would be collected in it."""
    with warnings.catch_warnings():
        # A socket that an earlier test left open is no failure of this one.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.freeze()
    return _run(item, nextitem)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a unit test, and fail it when it uses too much CPU time."""
    global _file  # tests of a file run one after the other
    if item.path != _file:
        _file = item.path
        # What earlier files left is not collected in this one: 9,000 tests leave gigabytes, and looking through them takes seconds.
        gc.freeze()
    limit = _limit(item)
    if limit is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    used, reports = _run(item, nextitem)
    for _ in range(_RUNS - 1):
        if used <= limit or any(report.failed for report in reports):
            break
        again, reports = _run_without_earlier_garbage(item, nextitem)
        used = min(used, again)
    if used > limit:
        limit *= _slowness()
    for report in reports:
        if report.when == "call" and report.passed:
            report.user_properties.append((_PROPERTY, used))
            if used > limit:
                report.outcome = "failed"
                report.longrepr = (
                    f"uses {used:.2f} s of CPU time, above {limit:.2f} s: make it smaller, "
                    "or mark it slow, which leaves it out of `make test`"
                )
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the CPU time of a test, also of one that ran in a worker of pytest-xdist."""
    _measured.update(
        (report.nodeid, value)
        for key, value in report.user_properties
        if key == _PROPERTY and isinstance(value, float)
    )


def _median_is_too_high(measured: Sequence[float]) -> bool:
    if len(measured) < _MANY or statistics.median(measured) <= MEDIAN_LIMIT_SECONDS:
        return False
    return statistics.median(measured) > MEDIAN_LIMIT_SECONDS * _slowness()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run when the median test uses too much."""
    if _median_is_too_high([*_measured.values()]) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the median and the tests that use most."""
    if not _measured:
        return
    median = statistics.median(_measured.values())
    high = _median_is_too_high([*_measured.values()])
    terminalreporter.section("CPU time of unit tests")
    terminalreporter.write_line(
        f"{len(_measured)} tests, {sum(_measured.values()):.0f} s, median {median * 1000:.1f} ms"
        f" (at most {MEDIAN_LIMIT_SECONDS * 1000:.0f} ms)",
        red=high,
    )
    most = sorted(_measured.items(), key=lambda each: -each[1])[:_SHOWN]
    for name, seconds in most:
        terminalreporter.write_line(f"{seconds:.3f} s  {name}")
