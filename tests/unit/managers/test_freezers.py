"""Environments are frozen by groups of either version of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from managers.cpu.environment.freezers import (
    EnvironmentFreezer,
    Freezers,
    open_freezers,
    unified_freezer,
)


def a_group(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True)
    for name, content in {"cgroup_procs": "", **files}.items():
        (directory / name.replace("_", ".", 1)).write_text(content)
    return directory


def test_a_group_of_version_1_takes_what_is_not_in_it_and_is_frozen(tmp_path: Path) -> None:
    directory = a_group(tmp_path / "e", cgroup_procs="7\n", freezer_state="THAWED\n")
    freezer = EnvironmentFreezer(directory)
    freezer.freeze(True)
    assert (directory / "freezer.state").read_text().startswith("FROZEN")
    assert freezer.take([7, 9])
    assert (directory / "cgroup.procs").read_text().startswith("9")
    (directory / "cgroup.procs").write_text("7\n9\n")
    assert not freezer.take([7, 9])
    (directory / "freezer.state").write_text("FREEZING\n")
    assert not freezer.is_frozen()
    (directory / "freezer.state").write_text("FROZEN\n")
    assert freezer.is_frozen()


def test_a_group_of_version_2_that_has_its_processes_is_frozen_as_it_is(tmp_path: Path) -> None:
    events = "populated 1\nfrozen 0\n"
    directory = a_group(tmp_path / "e", cgroup_freeze="0\n", cgroup_events=events)
    freezer = unified_freezer(directory)
    assert freezer is not None
    freezer.freeze(True)
    assert (directory / "cgroup.freeze").read_text().startswith("1")
    assert not freezer.take([7])
    assert not freezer.is_frozen()
    (directory / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert freezer.is_frozen()
    freezer.freeze(False)
    assert (directory / "cgroup.freeze").read_text().startswith("0")
    assert freezer.remove()
    assert directory.exists()


def test_a_group_of_version_1_has_no_freezer_of_version_2(tmp_path: Path) -> None:
    assert unified_freezer(a_group(tmp_path / "e")) is None


def test_what_a_dead_worker_left_frozen_is_thawed(tmp_path: Path) -> None:
    left = a_group(tmp_path / "e1", freezer_state="FROZEN\n")
    Freezers(tmp_path).thaw()
    assert (left / "freezer.state").read_text().startswith("THAWED")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes control groups here")
def test_an_environment_is_frozen_by_the_kernel_of_this_machine() -> None:
    try:
        freezers = open_freezers(f"tangram-test-{os.getpid()}")
    except OSError as error:
        pytest.skip(str(error))
    freezer = freezers.of("e1")
    freezer.freeze(True)
    assert freezer.is_frozen()
    assert freezer.remove()
    freezers.close()
