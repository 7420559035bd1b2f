"""The example of a third-party manager is found through its entry point and obeys the rules."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import strategies as st

from domain.errors import CapacityError, InvalidRequest
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.ports import DriverContext, Ledger, Manager
from domain.resources import MILLI
from managers.registry import GROUP, Registry, load
from tests.conformance.ledger import LedgerConformance

EXAMPLE = Path(__file__).parents[2] / "examples" / "license_manager"


@pytest.fixture(scope="module")
def registry() -> Registry:
    """Return what would be found if the example were installed."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    entries = [
        EntryPoint(name, value, GROUP) for name, value in project["entry-points"][GROUP].items()
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE)
        return load(entries)


@pytest.fixture(scope="module")
def manager(registry: Registry) -> Manager:
    return registry.managers["license"]


def test_the_example_is_found_beside_the_built_in_managers(registry: Registry) -> None:
    assert registry.problems == ()
    assert {"cpu", "license"} <= set(registry.managers)
    ledger = registry.make_ledger(ResourceId("license:n1"), ResourceInventory(2 * MILLI))
    assert ledger.allocate("act_1", MILLI).amount == MILLI


def test_a_node_has_the_licences_it_declares(manager: Manager) -> None:
    assert manager.probe is not None
    context = DriverContext("n1", Path("/nowhere"), {}, {"licenses": "3"})
    assert manager.probe(context).capacity == 3 * MILLI
    with pytest.raises(InvalidRequest):
        manager.probe(DriverContext("n1", Path("/nowhere"), {}, {"licenses": "some"}))


def test_half_a_licence_is_refused(manager: Manager) -> None:
    ledger = manager.make_ledger(ResourceId("license:n1"), ResourceInventory(3 * MILLI))
    assert not ledger.fits((500,))
    with pytest.raises(CapacityError):
        ledger.allocate("act_1", 500)


class TestLicenseLedger(LedgerConformance):
    amounts = st.one_of(st.integers(1, 5000), st.integers(1, 5).map(lambda count: count * MILLI))

    @pytest.fixture(autouse=True)
    def manager(self, manager: Manager) -> None:
        self.manager_under_test = manager

    def make(self, inventory: ResourceInventory) -> Ledger:
        return self.manager_under_test.make_ledger(ResourceId("license:n1"), inventory)
