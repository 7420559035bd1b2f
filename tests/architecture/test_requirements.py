"""The lock files install what pyproject.toml asks for, exactly."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked(name: str) -> dict[str, str]:
    """Return name → version of one lock file."""
    lines = (ROOT / "requirements" / f"{name}.lock").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


@pytest.mark.parametrize("name", ["core", "test"])
def test_lock_pins_one_version_of_each_package(name):
    lines = (ROOT / "requirements" / f"{name}.lock").read_text().splitlines()[1:]

    assert [
        line for line in lines if not re.match(r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; .+)?$", line)
    ] == []
    assert len(locked(name)) == len(lines)


@pytest.mark.parametrize(
    ("wanted", "pins"),
    [
        (PROJECT["dependencies"], locked("core")),
        (PROJECT["optional-dependencies"]["test"], locked("core") | locked("test")),
    ],
    ids=["core", "test"],
)
def test_lock_satisfies_what_the_project_asks_for(wanted, pins):
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])


def test_no_package_is_locked_twice():
    assert locked("core").keys() & locked("test").keys() == set()


def test_extra_packages_of_the_broker_are_installed_with_the_core() -> None:
    """Kombu names it in an extra; tests bring it along, so its absence shows only at users'."""
    needed = [Requirement(text) for text in requires("kombu") or ()]
    of_redis = [r for r in needed if r.marker and r.marker.evaluate({"extra": "redis"})]
    assert of_redis
    assert {canonicalize_name(requirement.name) for requirement in of_redis} <= locked(
        "core"
    ).keys()
