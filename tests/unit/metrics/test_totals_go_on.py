"""Totals count every entry of the journal once, wherever their reader was killed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.action import Outcome, Timing
from domain.allocation import Allocation, Home, Hosting, UsedResources
from domain.codec import JournalEntry
from domain.decisions import Finish, Grant, Prepare
from domain.events import ActionFinished, ChunkReport
from domain.ids import ActionId, node_resource
from domain.resources import MILLI
from tangram_web.live.frames import FrameFold
from tangram_web.metrics.totals import BOUNDS, Histogram, Totals
from tests.unit.live.journal import Journal
from tests.unit.live.test_frame_counts import journals


def counted(entries: list[JournalEntry]) -> Totals:
    totals = Totals()
    fold = FrameFold(totals)
    for entry in entries:
        fold.fold(entry)
    return totals


@given(journals(), st.data())
def test_a_reader_that_was_killed_goes_on_from_what_it_saved(
    entries: list[JournalEntry], data: st.DataObject
) -> None:
    saved_at = data.draw(st.integers(0, len(entries)), "entries before the last save")
    saved = msgspec.msgpack.encode(counted(entries[:saved_at]))

    totals = msgspec.msgpack.decode(saved, type=Totals)
    fold = FrameFold(totals)
    for number, entry in enumerate(entries):
        fold.fold(entry, counted=number < saved_at)

    assert totals == counted(entries)


@given(journals())
def test_every_finish_is_in_its_counter_and_its_histograms(entries: list[JournalEntry]) -> None:
    totals = counted(entries)
    finished = sum(type(d).__name__ == "Finish" for entry in entries for d in entry.decisions)
    assert sum(totals.finished.values()) == finished
    assert sum(sum(h.counts) for h in totals.completion.values()) == finished
    assert sum(sum(h.counts) for h in totals.phases.values()) == 3 * finished


def test_a_duration_on_a_bound_belongs_below_it() -> None:
    histogram = Histogram()
    for seconds in (0.0, BOUNDS[0], BOUNDS[0] * 1.01, BOUNDS[-1] * 2):
        histogram.add(seconds)
    assert (histogram.counts[0], histogram.counts[1], histogram.counts[-1]) == (2, 1, 1)


def test_phases_have_labels() -> None:
    totals = Totals()
    totals.count_finished(
        "p", "default", "exec", Outcome.COMPLETED, Timing(0.2, 0.001, 30.0, 30.201)
    )
    sums = {phase: h.sum_seconds for (_, phase), h in totals.phases.items()}
    assert sums == {"queue": 0.2, "overhead": 0.001, "execution": 30.0}
    assert totals.completion[("default", "exec")].sum_seconds == 30.201


@pytest.mark.parametrize(
    ("resizes", "granted"), [({}, 6.0), ({"resizes": 1, "key_milli_seconds": 2500.0}, 2.5)]
)
def test_granted_core_seconds_follow_what_was_held(resizes: dict[str, Any], granted: float) -> None:
    held = Allocation(node_resource("cpu", "n1"), 3 * MILLI, (0, 1, 2))
    finish = Finish(
        ActionId("act_1"), "p", "t", Outcome.COMPLETED, Timing(0.5, 0.0, 2.0, 2.5),
        allocations=(held,), used=UsedResources(1.5, 0.0, 2**20), **resizes,
    )  # fmt: skip
    totals = counted([JournalEntry(1, 1, 10.0, 0.0, "0-1", [], [finish])])
    assert totals.granted_cpu_seconds == {("default",): granted}
    assert totals.used_cpu_seconds == {("default",): 1.5}


def test_calls_of_services_are_counted_by_what_they_found_on_their_chunk() -> None:
    """A restore that is avoided is a call that found its service there."""
    journal = Journal()
    gpu = node_resource("gpu", "n1")
    for name, hosting in (
        ("a1", Hosting("reward", 2**30)),
        ("a2", Hosting("reward", 2**30, cached=True)),
        ("a3", Hosting("judge", 2**30, evicted=(Home("reward", (0,)),))),
    ):
        chunk = Allocation(gpu, MILLI, (0,), hosting=hosting)
        journal.write([], [Grant(ActionId(name), "n1", (chunk,))])
        news = ChunkReport(restore_seconds=0.5)
        ended = ActionFinished(
            action_id=ActionId(name), node="n1", outcome=Outcome.COMPLETED, chunk=news
        )
        journal.write([ended], [])

    totals = counted(journal.entries)

    assert totals.service_calls == {("default", "restored"): 2, ("default", "cached"): 1}
    assert totals.evictions == {("default",): 1}
    assert sum(totals.restores["default",].counts) == 2
    assert totals.restores["default",].sum_seconds == 1.0


def test_restores_ahead_are_counted_and_those_that_a_call_met() -> None:
    journal = Journal()
    home = Home("reward", (0,))
    journal.write([], [Prepare("n1", home, 2**30), Prepare("n1", Home("judge", (1,)), 2**30)])
    met = Hosting("reward", 2**30, cached=True, ahead=True)
    gpu = Allocation(node_resource("gpu", "n1"), MILLI, (0,), hosting=met)
    journal.write([], [Grant(ActionId("a1"), "n1", (gpu,))])

    assert counted(journal.entries).ahead == {("default", "brought"): 2, ("default", "met"): 1}
