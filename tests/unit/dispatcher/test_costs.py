"""The strategy is that of the least predicted seconds."""

from __future__ import annotations

import pytest

from dispatcher.cost import Links, choose, context_bytes, gather_scatter_bytes, predict
from dispatcher.layout import Layout, LayoutError, Mesh, Shard, TensorSpec
from dispatcher.plan import plan_transfer

#: 200 Mbit/s, as between hosts of a test.
SLOW = Links(bandwidth=25e6)


def _transposed(ranks, columns):
    """From rows to columns: each rank has something for each other one."""
    shape, mesh = (ranks, columns), Mesh(dp=ranks)
    source = Layout(mesh, [TensorSpec("log_probs", "float32", shape, dp=Shard(0))])
    return plan_transfer(
        source, Layout(mesh, [TensorSpec("log_probs", "float32", shape, dp=Shard(1))])
    )


def test_nothing_is_chosen_where_no_byte_crosses():
    layout = Layout(Mesh(dp=2), [TensorSpec("reward", "float32", (4,), dp=Shard(0))])

    assert choose(plan_transfer(layout, layout), Links()) == "nothing"


def test_pairs_are_chosen_where_each_rank_has_one_partner():
    source = Layout(Mesh(dp=64), [TensorSpec("t", "float32", (64_000,), dp=Shard(0))])
    target = Layout(
        Mesh(dp=64, ranks=range(64, 128)), [TensorSpec("t", "float32", (64_000,), dp=Shard(0))]
    )

    assert choose(plan_transfer(source, target), Links()) == "pairs"


def test_all_to_all_is_chosen_where_each_rank_has_something_for_each():
    assert choose(_transposed(64, 6_400), Links()) == "all-to-all"


def test_gather_scatter_costs_twice_each_host_times_the_bytes():
    plan = _transposed(8, 8 * 2**20)
    seconds = predict(plan, SLOW)
    part = 2**22

    assert gather_scatter_bytes(plan) == (8 * 7 * part - 7 * part, 8 * 7 * part - 7 * part)
    assert seconds["pairs"] == pytest.approx(7 * part / 25e6, rel=0.01)
    assert seconds["gather-scatter"] / seconds["pairs"] == pytest.approx(14, rel=0.01)


def test_ranks_of_a_host_share_its_link():
    source = Layout(Mesh(dp=4), [TensorSpec("t", "int8", (4_000_000,), dp=Shard(0))])
    target = Layout(
        Mesh(dp=4, ranks=(4, 5, 6, 7)), [TensorSpec("t", "int8", (4_000_000,), dp=Shard(0))]
    )
    hosts = {rank: "ab"[rank // 4] for rank in range(8)}

    apart = predict(plan_transfer(source, target), Links(bandwidth=1e6))["pairs"]
    shared = predict(plan_transfer(source, target, hosts), Links(bandwidth=1e6))["pairs"]

    assert apart == pytest.approx(1, rel=0.01)
    assert shared == pytest.approx(4, rel=0.01)


def test_batches_of_contexts_are_those_of_the_paper():
    assert [context_bytes(1024 * 2**step, 1000) / 2**20 for step in range(6)] == [
        15_625, 31_250, 62_500, 125_000, 250_000, 500_000,
    ]  # fmt: skip


def test_wrong_links_are_named():
    with pytest.raises(LayoutError, match="bandwidth: is 0; give bytes per second above 0"):
        Links(bandwidth=0)
