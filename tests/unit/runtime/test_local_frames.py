"""Frames of the socket between the leader and the nodes of its machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.runtime.local_nodes.frames import (
    MOST_BYTES,
    BrokenFrame,
    Commands,
    Confirmed,
    Frame,
    FrameReader,
    Hello,
    Opened,
    Reports,
    framed,
)

_texts = st.text(max_size=10)
_frames = st.one_of(
    st.builds(Hello, _texts, _texts),
    st.builds(Reports, st.integers(0, 2**40), st.lists(st.binary(max_size=20), max_size=3)),
    st.just(Opened()),
    st.builds(Commands, _texts, _texts, st.binary(max_size=20)),
    st.builds(Confirmed, st.integers(0, 2**40)),
)


@given(st.lists(_frames, max_size=5), st.lists(st.integers(1, 30), max_size=20))
def test_frames_arrive_whole_however_the_bytes_are_cut(
    frames: list[Frame], sizes: list[int]
) -> None:
    data = b"".join(framed(frame) for frame in frames)
    reader, found = FrameReader(), []
    for size in [*sizes, len(data)]:
        found += reader.feed(data[:size])
        data = data[size:]
    assert found == frames


@pytest.mark.parametrize("data", [b"\0\0\0\x01\xc1", (MOST_BYTES + 1).to_bytes(4, "big")])
def test_bytes_that_are_no_frame_are_refused(data: bytes) -> None:
    with pytest.raises(BrokenFrame):
        FrameReader().feed(data)
