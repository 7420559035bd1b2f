"""Placements name the node and the units of an action, also of cluster-wide resources."""

from __future__ import annotations

from domain.allocation import Allocation, Placement
from domain.ids import ResourceId
from domain.resources import MILLI
from scheduler.runtime.action_views import placement
from tangram_web.records.action_rows import placement_of

SEAT = Allocation(ResourceId("llm:policy"), MILLI, (3,), shared=True)
CORE = Allocation(ResourceId("cpu:n1"), MILLI, (0,))
SLOT = Allocation(ResourceId("stage:run"), MILLI)


def test_a_lease_without_a_node_names_its_backend():
    found = placement(None, (SLOT, SEAT))

    assert found == Placement(None, units={"llm:policy": (3,)})
    assert placement_of((SLOT, SEAT), None)["units"] == {"llm:policy": (3,)}


def test_an_action_with_cores_and_a_seat_names_both():
    assert placement("n1", (CORE, SEAT)) == Placement("n1", cpus=(0,), units={"llm:policy": (3,)})
    assert placement_of((CORE, SEAT), "n1")["cpus"] == (0,)


def test_a_lease_of_counted_units_has_no_placement():
    assert placement(None, (SLOT,)) is None
    assert "units" not in placement_of((SLOT,), None)
