"""Charts get one point a second, and a reader can tell when it missed some."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from tangram_web.live.frames import FrameFold
from tangram_web.live.rollups.recent import CHART_SECONDS, FRAME_POINTS
from tests.unit.live.journal import WALL_OFFSET, Journal


def column(points: dict, name: str) -> list[float]:
    return np.frombuffer(points["columns"][name], "<f4").tolist()


def fold_of(journal: Journal) -> FrameFold:
    fold = FrameFold()
    for entry in journal.entries:
        fold.fold(entry)
    return fold


def test_points_count_what_happened_in_their_second():
    journal = Journal(at=100.0)
    journal.submit("a1")
    journal.submit("a2")
    journal.at = 101.5
    journal.finish("a1", timing=(1.0, 0.25, 0.25))
    fold = fold_of(journal)

    points = fold.frames(102.0)["overview"].backlog["points"]

    assert (points["first"], points["count"]) == (100, 2)
    assert column(points, "submitted") == [2.0, 0.0]
    assert column(points, "finished") == [0.0, 1.0]
    assert column(points, "queued") == [2.0, 1.0]
    assert math.isnan(column(points, "queue_mean")[0])
    assert column(points, "queue_mean")[1] == 1.0


def test_frame_repeats_the_newest_points_and_a_snapshot_has_all():
    journal = Journal(at=100.0)
    journal.submit("a1")
    frame = fold_of(journal).frames(100.0 + 50)["overview"]

    assert frame.body["points"]["count"] == FRAME_POINTS
    assert frame.body["points"]["first"] == 150 - FRAME_POINTS
    assert frame.backlog["points"]["count"] == 50


def test_silence_longer_than_all_windows_leaves_levels_and_no_rates():
    journal = Journal(at=100.0)
    journal.submit("a1")
    journal.submit("a2")
    journal.finish("a2")
    fold = fold_of(journal)

    body = fold.frames(1e6)["overview"]
    points = body.backlog["points"]

    assert points["first"] + points["count"] == 1e6
    assert column(points, "queued") == [1.0] * CHART_SECONDS
    assert column(points, "finished") == [0.0] * CHART_SECONDS
    assert body.body["durations"]["samples"] == 0
    assert body.body["finished_per_second"] == 0.0


def test_time_never_runs_backward_in_frames():
    journal = Journal(at=100.0)
    journal.submit("a1")
    fold = fold_of(journal)

    first = fold.frames(110.0)["overview"]
    second = fold.frames(90.0)["overview"]

    assert second.at == first.at == 110.0
    assert second.seq == first.seq + 1


def test_seq_of_a_restarted_fold_goes_on_rising():
    journal = Journal(at=100.0)
    journal.submit("a1")
    before = fold_of(journal).frames(110.0)["overview"].seq

    after = fold_of(journal).frames(110.25)["overview"].seq

    assert after > before


def test_revision_changes_with_events_and_not_with_time():
    journal = Journal(at=100.0)
    journal.join("n1")
    fold = fold_of(journal)
    before = {topic: frame.revision for topic, frame in fold.frames(101.0).items()}
    same = {topic: frame.revision for topic, frame in fold.frames(105.0).items()}
    fold.fold(journal.submit("a1"))
    submitted = {topic: frame.revision for topic, frame in fold.frames(106.0).items()}

    assert same == before
    assert submitted["overview"] != before["overview"]
    assert submitted["nodes"] == before["nodes"]


def test_journal_time_follows_the_wall_clock():
    journal = Journal(at=100.0)
    journal.submit("a1")
    fold = fold_of(journal)

    assert fold.journal_time(WALL_OFFSET + 130.0) == 130.0
    assert fold.journal_time(WALL_OFFSET + 10.0) == 100.0


def test_frames_travel_as_msgpack():
    journal = Journal(at=100.0)
    journal.join("n1")
    journal.submit("a1")
    frames = fold_of(journal).frames(101.0)

    decoded = {name: msgspec.msgpack.decode(frame.encode()) for name, frame in frames.items()}
    snapshot = msgspec.msgpack.decode(frames["overview"].encode_snapshot())

    assert decoded["overview"]["wall"] == 101.0 + WALL_OFFSET
    assert decoded["nodes"]["nodes"][0]["cores"] == bytes(4)
    assert (decoded["overview"]["snapshot"], snapshot["snapshot"]) == (False, True)
