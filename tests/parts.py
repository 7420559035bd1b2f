"""Time of a run by part: tests, seconds and CPU seconds of each folder of tests, printed at the end of the run.

The seconds of a part are the sum over its tests, with fixtures: parts that run side by side add up to more than the
run takes. Its CPU seconds are those of the processes of the tests and of the children that they have waited for; a
service of a whole folder counts when it ends. A part with more seconds than CPU seconds waits, and can share the cores
with others. A pytest plugin, named in pyproject.toml.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pytest

from tests.cpu_budget import cpu_seconds

_PROPERTY: Final = "CPU seconds of a phase"
#: Folders below these are one part.
_WHOLE: Final = frozenset({"tests/unit"})


@dataclass
class Part:
    """What is counted of one folder."""

    tests: set[str] = field(default_factory=set)
    seconds: float = 0.0
    cpu_seconds: float = 0.0


_parts: dict[str, Part] = defaultdict(Part)
_before = 0.0


def part_of(nodeid: str) -> str:
    """Return the folder of a test, at most two below `tests`."""
    first, *rest = nodeid.partition("::")[0].split("/")[:-1] or ["tests"]
    whole = "/".join((first, *rest[:1]))
    return whole if whole in _WHOLE else "/".join((first, *rest[:2]))


def lines(parts: Mapping[str, Part]) -> list[str]:
    """Return a line for each part, those that take longest first."""
    ordered = sorted(parts.items(), key=lambda each: -each[1].seconds)
    return [
        f"{part.seconds:7.1f} s, {part.cpu_seconds:7.1f} s of CPU time, {len(part.tests):5} tests  {name}"
        for name, part in ordered
    ]


def pytest_runtest_logstart() -> None:
    """Count from here, in the process that runs the test."""
    global _before  # one test runs at a time
    _before = cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the CPU time of the phase to its report."""
    global _before
    report = yield
    now = cpu_seconds()
    report.user_properties.append((_PROPERTY, now - _before))
    _before = now
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count a phase of a test, also of one that ran in a worker of pytest-xdist."""
    part = _parts[part_of(report.nodeid)]
    part.tests.add(report.nodeid)
    part.seconds += report.duration
    part.cpu_seconds += sum(
        float(str(value)) for name, value in report.user_properties if name == _PROPERTY
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the parts of the run."""
    if _parts:
        terminalreporter.section("Time of the parts")
        terminalreporter.write_line("\n".join(lines(_parts)))
