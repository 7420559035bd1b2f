"""Of a few projects moments of 15 s and 5 min are kept, each of its own actions alone."""

from __future__ import annotations

from collections.abc import Sequence

from tangram_web.live.frames import FrameFold
from tangram_web.live.recall import recall
from tangram_web.live.rings import Moment
from tangram_web.live.weeks import QUIET_SECONDS, SIZES, Changes, Kept, Weeks
from tests.unit.live.journal import WALL_OFFSET, Journal


def folded(journal: Journal, weeks: Weeks) -> Changes:
    fold = FrameFold()
    fold.pasts.weeks = weeks
    for entry in journal.entries:
        fold.fold(entry)
    fold.frames(journal.at)
    return weeks.take()


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


def second(at: int) -> Moment:
    return Moment(at, 1, 1, 0, [0.0] * 4, {}, [0.0] * 4)


def test_both_sizes_tell_of_a_projects_own_actions_alone() -> None:
    changes = folded(an_hour(("lab", "secret")), Weeks())

    for number, project in enumerate(("lab", "secret")):
        for step in SIZES:
            moments = changes.moments[project][step]
            finished = sum(one.finished for one in moments)
            assert 80 <= finished <= 90
            assert sum(one.sums[-1] for one in moments) == finished * (number + 1)


def test_a_range_of_a_project_is_recalled_without_seconds() -> None:
    changes = folded(an_hour(("lab",)), Weeks())
    asked: list[int] = []

    def read(step: int, first: float, last: float) -> list[Moment]:
        asked.append(step)
        return [one for one in changes.moments["lab"][step] if first <= one.at < last]

    began = 900_000.0 + WALL_OFFSET
    recalled = recall(read, began, began + 900, began + 3600, SIZES)

    assert (recalled.width, set(asked)) == (15, {15})
    assert recalled.whole["finished"] == sum(
        one.finished for one in changes.moments["lab"][15] if one.at < began + 900
    )


def test_a_quiet_project_gives_its_place_to_one_that_stirs() -> None:
    weeks = Weeks(most=2)
    assert weeks.takes("a", 0.0, stirs=True)
    assert weeks.takes("b", 1.0, stirs=True)

    assert not weeks.takes("c", QUIET_SECONDS - 1, stirs=True)
    assert not weeks.takes("c", QUIET_SECONDS, stirs=False)
    assert weeks.takes("c", QUIET_SECONDS, stirs=True)

    changes = weeks.take()
    assert changes.forgotten == {"a"}
    assert changes.stirred.keys() == {"b", "c"}
    assert weeks.take().forgotten == frozenset()


def test_more_busy_projects_than_places_do_not_push_each_other_out() -> None:
    weeks = Weeks(most=2)
    for at in range(3600):
        for project in ("a", "b", "c"):
            if weeks.takes(project, float(at), stirs=True):
                weeks.add(project, second(at))

    changes = weeks.take()

    assert changes.moments.keys() == {"a", "b"}
    assert changes.forgotten == frozenset()


def test_a_kept_project_that_does_nothing_has_moments_in_which_nothing_happened() -> None:
    """After a restart the journal no longer tells of it; what is stored is gone on from."""
    newest = int(900_000.0 + WALL_OFFSET) // 15 * 15
    kept = {"quiet": Kept(float(newest), {15: newest, 300: newest})}

    changes = folded(an_hour(("lab",)), Weeks(kept))

    moments = changes.moments["quiet"][15]
    assert [one.at for one in moments] == list(range(newest + 15, moments[-1].at + 1, 15))
    assert len(moments) >= 230
    assert {(one.seconds, one.submitted, one.finished) for one in moments} == {(15, 0, 0)}
    assert changes.stirred["quiet"] == newest


def test_what_is_stored_is_not_stored_again() -> None:
    journal = an_hour(("lab",))
    first = folded(journal, Weeks())
    newest = {step: moments[-1].at for step, moments in first.moments["lab"].items()}

    again = folded(journal, Weeks({"lab": Kept(first.stirred["lab"], newest)}))

    assert not any(again.moments["lab"].values())
