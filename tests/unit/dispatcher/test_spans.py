"""Views of arrays become bytes and views again, whatever their runs of memory are and however the stream is cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.transport.spans import ScatterTarget
from dispatcher.transport.streams import PART_BYTES, TensorPiece, parts

SHAPES = st.lists(st.integers(0, 7), min_size=0, max_size=3)
CUTS = [(), (slice(1, None),), (slice(None, None, 2), slice(1, 5)), (Ellipsis, slice(2, 3))]


def fill(target: ScatterTarget, stream: bytes, step: int) -> None:
    for start in range(0, len(stream), step):
        part = stream[start : start + step]
        for buffer in target.take(len(part)):
            buffer[:] = part[: len(buffer)]
            part = part[len(buffer) :]
        target.commit()


@given(
    SHAPES, st.sampled_from(CUTS), st.sampled_from(["<f4", "<i8", "?", "<u2"]), st.integers(1, 99)
)
def test_views_arrive_as_they_were(shape, cut, dtype, step):
    random = np.random.default_rng(1)
    array = random.integers(0, 2, shape).astype(dtype)
    cut = cut[: array.ndim] if Ellipsis not in cut or array.ndim else ()
    view, arrived = array[cut], np.zeros_like(array)
    stream = b"".join(bytes(b) for part in parts([TensorPiece("x", view)]) for b in part)

    assert stream == view.tobytes()
    fill(ScatterTarget([arrived[cut]]), stream, step)
    assert arrived[cut].tobytes() == stream


def test_long_runs_are_read_in_place_and_short_ones_packed_in_bounded_parts():
    array = np.zeros((64, 4, 8192), np.float32)
    long = [buffer for part in parts([TensorPiece("x", array[:, 1])]) for buffer in part]
    short = list(parts([TensorPiece("x", array[:, :, :7])]))

    assert all(np.shares_memory(np.frombuffer(buffer, np.uint8), array) for buffer in long)
    assert max(sum(map(len, part)) for part in short) <= PART_BYTES


def test_more_bytes_than_planned_are_refused():
    with pytest.raises(ValueError, match="more bytes"):
        ScatterTarget([np.zeros(2, np.int8)]).take(3)
