"""Files that are streamed: their parts are sent in pieces, unchanged and in order."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from tangram_web.dashboard.file_responses import in_pieces


@given(st.lists(st.text(max_size=5), max_size=30), st.integers(1, 20))
def test_pieces_are_the_parts_in_order_and_large_enough(parts: list[str], least: int) -> None:
    pieces = list(in_pieces(parts, least))

    assert "".join(pieces) == "".join(parts)
    assert all(len(piece) >= least for piece in pieces[:-1])


def test_a_piece_is_sent_before_the_parts_behind_it_are_made() -> None:
    made: list[str] = []

    def parts() -> Iterator[str]:
        for part in ("ab", "cd", "ef"):
            made.append(part)
            yield part

    assert next(in_pieces(parts(), 3)) == "abcd"
    assert made == ["ab", "cd"]
