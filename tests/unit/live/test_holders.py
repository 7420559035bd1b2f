"""Holders of units in the maps, from the grant to the end."""

from __future__ import annotations

from typing import Any

from domain.resources import MILLI
from tangram_web.live.frames import FrameFold
from tangram_web.live.holders import MAX_CORES, MAX_LISTED
from tests.unit.live.journal import WALL_OFFSET, Journal


def holders(journal: Journal, fold: FrameFold | None = None) -> list[dict[str, Any]]:
    fold = fold or FrameFold()
    for entry in journal.entries:
        fold.fold(entry)
    nodes = fold.frames(journal.at)["holders"].body["nodes"]
    return [holder for node in nodes for holder in node["holders"]]


def test_a_granted_action_is_named_with_its_units_since_its_grant():
    journal = Journal(at=100.0)
    journal.join("n1")
    journal.submit("a1", trajectory="r1")
    journal.at = 101.0
    journal.grant("a1", (0, 1, 3))

    (held,) = holders(journal)

    assert (held["id"], held["task"], held["trajectory"]) == ("a1", "t1", "r1")
    assert (held["kind"], held["units"], held["amount"]) == ("cpu", "0-1,3", 3)
    assert (held["shared"], held["since"]) == (False, 101.0 + WALL_OFFSET)


def test_no_holder_is_named_after_the_end_or_when_it_waits_again():
    journal = Journal()
    for name in ("a1", "a2"):
        journal.submit(name)
        journal.grant(name)
    journal.finish("a1")
    journal.requeue("a2")

    assert holders(journal) == []


def test_a_resized_action_is_named_with_what_it_has_now():
    journal = Journal()
    journal.submit("a1")
    journal.grant("a1", (0, 1))
    journal.resize("a1", (2,))

    assert [held["units"] for held in holders(journal)] == ["2"]


def test_light_actions_beyond_the_most_are_counted_only():
    journal = Journal()
    for number in range(MAX_LISTED + 3):
        journal.submit(f"a{number}")
        journal.grant(f"a{number}", (0,), milli=MILLI // 1000)
    fold = FrameFold()

    assert len(holders(journal, fold)) == MAX_LISTED
    assert fold.frames(journal.at)["holders"].body["nodes"][0]["more"] == 3


def test_a_frame_lists_the_holders_of_cores_that_have_held_most():
    journal = Journal(at=100.0)
    for number in range(MAX_CORES + 2):
        journal.submit(f"a{number}")
        journal.grant(f"a{number}", (0, 1) if number == 7 else (number,), node=f"n{number % 2}")
        journal.at += 0.001
    fold = FrameFold()

    listed = {held["id"] for held in holders(journal, fold)}

    assert len(listed) == MAX_CORES
    assert {"a0", "a1", "a7"} <= listed
    assert not {f"a{MAX_CORES}", f"a{MAX_CORES + 1}"} & listed
    nodes = fold.frames(journal.at)["holders"].body["nodes"]
    assert sum(node["more"] for node in nodes) == 2
    assert sum(node["held"]["cpu"] for node in nodes) == MAX_CORES + 3


def test_rows_are_made_at_most_once_a_second():
    journal = Journal(at=100.0)
    journal.submit("a1")
    journal.grant("a1")
    fold = FrameFold()
    holders(journal, fold)
    fold.fold(journal.finish("a1"))

    early, late = fold.frames(100.5)["holders"], fold.frames(101.0)["holders"]

    assert len(early.body["nodes"][0]["holders"]) == 1
    assert late.body["nodes"][0]["holders"] == []
    assert late.revision == early.revision + 1
