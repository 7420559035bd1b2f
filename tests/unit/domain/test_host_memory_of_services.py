"""A service that nodes cannot hold in host memory is refused by name, with its node and a cure."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from domain.errors import InvalidRequest
from domain.host_memory import eager_copies, why_no_room
from domain.inventory import ResourceInventory
from domain.services import Degree, Engine, GpuService, check_service

GIB = 2**30
LAZY = GpuService(Engine.SGLANG, (Degree(1, 60 * GIB), Degree(2, 40 * GIB)), source="some/model")
EAGER = replace(LAZY, eager=True, host_memory_bytes=16 * GIB)


def gpus(count: int, host_gib: int | None, unhealthy: tuple[int, ...] = ()) -> ResourceInventory:
    return ResourceInventory(
        count * 1000,
        (tuple(range(count)),),
        unhealthy=unhealthy,
        memory_bytes=80 * GIB,
        host_memory_bytes=None if host_gib is None else host_gib * GIB,
    )


def test_a_copy_is_as_large_as_declared_else_as_its_gpu_memory() -> None:
    assert (EAGER.host_bytes(1), EAGER.host_bytes(2)) == (16 * GIB, 16 * GIB)
    assert (LAZY.host_bytes(1), LAZY.host_bytes(2)) == (60 * GIB, 80 * GIB)
    process = replace(LAZY, engine=Engine.PROCESS, command=("serve", "{port}"))
    assert process.host_bytes(2) == 0
    assert replace(process, host_memory_bytes=5).host_bytes(2) == 5


@pytest.mark.parametrize("wrong", [-1, 2**53])
def test_a_size_that_makes_no_sense_is_refused_where_it_is_wrong(wrong: int) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_service("a", replace(LAZY, host_memory_bytes=wrong))
    assert refused.value.pointer == "/host_memory_bytes"


def test_eager_services_have_a_copy_for_every_chunk_of_every_degree() -> None:
    copies = list(eager_copies(gpus(4, 1000, unhealthy=(3,)), {"a": EAGER, "b": LAZY}))

    assert [copy.home.units for copy in copies] == [(0,), (1,), (2,), (0, 1)]
    assert {copy.host_bytes for copy in copies} == {16 * GIB}


def test_a_service_of_which_no_node_can_hold_one_copy_is_named_with_node_and_cure() -> None:
    why = why_no_room({"a"}, {"a": LAZY}, {"n1": gpus(2, 20), "n2": gpus(2, 50)})

    assert "service a takes 60.0 GiB of host memory, and node n2" in why
    assert "keeps 50.0 GiB for services: declare its actual host_memory_bytes" in why
    assert "TANGRAM_NODE_SERVICE_MEMORY_BYTES" in why


def test_copies_of_all_eager_services_must_fit_together() -> None:
    nodes = {"n1": gpus(2, 90)}  # three copies of each service
    assert why_no_room({"a"}, {"a": EAGER}, nodes) == ""

    why = why_no_room({"b"}, {"a": EAGER, "b": EAGER}, nodes)

    assert "service b is eager: its 3 copies on node n1 take 48.0 GiB" in why
    assert "those of all eager services 96.0 GiB, and the node keeps 90.0 GiB" in why


@pytest.mark.parametrize(
    "nodes",
    [{}, {"n1": gpus(2, None)}, {"n1": gpus(0, 1)}, {"n1": gpus(2, 1), "n2": gpus(2, 60)}],
    ids=["no node yet", "no node counts", "no GPUs", "one node can"],
)
def test_a_service_that_some_node_can_hold_is_accepted(nodes: dict[str, ResourceInventory]) -> None:
    assert why_no_room({"a"}, {"a": LAZY}, nodes) == ""


def test_services_that_are_unchanged_or_unused_are_not_refused() -> None:
    nodes = {"n1": gpus(2, 1)}
    assert why_no_room({"b"}, {"a": LAZY}, nodes) == ""
    assert why_no_room({"a"}, {"a": replace(LAZY, quarantined=True)}, nodes) == ""
    too_wide = replace(LAZY, degrees=(Degree(1, 90 * GIB),))
    assert why_no_room({"a"}, {"a": too_wide}, nodes) == "", (
        "its calls wait with the reason that no GPU fits"
    )
