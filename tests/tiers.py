"""Tiers of the test run: `quick`, `full` and `long`, chosen by ``--tier``.

quick   unit and architecture tests without a mark, few examples of each property (`make test`)
full    everything except campaigns (`./tangram test`); the default
long    everything, and many examples of each property (`./tangram test --long`)

A pytest plugin, named in pyproject.toml, because test modules call `by_tier` while they are imported.
"""

from __future__ import annotations

import os
from typing import Final, TypeVar

import pytest
from hypothesis import settings

QUICK: Final = "quick"
FULL: Final = "full"
LONG: Final = "long"
#: Tier → marks of tests that it leaves out.
_LEFT_OUT: Final = {QUICK: {"slow", "long"}, FULL: {"long"}, LONG: set[str]()}

_tier = FULL
T = TypeVar("T")


def in_ci() -> bool:
    """Say whether the run is one of CI, where a skipped test fails."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


def by_tier(quick: T, full: T, long: T) -> T:
    """Return the value of this tier, for instance the examples that a property tries."""
    return {QUICK: quick, FULL: full, LONG: long}[_tier]


def is_quick() -> bool:
    """Say whether this is a run of `make test`."""
    return _tier == QUICK


@pytest.hookimpl(tryfirst=True, optionalhook=True)  # before that of pytest-xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return what ``-n auto`` means: a process for each core, and twice as many where tests wait for other programs."""
    cores = len(os.sched_getaffinity(0))
    return cores if config.getoption("--tier") == QUICK else 2 * cores


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--tier", choices=list(_LEFT_OUT), default=FULL, help="which tests are run")


def pytest_configure(config: pytest.Config) -> None:
    """Load the Hypothesis profile of the tier, before any test module is imported."""
    global _tier  # decorators read it while modules are imported
    _tier = config.getoption("--tier")
    # A slow machine fails no property, and CI runs the same examples every time.
    settings.register_profile(
        "tangram",
        deadline=None,
        derandomize=in_ci(),
        print_blob=True,
        max_examples=by_tier(25, 50, 1000),
        database=None if _tier == QUICK or in_ci() else settings.get_profile("default").database,
    )
    settings.load_profile("tangram")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of other tiers."""
    left_out = [
        item for item in items if any(item.get_closest_marker(mark) for mark in _LEFT_OUT[_tier])
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
