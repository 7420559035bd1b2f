"""Entries that one reader has decoded are taken by a second one, if none is missing between them."""

from __future__ import annotations

import pytest

from domain.codec import JournalEntry
from domain.events import TimeAdvanced
from scheduler.runtime.recent_entries import RecentEntries


def page(*numbers: int) -> list[tuple[str, JournalEntry]]:
    """Return entries of one fact each; the id is the number."""
    return [
        (f"{number}-0", JournalEntry(number, 1, 0.0, 0.0, "0-0", [TimeAdvanced(at=0.0)], []))
        for number in numbers
    ]


def taken(recent: RecentEntries, position: str) -> list[int]:
    return [entry.seq for _, entry in recent.take(position)]


def two_pages() -> RecentEntries:
    recent = RecentEntries()
    recent.add("2-0", page(3, 5))
    recent.add("5-0", page(6, 7))
    return recent


@pytest.mark.parametrize(
    ("position", "numbers"),
    [("2-0", [3, 5, 6, 7]), ("3-0", [5, 6, 7]), ("4-0", [5, 6, 7]), ("5-0", [6, 7]), ("7-0", [])],
)
def test_what_follows_a_position_is_taken(position: str, numbers: list[int]):
    assert taken(two_pages(), position) == numbers


def test_nothing_is_taken_when_entries_before_are_missing():
    recent = two_pages()

    assert taken(recent, "1-0") == []
    assert taken(recent, "2-0") == [3, 5, 6, 7]


def test_entries_are_taken_once():
    recent = two_pages()

    assert taken(recent, "2-0") == [3, 5, 6, 7]
    assert taken(recent, "2-0") == []


def test_a_reader_that_begins_again_replaces_what_it_had_read():
    recent = two_pages()
    recent.add("0-0", page(1, 2))

    assert taken(recent, "0-0") == [1, 2]


def test_the_oldest_pages_go_when_there_are_too_many_facts():
    recent = RecentEntries(most_facts=3)
    recent.add("0-0", page(1, 2))
    recent.add("2-0", page(3, 4))

    assert taken(recent, "0-0") == []
    assert taken(recent, "2-0") == [3, 4]
