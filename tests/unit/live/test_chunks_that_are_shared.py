"""A chunk on which a service works for several counts once, from the first to the last of them."""

from __future__ import annotations

from domain.allocation import Allocation, Hosting
from domain.ids import ResourceId
from tangram_web.live.capacity import Capacity

GPUS = ResourceId("gpu:n1")


def a_chunk(*units: int, shared: bool = True) -> tuple[Allocation, ...]:
    return (Allocation(GPUS, 1000 * len(units), units, shared=shared, hosting=Hosting("reward")),)


def test_a_shared_chunk_counts_once_until_the_last_has_gone():
    capacity = Capacity()
    held = []
    for by in (1, 1, -1, -1):
        capacity.hold("n1", a_chunk(0, 1), by)
        held.append(capacity.held[GPUS])

    assert held == [2000, 2000, 2000, 0]


def test_chunks_of_their_own_count_each():
    capacity = Capacity()
    capacity.hold("n1", a_chunk(0, shared=False))
    capacity.hold("n1", a_chunk(1))

    assert capacity.held[GPUS] == 2000
