"""Frames of one project: its own actions by name, those of others as used capacity."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.action import Outcome
from domain.codec import JournalEntry
from domain.decisions import Forget
from domain.inventory import ProjectConfig
from tangram_web.live.capacity import EXCLUSIVE, OTHERS
from tangram_web.live.frames import FrameFold
from tangram_web.live.project_frames import MAX_FOLDED, ProjectFrames
from tests.tiers import by_tier
from tests.unit.live.journal import Journal, environment

PROJECTS = ("lab", "secret")


def reported(entries: list[JournalEntry], at: float, watched_from: int = 0) -> dict[str, Any]:
    """Fold a journal, with the projects watched from one of its entries on."""
    whole = FrameFold()
    parts = ProjectFrames(whole)
    for number, entry in enumerate(entries):
        if number == watched_from:
            parts.follow(PROJECTS)
        whole.fold(entry)
        parts.fold(entry)
    if watched_from >= len(entries):
        parts.follow(PROJECTS)
    frames = whole.frames(at) | parts.frames(at)
    return {
        topic: msgspec.msgpack.decode(frame.encode_snapshot()) for topic, frame in frames.items()
    }


def points(overview: dict[str, Any], name: str) -> Any:
    return np.frombuffer(overview["points"]["columns"][name], "<f4")


def a_journal() -> Journal:
    """Two projects on one node: each holds a core, each has an action that waits."""
    journal = Journal()
    journal.join("n1", groups=((0, 1, 2, 3),))
    projects = {name: ProjectConfig(name, default_pool="default") for name in PROJECTS}
    journal.configure(revision=1, projects=projects, resources={"api:search": 8000})
    for project, core in (("lab", 0), ("secret", 1)):
        journal.submit(f"{project}-runs", project=project, trajectory=f"{project}-t",
                       environment=environment(2**30))  # fmt: skip
        journal.grant(f"{project}-runs", (core,))
        journal.start(f"{project}-runs")
        journal.submit(f"{project}-waits", project=project)
    return journal


@pytest.mark.parametrize("watched_from", [0, 99], ids=["watched first", "watched last"])
def test_a_project_gets_nothing_of_the_actions_of_others(watched_from: int) -> None:
    journal = a_journal()
    journal.finish("secret-waits", Outcome.CANCELLED, project="secret", task="hidden")
    journal.submit("secret-more", project="secret", task="hidden")
    journal.at += 30.0

    frames = reported(journal.entries, journal.at, watched_from)

    for base in ("overview", "nodes", "holders"):
        frame = frames[f"{base}@lab"]
        assert "secret" not in repr(frame)
        assert "hidden" not in repr(frame)
        assert frame["topic"] == f"{base}@lab"
    overview = frames["overview@lab"]
    assert overview["counts"] == {"queued": 1, "granted": 0, "running": 1}
    assert [one["id"] for one in overview["waiting"]] == ["lab-waits"]
    assert overview["cores"] == {"held": 1.0, "total": 4.0, "lost": 0.0}
    assert sum(one["total"] for one in overview["outcomes"]) == 0
    assert (overview["durations"]["samples"], overview["finished"]) == (0, [])
    assert (points(overview, "finished").sum(), points(overview, "submitted").sum()) == (0, 2)


def test_units_of_other_projects_are_used_and_unnamed() -> None:
    journal = a_journal()
    journal.submit("secret-light", project="secret")
    journal.grant("secret-light", (2,), milli=100)

    frames = reported(journal.entries, journal.at)

    (node,) = frames["nodes@lab"]["nodes"]
    assert list(node["cores"]) == [EXCLUSIVE, OTHERS, OTHERS, 0]
    assert (node["cores_own"], node["cores_held"], node["environments"]) == (1.0, 2.1, 1)
    assert node["gpus"]["others"] == ""
    ((holders,),) = [[row["holders"] for row in frames["holders@lab"]["nodes"]]]
    assert [(one["id"], one["units"]) for one in holders] == [("lab-runs", "0")]
    (resource,) = frames["overview@lab"]["resources"]
    assert (resource["held"], resource["others"]) == (0.0, 0.0)


@st.composite
def journals(draw: st.DrawFn) -> Journal:
    """Actions of two projects that go their ways."""
    journal = Journal()
    journal.join("n1")
    states: dict[str, str] = {}
    for name in draw(st.lists(st.sampled_from(("a", "b", "c", "d")), max_size=30)):
        journal.at += draw(st.sampled_from((0.0, 0.4, 3.0, 80.0)))
        project = PROJECTS[name in "cd"]
        state = states.get(name, "new")
        if state == "over":
            continue
        if state == "new":
            journal.submit(name, project=project, trajectory=f"t-{name}")
            states[name] = "queued"
        elif state == "queued":
            journal.grant(name, draw(st.sampled_from(((0,), (1, 2)))))
            states[name] = "granted"
        elif state == "granted" and draw(st.booleans()):
            journal.start(name)
            states[name] = "running"
        elif draw(st.booleans()):
            journal.requeue(name)
            states[name] = "queued"
        else:
            journal.finish(name, project=project)
            states[name] = "over"
    return journal


@settings(max_examples=by_tier(5, 20, 200), deadline=None)
@given(journals(), st.integers(0, 30))
def test_a_later_subscriber_gets_the_same(journal: Journal, late: int) -> None:
    early = reported(journal.entries, journal.at, 0)
    frames = reported(journal.entries, journal.at, late)

    for project in PROJECTS:
        for member in (
            *("counts", "cores", "waiting", "finished", "outcomes", "durations", "points"),
            *("since", "submitted_per_second", "finished_per_second", "oldest_seconds"),
        ):
            topic = f"overview@{project}"
            assert frames[topic][member] == early[topic][member], member
        assert frames[f"nodes@{project}"]["nodes"] == early[f"nodes@{project}"]["nodes"]
        held, known = (
            [row for row in said[f"holders@{project}"]["nodes"] if row["holders"]]
            for said in (frames, early)
        )
        assert held == known
    whole, parts = frames["overview"], [frames[f"overview@{project}"] for project in PROJECTS]
    for state, count in whole["counts"].items():
        assert count == sum(part["counts"][state] for part in parts)


def test_an_unwatched_project_is_folded_no_more_and_begins_again() -> None:
    journal, whole = a_journal(), FrameFold()
    parts = ProjectFrames(whole)
    for entry in journal.entries:
        whole.fold(entry)
    parts.follow(["lab"])
    assert parts.frames(journal.at).keys() == {"overview@lab", "nodes@lab", "holders@lab"}

    parts.follow([])
    assert parts.frames(journal.at) == {}
    whole.fold(journal.finish("lab-waits", project="lab"))
    parts.follow(["lab"])

    overview = parts.frames(journal.at)["overview@lab"].body
    assert overview["counts"] == {"queued": 0, "granted": 0, "running": 1}


def test_of_very_many_projects_those_watched_last_are_folded() -> None:
    parts = ProjectFrames(FrameFold())

    parts.follow([f"p{number}" for number in range(MAX_FOLDED + 5)])

    assert len(parts.frames(1.0)) == 3 * MAX_FOLDED
    assert "overview@p0" in parts.frames(1.0)


def test_a_project_that_did_nothing_has_a_past_without_actions() -> None:
    journal = a_journal()
    journal.at += 20.5
    journal.submit("lab-late", project="lab")
    whole = FrameFold()
    parts = ProjectFrames(whole)
    for entry in journal.entries:
        whole.fold(entry)

    parts.follow(["quiet"])

    frame = parts.frames(journal.at)["overview@quiet"]
    everything = whole.frames(journal.at)["overview"]
    reported = frame.backlog["points"]
    assert (reported["first"], reported["count"]) == (everything.backlog["points"]["first"], 20)
    assert not np.frombuffer(reported["columns"]["running"], "<f4").any()
    assert int(frame.body["since"]) == int(everything.body["since"])


def test_of_a_project_that_was_let_go_nothing_is_claimed() -> None:
    journal, whole = a_journal(), FrameFold(recent_projects=1)
    parts = ProjectFrames(whole)
    journal.at += 20.0
    journal.submit("secret-more", project="secret")
    for entry in journal.entries:
        whole.fold(entry)

    parts.follow(["lab"])

    overview = parts.frames(journal.at)["overview@lab"]
    assert overview.backlog["points"]["count"] == 0
    assert overview.body["counts"] == {"queued": 1, "granted": 0, "running": 1}
    assert overview.body["since"] == journal.at + whole.wall_offset


def test_a_forgotten_node_is_gone_for_a_project_that_is_watched() -> None:
    journal = a_journal()
    journal.join("n2")
    journal.write([], [Forget("n2", "i1")])

    for watched_from in (0, len(journal.entries)):
        frames = reported(journal.entries, journal.at, watched_from)
        assert [node["name"] for node in frames["nodes@lab"]["nodes"]] == ["n1"]
