"""A plan moves each missing byte once, from the right replica, to the right place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dispatcher.layout import Layout, Mesh, Owned, Ragged, Shard, TensorSpec
from dispatcher.local import collect, execute, spread
from dispatcher.plan import PlanError, plan_transfer
from tests.unit.dispatcher.cases import (
    entries_held,
    least_busiest,
    numbered,
    replicated_transfers,
    transfers,
    wanted_entries,
)

hosts_of_ranks = st.dictionaries(st.integers(0, 11), st.sampled_from(["a", "b", "c"]))


@given(transfers(), hosts_of_ranks)
def test_target_ranks_get_exactly_their_parts(layouts, hosts):
    source, target = layouts
    whole = numbered(source)

    results = execute(plan_transfer(source, target, hosts), spread(source, whole))

    expected = spread(target, whole)
    assert results.keys() == expected.keys()
    for rank, arrays in expected.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(results[rank][name], array)


@given(transfers(), hosts_of_ranks)
def test_each_missing_byte_crosses_once_and_no_other(layouts, hosts):
    source, target = layouts
    plan = plan_transfer(source, target, hosts)
    missing = {
        rank: sum(target.tensors[name].dtype.itemsize for name, _ in entries)
        for rank, entries in wanted_entries(source, target).items()
    }

    assert plan.received == {rank: missing.get(rank, 0) for rank in plan.ranks}
    assert plan.bytes_crossing == plan.bytes_bound == sum(missing.values())
    assert sum(plan.pair_bytes().values()) == sum(plan.sent.values()) == plan.bytes_crossing


@given(transfers(), hosts_of_ranks)
def test_both_sides_of_a_pair_list_the_same_segments(layouts, hosts):
    plan = plan_transfer(layouts[0], layouts[1], hosts)
    parts = {rank: plan.for_rank(rank) for rank in plan.ranks}

    for (sender, receiver), nbytes in plan.pair_bytes().items():
        sent, received = parts[sender].sends[receiver], parts[receiver].receives[sender]
        assert sent == received
        assert parts[sender].send_bytes(receiver) == nbytes > 0
        assert all(segment.nbytes for segment in sent)
    assert set(plan.pair_bytes()) == {
        (rank, peer) for rank, part in parts.items() for peer in part.sends
    }


@given(transfers(), hosts_of_ranks)
def test_a_replica_on_the_own_host_sends(layouts, hosts):
    source, target = layouts
    held, missing = entries_held(source), wanted_entries(source, target)
    plan = plan_transfer(source, target, hosts)

    def host(rank):
        return hosts.get(rank, f"own {rank}")

    near = sum(
        target.tensors[name].dtype.itemsize
        for rank, entries in missing.items()
        for name, index in entries
        if any((name, index) in held[other] and host(other) == host(rank) for other in held)
    )
    assert near == sum(
        nbytes for (sender, to), nbytes in plan.pair_bytes().items() if host(sender) == host(to)
    )


@pytest.mark.cpu_seconds(2)
@given(st.one_of(transfers(most_ranks=4, numbers=6), replicated_transfers()), hosts_of_ranks)
def test_busiest_endpoint_is_that_of_the_best_choice(layouts, hosts):
    best = least_busiest(layouts[0], layouts[1], hosts)
    assume(best is not None)

    assert plan_transfer(layouts[0], layouts[1], hosts).busiest[1] <= 1.1 * best


def _replicated(copies, samples=64, ranks=None):
    lengths = np.arange(samples) * 7 % 50
    mesh = Mesh(dp=2, tp=copies, ranks=ranks)
    owners = Owned(np.arange(samples) % 2)
    return Layout(mesh, [TensorSpec("tokens", "int32", Ragged(lengths), dp=owners)])


def test_of_four_copies_one_quarter_of_the_bytes_crosses_and_all_copies_share_the_work():
    source, target = _replicated(4), _replicated(1, ranks=(20, 21))

    plan = plan_transfer(source, target)

    assert 4 * plan.bytes_crossing == plan.bytes_every_copy
    for copies in (range(4), range(4, 8)):
        sent = [plan.sent[rank] for rank in copies]
        assert max(sent) - min(sent) <= 4


def test_what_is_in_place_is_returned_and_not_copied():
    layout = _replicated(2)
    arrays = spread(layout, numbered(layout))

    plan = plan_transfer(layout, layout)

    assert plan.bytes_crossing == 0
    assert plan.for_rank(3).unchanged == ("tokens",)
    assert plan.for_rank(3).copies == ()
    assert execute(plan, arrays)[3]["tokens"] is arrays[3]["tokens"]


def test_a_replica_sends_instead_of_a_lost_rank():
    source, target = _replicated(2), _replicated(1, ranks=(20, 21))
    arrays = spread(source, numbered(source))

    plan = plan_transfer(source, target, lost=[1])
    del arrays[1]

    assert plan.sent[1] == 0
    np.testing.assert_array_equal(
        collect(target, execute(plan, arrays))["tokens"], numbered(source)["tokens"]
    )


@given(replicated_transfers(), st.sets(st.integers(0, 9)))
def test_what_survives_on_a_replica_arrives_and_what_does_not_is_named(layouts, lost):
    source, target = layouts
    lost -= set(target.mesh.ranks)
    whole, held = numbered(source), entries_held(source)
    alive = set().union(*(entries for rank, entries in held.items() if rank not in lost))
    wanted = set().union(*entries_held(target).values())
    arrays = {rank: each for rank, each in spread(source, whole).items() if rank not in lost}

    if wanted <= alive:
        results = execute(plan_transfer(source, target, lost=lost), arrays)
        for name, array in collect(target, results).items():
            np.testing.assert_array_equal(array, whole[name])
        return
    with pytest.raises(PlanError) as raised:
        plan_transfer(source, target, lost=lost)
    assert set(raised.value.ranks) <= lost
    assert raised.value.tensor in {name for name, _ in wanted - alive}


def test_a_lost_rank_without_replica_is_named():
    with pytest.raises(
        PlanError, match="tensor tokens: part of it was on rank 2, 3 alone"
    ) as error:
        plan_transfer(_replicated(2), _replicated(1, ranks=(20, 21)), lost=[3, 2])

    assert error.value.ranks == (2, 3)


def test_a_lost_rank_cannot_be_a_target():
    with pytest.raises(PlanError, match="rank 21 is lost and wanted by the target"):
        plan_transfer(_replicated(2), _replicated(1, ranks=(20, 21)), lost=[21])


def test_a_sample_without_owner_in_the_source_is_named():
    source = Layout(Mesh(), [TensorSpec("reward", "float32", (3,), dp=Owned([0, -1, 0]))])
    target = Layout(Mesh(ranks=(1,)), [TensorSpec("reward", "float32", (3,))])

    with pytest.raises(PlanError, match="tensor reward: the target wants row 1 and no rank"):
        plan_transfer(source, target)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (TensorSpec("tokens", "int64", Ragged([3, 4])), "is int32 in the source and int64 in the"),
        (
            TensorSpec("tokens", "int32", Ragged([3, 5])),
            "sample 1 has 4 tokens in the source and 5",
        ),
        (TensorSpec("tokens", "int32", Ragged([3])), "has 2 samples in the source and 1"),
        (TensorSpec("tokens", "int32", (7,)), r"is Ragged\(2 samples, 7 tokens\) in the source"),
        (TensorSpec("mask", "int8", (7,)), "tensor mask: the target wants it and the source has"),
    ],
    ids=["dtype", "lengths", "samples", "shape", "name"],
)
def test_layouts_that_disagree_name_the_tensor_and_the_difference(wanted, message):
    source = Layout(Mesh(), [TensorSpec("tokens", "int32", Ragged([3, 4]))])

    with pytest.raises(PlanError, match=message):
        plan_transfer(source, Layout(Mesh(), [wanted]))


@given(transfers())
def test_plans_of_equal_layouts_are_equal(layouts):
    source, target = (Layout.from_description(layout.description()) for layout in layouts)

    assert plan_transfer(source, target).digest == plan_transfer(layouts[0], layouts[1]).digest


def test_tensors_sharded_by_columns_are_resharded():
    whole = {"logits": np.arange(60, dtype=np.float32).reshape(6, 10)}
    source = Layout(Mesh(tp=4), [TensorSpec("logits", "float32", (6, 10), tp=Shard(1))])
    target = Layout(
        Mesh(dp=2, tp=2), [TensorSpec("logits", "float32", (6, 10), dp=Shard(0), tp=Shard(1))]
    )

    results = execute(plan_transfer(source, target), spread(source, whole))

    np.testing.assert_array_equal(results[2]["logits"], whole["logits"][3:, :5])


@pytest.mark.cpu_seconds(2)
def test_plan_of_a_thousand_ranks_and_32768_samples_takes_less_than_a_second():
    lengths = np.arange(32_768) * 7919 % 5000
    makers, owners = np.arange(32_768) * 31 % 256, np.arange(32_768) * 17 % 128

    def layout(mesh, owned, **more):
        names = ("tokens", "log_probs", "returns")
        specs = [TensorSpec(name, "float32", Ragged(lengths), dp=owned, **more) for name in names]
        return Layout(mesh, specs)

    source = layout(Mesh(dp=256, tp=4), Owned(makers))
    target = layout(Mesh(dp=128, cp=2, tp=4, ranks=range(512, 1536)), Owned(owners), cp=Shard(1))

    plan = plan_transfer(source, target, {rank: f"host {rank // 8}" for rank in range(1536)})

    assert plan.bytes_crossing == plan.bytes_bound > 0
    assert plan.for_rank(600).receives


def test_layouts_without_tensors_have_an_empty_plan():
    plan = plan_transfer(Layout(Mesh(dp=2), []), Layout(Mesh(ranks=(5,)), []))

    assert (plan.bytes_crossing, plan.pair_bytes(), plan.busiest) == (0, {}, (0, 0))
    assert plan.for_rank(5).receives == {}


def test_ranks_may_do_without_any_sample():
    lengths = [0, 0, 4]
    source = Layout(
        Mesh(dp=3), [TensorSpec("tokens", "int32", Ragged(lengths), dp=Owned([2, 2, 2]))]
    )
    target = Layout(
        Mesh(dp=4, ranks=(3, 2, 1, 0)),
        [TensorSpec("tokens", "int32", Ragged(lengths), dp=Shard(0))],
    )

    results = execute(plan_transfer(source, target), spread(source, numbered(source)))

    assert {rank: arrays["tokens"].tolist() for rank, arrays in results.items()} == {
        3: [], 2: [], 1: [0, 1, 2, 3], 0: [],
    }  # fmt: skip
