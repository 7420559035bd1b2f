"""Rollups: steps that merge, so that percentiles of any range are exact to the bin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.action import Outcome
from tangram_web.live.frames import FrameFold
from tangram_web.live.rollups.histogram import (
    PHASES,
    bin_of,
    percentile,
    seconds_of,
)
from tangram_web.live.rollups.query import point_rows, query_range, summarize
from tangram_web.live.rollups.rollup import RETAINED, Rollup, RollupBuilder, merge
from tests.tiers import by_tier
from tests.unit.live.journal import WALL_OFFSET, Journal

WALL = int(WALL_OFFSET)


class Shelf:
    """Keeps moments as the store does."""

    def __init__(self, *taken: dict[int, list[Rollup]]) -> None:
        self.moments = {step: [one for each in taken for one in each[step]] for step in RETAINED}

    def read(self, step: int, first: float, last: float) -> list[Rollup]:
        return [one for one in self.moments[step] if first <= one.at < last]


def durations_at(seconds: Mapping[int, Sequence[float]], until: int) -> FrameFold:
    """Fold actions that end in the given seconds after ``durations`` of execution."""
    journal, fold = Journal(), FrameFold()
    for second, durations in sorted(seconds.items()):
        journal.at = float(second)
        for number, duration in enumerate(durations):
            journal.submit(f"a{second}-{number}")
            journal.finish(f"a{second}-{number}", timing=(0.0, 0.0, duration))
    for entry in journal.entries:
        fold.fold(entry)
    fold.frames(float(until))
    return fold


@settings(max_examples=by_tier(6, 25, 250))
@given(
    st.dictionaries(
        st.integers(600, 700), st.lists(st.floats(0.001, 1000), min_size=1, max_size=5),
        min_size=1, max_size=20,
    )
)  # fmt: skip
def test_percentiles_of_a_range_are_those_of_all_its_durations(seconds):
    fold = durations_at(seconds, 760)
    shelf = Shelf(fold.rollups.take_complete())

    recalled = query_range(shelf.read, WALL + 600, WALL + 800, WALL + 3600)

    everything = [one for durations in seconds.values() for one in durations]
    counts = np.bincount(bin_of(np.array(everything)), minlength=256)
    assert recalled.whole["finished"] == len(everything)
    for share in (50, 95, 99):
        assert recalled.whole["phases"]["act"][f"p{share}"] == percentile(counts, share / 100)


def test_all_step_sizes_count_the_same_actions():
    fold = durations_at({700: [0.5], 715: [0.5, 2.0], 999: [3.0]}, 1300)
    taken = fold.rollups.take_complete()

    (five_minutes,) = [one for one in taken[300] if one.at == WALL + 700]
    parts = [one for one in taken[15] if WALL + 700 <= one.at < WALL + 1000]

    assert (len(parts), five_minutes.seconds, five_minutes.finished) == (20, 300, 4)
    assert merge(parts, WALL + 700) == five_minutes
    assert five_minutes.outcomes == {Outcome.COMPLETED: 4}


def test_a_fold_that_begins_again_leaves_out_what_is_stored():
    seconds = {600: [0.5], 700: [0.5], 950: [1.0]}
    first = durations_at(seconds, 930).rollups.take_complete()
    again = durations_at(seconds, 1000)
    resumed = RollupBuilder({step: moments[-1].at for step, moments in first.items() if moments})
    for one in again.rollups.take_complete()[1]:
        resumed.add(one)
    second = resumed.take_complete()

    shelf = Shelf(first, second)

    for step in (1, 15):
        starts = [one.at for one in shelf.moments[step]]
        assert starts == sorted(set(starts))
        assert sum(one.finished for one in shelf.moments[step]) == 3


def test_the_newest_part_of_a_long_range_is_read_from_finer_steps():
    fold = durations_at({600: [0.5], 905: [0.5], 921: [0.5]}, 925)
    shelf = Shelf(fold.rollups.take_complete())

    recalled = query_range(shelf.read, WALL + 600 - 86_400, WALL + 1000, WALL + 1000)

    assert recalled.whole["finished"] == 3


def test_points_carry_rates_levels_and_gaps():
    journal, fold = Journal(at=600.0), FrameFold()
    journal.submit("a1")
    for entry in journal.entries:
        fold.fold(entry)
    fold.frames(660.0)
    shelf = Shelf(fold.rollups.take_complete())

    points = list(point_rows(query_range(shelf.read, WALL + 585, WALL + 630, WALL + 700)))

    by_second = {row["at"] - WALL: row for row in points}
    assert by_second[590]["queued"] is None
    assert (by_second[600]["submitted"], by_second[600]["queued"]) == (1.0, 1.0)
    assert by_second[610]["submitted"] == 0.0


def test_nothing_known_is_no_number():
    whole = summarize(merge([], 0))

    assert whole["phases"]["act"] == {"p50": None, "p95": None, "p99": None, "mean": None}


def test_a_rollup_has_the_histogram_of_its_second():
    fold = durations_at({600: [0.25, 0.25]}, 602)
    (second,) = [one for one in fold.rollups.take_complete()[1] if one.at == WALL + 600]

    act = second.durations().counts[PHASES.index("act")]
    assert (act.sum(), seconds_of(int(act.argmax()))) == (2, percentile(act, 0.5))
    assert second.sums[PHASES.index("act")] == 0.5
