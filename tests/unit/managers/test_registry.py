"""Managers of other packages are found; a broken one costs only itself."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from domain.errors import InvalidRequest
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.ports import DriverContext, Manager
from managers.cpu.containers import ContainerDriver
from managers.cpu.ledger import CpuLedger
from managers.cpu.process import ProcessDriver
from managers.quota.ledger import CounterLedger
from managers.registry import GROUP, discover, load

LAB_DESK = Manager("desk", CounterLedger)
SECOND_DESK = Manager("desk", CounterLedger)
FOREIGN_CPU = Manager("cpu", CounterLedger)
NOT_A_MANAGER = "desk"


def an_entry(name: str, attribute: str, module: str = __name__) -> EntryPoint:
    return EntryPoint(name, f"{module}:{attribute}", GROUP)


def test_built_in_managers_need_no_installation() -> None:
    assert {"cpu", "memory", "api"} <= set(load(()).managers)
    assert {"cpu", "memory", "api"} <= set(discover())


def test_a_manager_of_another_package_is_found() -> None:
    registry = load([an_entry("desk", "LAB_DESK")])
    assert registry.managers["desk"] is LAB_DESK
    assert registry.problems == ()


def test_an_entry_point_that_cannot_be_loaded_is_reported_and_left_out() -> None:
    registry = load([an_entry("ghost", "MANAGER", "no_such_module"), an_entry("desk", "LAB_DESK")])
    assert "ghost = no_such_module:MANAGER cannot be loaded" in registry.problems[0]
    assert "desk" in registry.managers


def test_an_entry_point_that_is_no_manager_is_reported() -> None:
    registry = load([an_entry("text", "NOT_A_MANAGER")])
    assert "is a str, not a domain.ports.Manager" in registry.problems[0]


def test_two_managers_for_one_resource_are_both_named_and_the_first_stays() -> None:
    registry = load([an_entry("z", "SECOND_DESK"), an_entry("a", "LAB_DESK")])
    assert registry.managers["desk"] is LAB_DESK
    assert "LAB_DESK" in registry.problems[0]
    assert "SECOND_DESK" in registry.problems[0]


def test_a_built_in_manager_cannot_be_replaced() -> None:
    registry = load([an_entry("cpu", "FOREIGN_CPU")])
    assert registry.managers["cpu"].make_ledger is CpuLedger
    assert "FOREIGN_CPU" in registry.problems[0]


def test_the_same_manager_registered_twice_is_no_problem() -> None:
    assert load([an_entry("a", "LAB_DESK"), an_entry("b", "LAB_DESK")]).problems == ()


def test_a_resource_without_a_manager_is_counted() -> None:
    registry = load(())
    inventory = ResourceInventory(3000)
    assert isinstance(registry.make_ledger(ResourceId("cpu:n1"), inventory), CpuLedger)
    assert isinstance(registry.make_ledger(ResourceId("desk:n1"), inventory), CounterLedger)


def a_context(**settings: str) -> DriverContext:
    return DriverContext("n1", Path("/nowhere"), {}, settings)


@pytest.mark.parametrize(
    ("backend", "driver"),
    [("", ProcessDriver), ("process", ProcessDriver), ("docker", ContainerDriver)],
)
def test_the_backend_of_a_node_decides_how_commands_run(backend: str, driver: type) -> None:
    make = load(()).managers["cpu"].make_driver
    assert make is not None
    assert isinstance(make(a_context(backend=backend)), driver)


@pytest.mark.parametrize(
    "settings",
    [
        {"backend": "podman"},
        {"backend": "docker", "docker_way": "magic"},
        {"backend": "docker", "docker_max_processes": "many"},
        {"backend": "docker", "docker_warm": "-1"},
        {"backend": "docker", "docker_read_only": "perhaps"},
        {"backend": "docker", "docker_imagge": "swe:1"},
    ],
    ids=["backend", "way", "number", "negative", "yes or no", "misspelt"],
)
def test_a_setting_that_is_wrong_is_named(settings: dict[str, str]) -> None:
    make = load(()).managers["cpu"].make_driver
    assert make is not None
    with pytest.raises(InvalidRequest, match=list(settings)[-1]):
        make(a_context(**settings))
