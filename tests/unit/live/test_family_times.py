"""Durations of commands by family: a window beside an earlier history that a restart keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pytest

from domain.action import Kind, Outcome, Timing
from domain.decisions import Finish
from domain.ids import ActionId
from tangram_web.live.family_times import (
    HALF_LIFE_SECONDS,
    MAX_FAMILIES,
    MAX_LISTED,
    CommandFamilies,
    StoredFamilies,
    bin_of_one,
    median_of,
)
from tangram_web.live.frames import FrameFold
from tangram_web.live.rollups.histogram import bin_of
from tests.unit.live.journal import Journal

AT = 1_000_000.0
WINDOW = 100.0


def end(seconds: float, task: str = "t1", **changes: Any) -> Finish:
    timing = Timing(9.0, 0.0, seconds, 9.0 + seconds)
    given: dict[str, Any] = {"outcome": Outcome.COMPLETED, "kind": Kind.EXEC, "timing": timing}
    return Finish(ActionId("a"), project="lab", task=task, **given | changes)


def times(*ends: tuple[float, float], stored: StoredFamilies | None = None) -> CommandFamilies:
    """Commands that took so many seconds, at so many seconds after `AT`."""
    made = CommandFamilies(WINDOW, stored)
    for at, seconds in ends:
        made.finish(end(seconds), "test", AT + at)
    return made


def every(second: Iterable[int], seconds: float) -> list[tuple[float, float]]:
    return [(float(at), seconds) for at in second]


@pytest.mark.parametrize(
    "seconds", [-1.0, 0.0, 1e-5, 1e-4, 0.04, 1.0, 99.9, 1e5, 1e9, float("nan")]
)
def test_a_duration_has_the_bin_that_histograms_give_it(seconds: float) -> None:
    assert bin_of_one(seconds) == int(bin_of(np.array([seconds]))[0])


def test_the_median_is_that_of_the_weights() -> None:
    assert median_of({}) is None
    few, many = bin_of_one(1.0), bin_of_one(10.0)
    assert median_of({few: 3.0, many: 2.0}) == pytest.approx(1.0, rel=0.09)
    assert median_of({few: 2.0, many: 3.0}) == pytest.approx(10.0, rel=0.09)


def test_a_window_is_compared_with_what_ended_before_it() -> None:
    slow = times(*every(range(50), 1.0), *every(range(150, 170), 6.0))

    (row,) = slow.rows(AT + 170)
    assert (row["project"], row["task"], row["family"]) == ("lab", "t1", "test")
    assert (row["actions"], row["earlier_actions"]) == (20, 50)
    assert row["median_seconds"] == pytest.approx(6.0, rel=0.09)
    assert row["earlier_median_seconds"] == pytest.approx(1.0, rel=0.09)
    assert row["earlier_seconds"] == pytest.approx(70.0)

    assert slow.rows(AT + 400) == []  # no command ended lately


def test_without_earlier_history_or_when_faster_a_family_is_not_listed() -> None:
    assert times(*every(range(50), 1.0)).rows(AT + 50) == []
    assert times(*every(range(50), 6.0), *every(range(150, 170), 1.0)).rows(AT + 170) == []


def test_commands_alone_are_counted_and_only_those_that_ran_to_their_end_or_limit() -> None:
    counted = times(*every(range(50), 1.0))
    for changes in ({"kind": Kind.CALL}, {"outcome": Outcome.CANCELLED}, {"task": ""}):
        counted.finish(end(6.0, **changes), "test", AT + 150)
    assert counted.rows(AT + 160) == []

    counted.finish(end(6.0, outcome=Outcome.TIMEOUT), "test", AT + 166)
    assert [row["actions"] for row in counted.rows(AT + 170)] == [1]


def test_a_family_that_stays_slow_becomes_usual() -> None:
    slow = times(*every(range(50), 1.0))
    for at in range(150, 800):
        slow.finish(end(6.0), "test", AT + at)
        slow.rows(AT + at)

    assert slow.rows(AT + 810) == []


def test_earlier_history_fades() -> None:
    faded = times(*every(range(64), 1.0))
    faded.rows(AT + 200)
    for half in range(1, 4):
        at = AT + 200 + half * HALF_LIFE_SECONDS
        faded.finish(end(6.0), "test", at)
        (row,) = faded.rows(at)
    assert row["earlier_actions"] == 8  # and less than one of the slow ones


def test_a_fold_that_starts_again_continues_and_counts_nothing_twice() -> None:
    before = every(range(50), 1.0)
    after = every(range(150, 170), 6.0)
    stored = msgspec.msgpack.decode(
        msgspec.msgpack.encode(times(*before, *after[:10]).state()), type=StoredFamilies
    )

    # It reads the retained journal, whose beginning is counted already.
    again = times(*before[40:], *after, stored=stored)
    assert again.rows(AT + 170) == times(*before, *after).rows(AT + 170)


def test_with_another_window_what_is_stored_becomes_earlier_history() -> None:
    stored = times(*every(range(50), 1.0)).state()
    wider = CommandFamilies(2 * WINDOW, stored)
    wider.finish(end(6.0), "test", AT + 60)

    (row,) = wider.rows(AT + 60)
    assert (row["actions"], row["earlier_actions"]) == (1, 50)


def test_families_and_rows_are_bounded() -> None:
    many = CommandFamilies(WINDOW)
    for number in range(MAX_FAMILIES + 10):
        many.finish(end(1.0, task=f"t{number}"), "", AT)
    for number in range(MAX_FAMILIES - 100, MAX_FAMILIES):
        many.finish(end(6.0, task=f"t{number}"), "", AT + 150)

    assert len(many.state().families) == MAX_FAMILIES
    assert len(many.rows(AT + 160)) == MAX_LISTED


def test_the_fold_counts_a_command_in_the_family_that_its_submission_declares() -> None:
    journal, fold = Journal(), FrameFold()
    journal.join("n1")
    for name, family in (("a1", "test"), ("a2", None)):
        journal.submit(name, family=family)
        journal.grant(name)
        journal.finish(name)
    for entry in journal.entries:
        fold.fold(entry)

    families = fold.family_times.state().families
    assert [(each.task, each.name) for each in families] == [("t1", "test"), ("t1", "")]
    assert fold.frames(journal.at)["overview"].body["slow"] == []
