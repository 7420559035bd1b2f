"""Isolation ``apptainer`` obeys the rules of all drivers that fork and keep snapshots.

Apptainer itself is not here: a stand-in takes its command lines and runs them by bubblewrap.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from domain.ports import Driver
from managers.cpu.process import ProcessDriver
from tests.conformance.apptainer.conftest import containers
from tests.conformance.forking import SnapshottingConformance

_FILES = "the worker opens files below the folder of an environment, without a container"
_MARKS = "marks of attempts are files of the worker"
#: Test → why it says nothing about Apptainer; drivers with bubblewrap have it.
LEFT_OUT = {
    "test_a_path_that_climbs_or_names_no_file_is_refused": _FILES,
    "test_an_absolute_path_is_one_of_the_environment_or_refused": _FILES,
    "test_a_missing_file_is_not_found": _FILES,
    "test_a_file_above_the_limit_is_refused": _FILES,
    "test_starts_are_remembered_until_forgotten": _MARKS,
    "test_a_mark_forgotten_while_it_runs_goes_when_it_has_ended": _MARKS,
    "test_resizing_what_does_not_run_is_ignored": "no process is looked at",
    "test_stopping_what_does_not_run_is_ignored": "no process is looked at",
}


class TestApptainerDriver(SnapshottingConformance):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    def make(self) -> Driver:
        return containers(self.directory)

    def has_whole_trees(self, driver: Driver) -> bool:
        assert isinstance(driver, ProcessDriver)
        return driver.trees.everywhere


for _name in LEFT_OUT:
    setattr(TestApptainerDriver, _name, None)


def test_what_is_left_out_is_still_a_test() -> None:
    assert [name for name in LEFT_OUT if not hasattr(SnapshottingConformance, name)] == []
