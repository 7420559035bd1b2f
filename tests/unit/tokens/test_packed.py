"""Packed segments are read back equal, and no other document is taken for one."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.tokens.packed import pack, packed_segment, segment_document, unpack, unpacked_segment
from rollout.tokens.segments import TokenSegment


@st.composite
def segments(draw: st.DrawFn) -> TokenSegment:
    """Draw a segment of up to forty tokens."""
    count = draw(st.integers(0, 40))
    ids = st.integers(0, 2**31 - 1)
    listed = draw(st.lists(st.tuples(ids, st.booleans()), min_size=count, max_size=count))
    mask = np.array([sampled for _, sampled in listed], np.uint8)
    version = draw(st.integers(0, 5))
    logprobs = np.linspace(-9, 0, count, dtype=np.float32) if draw(st.booleans()) else None
    return TokenSegment(
        np.array(draw(st.lists(ids, max_size=9)), np.int32),
        np.array([each for each, _ in listed], np.int32),
        mask,
        logprobs,
        np.where(mask == 1, version, -1).astype(np.int32),
    )


@given(st.lists(segments(), max_size=3))
def test_packed_segments_are_read_back_equal(drawn):
    (found,) = unpack(pack([{"id": "rol_1", "reward": 0.5, "segments": drawn}]))

    assert (found["id"], found["reward"]) == ("rol_1", 0.5)
    documents = [segment_document(each) for each in found["segments"]]
    assert documents == [segment_document(each) for each in drawn]


@given(segments())
def test_the_json_of_a_segment_has_lists_of_one_length(segment):
    document = json.loads(json.dumps(segment_document(segment), allow_nan=False))

    lists = [document[name] for name in ("response_ids", "loss_mask", "weights_version")]
    lists += [document["logprobs"]] if document["logprobs"] is not None else []
    assert {len(each) for each in lists} == {len(segment.response_ids)}
    assert set(document["loss_mask"]) <= {0, 1}


def test_any_library_reads_the_packed_form_as_described():
    """As a client does it, without this module."""
    segment = TokenSegment(
        np.array([7, 8], np.int32),
        np.array([1, 2, 3], np.int32),
        np.array([1, 0, 1], np.uint8),
        np.array([-0.5, 0.0, -1.0], np.float32),
        np.array([4, -1, 5], np.int32),
    )

    (read,) = msgspec.msgpack.decode(pack([{"segments": [segment]}]))["rollouts"][0]["segments"]

    assert np.frombuffer(read["response_ids"], "<i4").tolist() == [1, 2, 3]
    assert np.frombuffer(read["logprobs"], "<f4").tolist() == [-0.5, 0.0, -1.0]
    mask = np.unpackbits(np.frombuffer(read["loss_mask"], "u1"), bitorder="little")
    assert mask[: read["tokens"]].tolist() == [1, 0, 1]
    assert read["weights_version"] == [[4, 1], [-1, 1], [5, 1]]


def test_a_token_costs_little_more_than_eight_bytes():
    count = 10_000
    ids, mask = np.arange(count, dtype=np.int32), np.ones(count, np.uint8)
    values = np.full(count, -0.123456, np.float32)

    packed = pack([{"segments": [TokenSegment(ids, ids, mask, values, ids * 0)]}])

    assert len(packed) < count * (4 + 8 + 1 / 8) + 200


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": 99},
        {"response_ids": b"abc"},
        {"loss_mask": b""},
        {"weights_version": [[1, 1]]},
        {"logprobs": b"\0" * 8},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_damaged_segment_is_refused(change):
    ids = np.array([1, 2, 3], np.int32)
    packed = packed_segment(TokenSegment(ids, ids, np.ones(3, np.uint8), None, ids))

    with pytest.raises(ValueError, match=r"tokens|size|length"):
        unpacked_segment({**packed, **change})


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", b"\x90", b"\x81\xa8rollouts\x91\x80"])
def test_another_document_is_refused(data):
    with pytest.raises(ValueError, match="no packed rollouts"):
        unpack(data)
