"""The registry of launchers: a missing or broken one is named, and costs its own groups alone."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from domain.errors import InvalidRequest
from managers.launch import processes
from managers.launch.launcher import ENTRY_POINTS, LaunchError
from managers.launch.machines import MachinesLauncher
from managers.launch.registry import BUILT_IN, make_launcher, places
from tests.architecture.tree import ROOT


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, ENTRY_POINTS)


def test_each_built_in_launcher_is_there_and_is_an_entry_point() -> None:
    declared = (ROOT / "pyproject.toml").read_text().partition(f'"{ENTRY_POINTS}"]')[2]
    for name, place in BUILT_IN.items():
        module, _, function = place.partition(":")
        assert callable(getattr(import_module(module), function))
        assert f'{name} = "{place}"' in declared.partition("\n[")[0]


def test_a_group_gets_the_launcher_of_its_engine() -> None:
    assert isinstance(make_launcher("processes", {}), MachinesLauncher)


def test_a_package_adds_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("their_engine")
    theirs = processes.make({})
    module.make = lambda options: theirs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_engine", module)
    found = make_launcher("nomad", {"a": "b"}, [point("nomad", "their_engine:make")])
    assert found is theirs


def test_a_built_in_name_stays_and_the_other_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert places([point("ssh", "theirs:make")])["ssh"] == BUILT_IN["ssh"]
    assert "launcher ssh = theirs:make is left out" in caplog.text


def test_an_engine_without_a_launcher_is_named() -> None:
    with pytest.raises(LaunchError, match=r"no launcher for engine 'mesos'.*processes"):
        make_launcher("mesos", {}, [])


def test_a_launcher_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(LaunchError, match=r"'nomad' .*cannot be loaded: ModuleNotFoundError"):
        make_launcher("nomad", {}, [point("nomad", "no_such_module:make")])


def test_a_launcher_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("their_engine")
    module.make = lambda options: options["address"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_engine", module)
    with pytest.raises(LaunchError, match="cannot be made: KeyError"):
        make_launcher("nomad", {}, [point("nomad", "their_engine:make")])


def test_a_wrong_option_is_the_operators() -> None:
    with pytest.raises(InvalidRequest, match="there is no option 'colour'"):
        make_launcher("processes", {"colour": "red"})
