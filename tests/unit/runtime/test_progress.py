"""The position of a node passes settled entries only, and marks outlive what still needs them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.runtime.node.progress import CommandProgress


def test_position_stops_before_the_first_open_entry() -> None:
    progress = CommandProgress("0-0")
    progress.began("1-0", 2, ["a#1"])
    progress.began("2-0", 1, ["b#1"])
    progress.settled("2-0")
    progress.settled("1-0")
    assert progress.position == "0-0"
    progress.settled("1-0")
    assert progress.position == "2-0"


def test_a_mark_whose_end_is_not_reported_yet_stays() -> None:
    progress = CommandProgress("0-0")
    progress.began("1-0", 1, ["a#1"])
    progress.settled("1-0")  # it started
    assert progress.position == "1-0"
    assert not progress.has_spent()
    progress.ended("a#1")
    assert progress.spent_marks() == ["a#1"]
    assert progress.spent_marks() == []


def test_a_mark_whose_command_may_be_read_again_stays() -> None:
    progress = CommandProgress("0-0")
    progress.began("1-0", 1, ["a#1"])
    progress.began("2-0", 1, ["b#1"])
    progress.settled("2-0")
    progress.ended("b#1")
    assert not progress.has_spent()
    progress.settled("1-0")
    assert progress.spent_marks() == ["b#1"]


def test_a_leftover_with_a_command_before_the_position_is_removed_once_reported() -> None:
    progress = CommandProgress("5-0")
    progress.passed(["old#1"])
    progress.ended("old#1")
    assert progress.spent_marks() == ["old#1"]


def test_entries_are_restored_when_the_position_could_not_be_stored() -> None:
    progress = CommandProgress("0-0")
    progress.passed(["a#1"])
    progress.ended("a#1")
    progress.not_yet(progress.spent_marks())
    assert progress.spent_marks() == ["a#1"]


@given(st.lists(st.integers(0, 4), max_size=12), st.randoms(use_true_random=False))
def test_position_and_spent_marks_in_any_order_of_ends(counts, random) -> None:
    progress = CommandProgress("0-0")
    for number, count in enumerate(counts, 1):
        progress.began(f"{number}-0", count, [f"m{number}"])
    left = dict(enumerate(counts, 1))
    steps = [("settled", number) for number, count in left.items() for _ in range(count)]
    steps += [("ended", number) for number in left]
    random.shuffle(steps)
    ended: set[int] = set()
    spent: set[str] = set()
    for what, number in steps:
        if what == "settled":
            progress.settled(f"{number}-0")
            left[number] -= 1
        else:
            progress.ended(f"m{number}")
            ended.add(number)
        spent |= set(progress.spent_marks())
        done = next((n - 1 for n in range(1, len(counts) + 1) if left[n]), len(counts))
        assert progress.position == f"{done}-0"
        assert spent == {f"m{n}" for n in range(1, done + 1) if n in ended}
    assert len(spent) == len(counts)
