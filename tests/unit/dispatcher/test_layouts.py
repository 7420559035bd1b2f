"""A layout says what each rank holds, and survives its description."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given

from dispatcher.layout import Layout, LayoutError, Mesh, Owned, Ragged, Shard, TensorSpec
from dispatcher.local import collect, spread
from tests.unit.dispatcher.cases import numbered, transfers

LENGTHS = [7, 0, 5, 1, 3]


@pytest.fixture
def layout():
    """Two data-parallel ranks with two context-parallel shares each; sample 4 is nowhere."""
    owners = Owned([0, 1, 1, 0, -1])
    return Layout(
        Mesh(dp=2, cp=2, ranks=(10, 11, 12, 13)),
        [
            TensorSpec("tokens", "int32", Ragged(LENGTHS), dp=owners, cp=Shard(1)),
            TensorSpec("log_probs", "float32", Ragged(LENGTHS), dp=owners, cp=Shard(1)),
            TensorSpec("top", "float32", Ragged(LENGTHS, (4,)), dp=owners, cp=Shard(2)),
            TensorSpec("reward", "float64", (5,), dp=Shard(0, (4, 1))),
        ],
    )


@pytest.mark.parametrize(
    ("rank", "samples", "lengths", "shape"),
    [(10, [0, 3], [4, 1], (5,)), (11, [0, 3], [3, 0], (3,)), (12, [1, 2], [0, 3], (3,))],
)
def test_samples_and_their_tokens_are_divided(layout, rank, samples, lengths, shape):
    assert layout.samples("tokens", rank).tolist() == samples
    assert layout.lengths("tokens", rank).tolist() == lengths
    assert layout.local_shape("tokens", rank) == shape


def test_dimensions_of_a_token_and_uneven_shards_are_divided(layout):
    assert layout.local_shape("top", 13) == (5, 2)
    assert [layout.local_shape("reward", rank) for rank in (11, 12)] == [(4,), (1,)]


def test_chunks_are_those_of_dtensor():
    layout = Layout(Mesh(dp=4), [TensorSpec("rows", "int8", (5,), dp=Shard(0))])

    assert [layout.local_shape("rows", rank) for rank in range(4)] == [(2,), (2,), (1,), (0,)]


@given(transfers())
def test_description_gives_the_same_layout_back(layouts):
    source, _ = layouts
    text = json.dumps(source.description())

    again = Layout.from_description(json.loads(text))

    assert again == source
    assert json.dumps(again.description()) == text
    assert [again.nbytes(rank) for rank in again.mesh.ranks] == [
        sum(array.nbytes for array in source.empty(rank).values()) for rank in source.mesh.ranks
    ]


@given(transfers())
def test_a_source_holds_everything(layouts):
    source, _ = layouts
    whole = numbered(source)

    for name, array in collect(source, spread(source, whole)).items():
        np.testing.assert_array_equal(array, whole[name])


def test_lists_appear_once_in_a_description(layout):
    first, second = layout.description()["tensors"][0], layout.description()["tensors"][3]

    assert (first["name"], second["name"]) == ("log_probs", "top")
    assert layout.description()["tensors"][2] == {
        "name": "tokens",
        "dtype": "int32",
        "shape": {"same_as": "log_probs"},
        "placements": {"same_as": "log_probs"},
    }


def test_the_order_of_tensors_is_no_difference(layout):
    backward = Layout(layout.mesh, reversed(layout.tensors.values()))

    assert backward.digest == layout.digest


def _with(**changes):
    tensor = {"name": "a", "dtype": "int8", "shape": [3], **changes}
    return {"mesh": {"dp": 2}, "tensors": [tensor]}


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ([], "layout: give an object"),
        ({"mesh": {"dq": 2}, "tensors": []}, "mesh: has unknown dq; known are cp, dp, pp"),
        ({"mesh": {"dp": "2"}, "tensors": []}, "mesh.dp: is '2'; give an integer from 1"),
        ({"mesh": {"dp": 10**9}, "tensors": []}, "mesh: has 1000000000 ranks; at most 65536"),
        ({"mesh": {"dp": 2, "ranks": [1, 1]}, "tensors": []}, "mesh.ranks: has 1 twice"),
        ({"mesh": {"dp": 2, "ranks": [1]}, "tensors": []}, "mesh.ranks: has 1 ranks; the axes"),
        ({"mesh": {}}, "tensors: give a list of tensors"),
        ({"tensors": [{"name": "a"}]}, r"tensors\[0\].dtype: is missing"),
        (_with(name=""), r"tensors\[0\].name: is ''; give each tensor a name"),
        (_with(dtype="bfloat16"), r"a.dtype: 'bfloat16' is no numeric dtype .* view bfloat16 as"),
        (_with(dtype="O"), "a.dtype: 'O' is no numeric dtype"),
        (_with(shape=3), r"tensors\[0\].shape: give a list of extents"),
        (_with(shape=[2**40, 2**40]), "a.shape: has more entries than can be counted"),
        (_with(shape={"ragged": [3, -1]}), r"shape.ragged\[1\]: is -1; give integers from 0"),
        (_with(shape={"ragged": [3, 0.5]}), "shape.ragged: give a flat list of integers"),
        (_with(shape={"same_as": "b"}), "shape: same_as 'b'; name one earlier tensor"),
        (_with(placements={"dp": {"owned": [0, 1]}}), "a.dp: owns 2 samples; the tensor has 3"),
        (_with(placements={"dp": {"owned": [0, 1, 2]}}), "a.dp: gives a sample to coordinate 2"),
        (_with(placements={"dp": {"shard": 1}}), "a.dp: shards dimension 1; the tensor has 1"),
        (_with(placements={"dp": {"shard": 0, "sizes": [1, 1]}}), "a.dp: has sizes that sum to 2"),
        (_with(placements={"dp": {"shard": 0, "sizes": [3]}}), "a.dp: has 1 sizes; the axis"),
        (_with(placements={"dp": "split"}), r"tensors\[0\].placements.dp: give an object"),
        (_with(placements={"dp": {"owned": [0], "shard": 0}}), "placements.dp: give 'replicate',"),
        (_with(placements={"ep": {"shard": 0}}), r"placements: has unknown ep; known are cp, dp"),
    ],
)
def test_a_wrong_description_names_the_field_and_the_cure(description, message):
    with pytest.raises(LayoutError, match=message):
        Layout.from_description(description)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": None}, "tokens: rank 10 has no array of it"),
        ({"tokens": np.zeros(5, np.int64)}, "tokens: rank 10 has int64, the layout int32"),
        ({"tokens": np.zeros(6, np.int32)}, r"tokens: rank 10 has shape \(6,\), the layout \(5,\)"),
        ({"tokens": np.zeros(10, np.int32)[::2]}, "tokens: rank 10 has a strided array"),
        ({"tokens": np.zeros(5, ">i4")}, "tokens: rank 10 has >i4, the layout int32"),
    ],
    ids=["missing", "dtype", "shape", "strides", "byte order"],
)
def test_arrays_that_do_not_fit_are_named(layout, change, message):
    arrays = {
        name: array for name, array in {**layout.empty(10), **change}.items() if array is not None
    }

    with pytest.raises(LayoutError, match=message):
        layout.check(10, arrays)
