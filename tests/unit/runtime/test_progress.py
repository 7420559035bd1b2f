"""The position of a node passes an entry only when all its commands are settled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.runtime.node.progress import Progress


def test_position_stops_before_the_first_open_entry():
    progress = Progress("0-0")
    progress.began("1-0", 2, ["a#1"])
    progress.began("2-0", 1, ["b#1"])
    progress.settled("2-0")
    progress.settled("1-0")
    assert (progress.position, progress.passed_marks()) == ("0-0", [])
    progress.settled("1-0")
    assert (progress.position, progress.passed_marks()) == ("2-0", ["a#1", "b#1"])
    assert progress.passed_marks() == []


@given(st.lists(st.integers(0, 4), max_size=12), st.randoms(use_true_random=False))
def test_position_is_the_longest_settled_beginning_in_any_order(counts, random):
    progress = Progress("0-0")
    for number, count in enumerate(counts, 1):
        progress.began(f"{number}-0", count, [f"m{number}"])
    left = dict(enumerate(counts, 1))
    order = [number for number, count in left.items() for _ in range(count)]
    random.shuffle(order)
    passed = []
    for number in [0, *order]:  # 0: before anything is settled
        if number:
            progress.settled(f"{number}-0")
            left[number] -= 1
        passed += progress.passed_marks()
        done = next((n - 1 for n in range(1, len(counts) + 1) if left[n]), len(counts))
        assert progress.position == f"{done}-0"
        assert passed == [f"m{n}" for n in range(1, done + 1)]
