"""Figures of GPUs exist where a card was measured, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from tangram_web.live.capacity import as_ranges, numbers_in
from tangram_web.live.gpu_use import GpuState, card_rows, chunk_rows, gpu_uses, node_rows, use_body
from tangram_web.metrics.reading import GpuReading

GIB = 2**30


def node(name: str, groups: str = "0-3", *, state: str = "ready", declared: bool = False) -> Any:
    gpus = {"groups": [groups], "oversubscribed": declared}
    return {"name": name, "pool": "train", "state": state, "gpus": gpus}


def read(gpu: int, busy: float | None = 0.5, used: int = GIB, at: float = 100.0) -> GpuReading:
    return GpuReading(
        node="n1", gpu=gpu, busy_ratio=busy, used_bytes=used, total_bytes=80 * GIB, at=at
    )


def held(units: str, kind: str = "gpu") -> Any:
    return {"name": "n1", "holders": [{"kind": kind, "units": units}]}


def test_a_chunk_has_the_mean_utilisation_and_all_memory_of_its_cards() -> None:
    readings = [read(0, 0.2, GIB, 100.0), read(1, 0.6, 3 * GIB, 99.0), read(2), read(3)]

    (row,) = chunk_rows(gpu_uses([node("n1")], [held("0-1"), held("2-3", "cpu")], readings))

    assert (row.gpus, row.chunk, row.count, row.says) == ("0-1", "0-1", 2, "")
    assert row.busy_ratio == pytest.approx(0.4)
    assert (row.used_bytes, row.total_bytes, row.measured_at) == (4 * GIB, 160 * GIB, 99.0)


def test_gpus_without_a_card_have_no_figures_and_one_row_says_so() -> None:
    uses = gpu_uses([node("n1"), node("n2", "0-7", declared=True)], [], [read(n) for n in range(4)])

    *cards, simulated = card_rows(uses)

    assert [row.gpus for row in cards] == ["0", "1", "2", "3"]
    assert (simulated.node, simulated.gpus, simulated.count) == ("n2", "0-7", 8)
    assert simulated.says == "no card: simulated"
    assert (simulated.busy_ratio, simulated.used_bytes, simulated.measured_at) == (None,) * 3


@pytest.mark.parametrize(
    ("state", "readings"), [("ready", []), ("lost", [read(0)])], ids=["silent", "lost"]
)
def test_a_node_that_measured_nothing_lately_is_not_idle(
    state: str, readings: list[GpuReading]
) -> None:
    (use,) = gpu_uses([node("n1", "0", state=state)], [held("0")], readings)

    assert (use.state, use.busy_ratio, use.chunk) == (GpuState.UNMEASURED, None, "0")
    assert use_body([use])["cards"][0]["says"] == "no measurement"


def test_a_sum_is_unknown_where_one_card_is_unknown() -> None:
    uses = gpu_uses([node("n1", "0-1")], [], [read(0), read(1, None)])

    row = node_rows(uses)["n1"]

    assert (row.busy_ratio, row.used_bytes, row.says) == (None, 2 * GIB, "")
    partly = node_rows(gpu_uses([node("n1", "0-1")], [], [read(0)]))["n1"]
    assert (partly.used_bytes, partly.says) == (None, "no measurement")


@pytest.mark.parametrize("ranges", ["", "0", "0-3,8", "2,5-7"])
def test_ranges_are_read_as_they_are_written(ranges: str) -> None:
    assert as_ranges(tuple(numbers_in(ranges))) == ranges
