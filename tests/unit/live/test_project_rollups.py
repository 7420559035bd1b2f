"""Rollups of projects: steps of 15 s and 5 min of a few projects, each of its own actions alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tangram_web.live.frames import FrameFold
from tangram_web.live.rollups.projects import (
    IDLE_SECONDS,
    PROJECT_SIZES,
    PendingRollups,
    ProjectRollups,
    StoredProject,
)
from tangram_web.live.rollups.query import query_range
from tangram_web.live.rollups.rollup import Rollup
from tests.unit.live.journal import WALL_OFFSET, Journal


def folded(journal: Journal, rollups: ProjectRollups) -> PendingRollups:
    fold = FrameFold()
    fold.project_activity.rollups = rollups
    for entry in journal.entries:
        fold.fold(entry)
    fold.frames(journal.at)
    return rollups.take_pending()


def an_hour(projects: Sequence[str], every: float = 40.0) -> Journal:
    """Each project does one thing after the other, its own number of seconds long."""
    journal = Journal(at=900_000.0)
    for turn in range(int(3600 / every)):
        for number, project in enumerate(projects):
            name = f"{project}-{turn}"
            journal.submit(name, project=project)
            journal.finish(name, project=project, timing=(0.0, 0.0, float(number + 1)))
        journal.at += every
    return journal


def second(at: int) -> Rollup:
    return Rollup(at, 1, 1, 0, [0.0] * 4, {}, [0.0] * 4)


@pytest.mark.slow
def test_both_step_sizes_count_a_projects_own_actions_alone() -> None:
    pending = folded(an_hour(("lab", "secret")), ProjectRollups())

    for number, project in enumerate(("lab", "secret")):
        for step in PROJECT_SIZES:
            moments = pending.rollups[project][step]
            finished = sum(one.finished for one in moments)
            assert 80 <= finished <= 90
            assert sum(one.sums[-1] for one in moments) == finished * (number + 1)


@pytest.mark.slow
def test_a_range_of_a_project_is_recalled_without_seconds() -> None:
    pending = folded(an_hour(("lab",)), ProjectRollups())
    asked: list[int] = []

    def read(step: int, first: float, last: float) -> list[Rollup]:
        asked.append(step)
        return [one for one in pending.rollups["lab"][step] if first <= one.at < last]

    began = 900_000.0 + WALL_OFFSET
    recalled = query_range(read, began, began + 900, began + 3600, PROJECT_SIZES)

    assert (recalled.width, set(asked)) == (15, {15})
    assert recalled.whole["finished"] == sum(
        one.finished for one in pending.rollups["lab"][15] if one.at < began + 900
    )


def test_a_quiet_project_gives_its_place_to_one_that_stirs() -> None:
    rollups = ProjectRollups(most=2)
    assert rollups.admit("a", 0.0, active=True)
    assert rollups.admit("b", 1.0, active=True)

    assert not rollups.admit("c", IDLE_SECONDS - 1, active=True)
    assert not rollups.admit("c", IDLE_SECONDS, active=False)
    assert rollups.admit("c", IDLE_SECONDS, active=True)

    pending = rollups.take_pending()
    assert pending.dropped == {"a"}
    assert pending.active_at.keys() == {"b", "c"}
    assert rollups.take_pending().dropped == frozenset()


def test_more_busy_projects_than_places_do_not_push_each_other_out() -> None:
    rollups = ProjectRollups(most=2)
    for at in range(3600):
        for project in ("a", "b", "c"):
            if rollups.admit(project, float(at), active=True):
                rollups.add(project, second(at))

    pending = rollups.take_pending()

    assert pending.rollups.keys() == {"a", "b"}
    assert pending.dropped == frozenset()


@pytest.mark.slow
def test_a_kept_project_that_does_nothing_has_moments_in_which_nothing_happened() -> None:
    """After a restart the journal no longer has it; the fold goes on from what is stored."""
    newest = int(900_000.0 + WALL_OFFSET) // 15 * 15
    kept = {"quiet": StoredProject(float(newest), {15: newest, 300: newest})}

    pending = folded(an_hour(("lab",)), ProjectRollups(kept))

    moments = pending.rollups["quiet"][15]
    assert [one.at for one in moments] == list(range(newest + 15, moments[-1].at + 1, 15))
    assert len(moments) >= 230
    assert {(one.seconds, one.submitted, one.finished) for one in moments} == {(15, 0, 0)}
    assert pending.active_at["quiet"] == newest


@pytest.mark.slow
def test_stored_moments_are_not_stored_again() -> None:
    journal = an_hour(("lab",))
    first = folded(journal, ProjectRollups())
    newest = {step: moments[-1].at for step, moments in first.rollups["lab"].items()}

    again = folded(journal, ProjectRollups({"lab": StoredProject(first.active_at["lab"], newest)}))

    assert not any(again.rollups["lab"].values())
