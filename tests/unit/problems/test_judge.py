"""The judge of problems: raised once for each incident, cleared, acknowledged, and in a total order."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_web.problems.facts import Condition
from tangram_web.problems.health import HealthState, health_of, unknown_health
from tangram_web.problems.judge import (
    LISTED_SECONDS,
    NEW_SECONDS,
    Acknowledgement,
    ProblemState,
    SystemProblem,
    follow,
    judge,
    rank,
    ranked,
)
from tangram_web.problems.kinds import KIND_OF, TASK_FAILING
from tangram_web.problems.thresholds import ProblemThresholds
from tangram_web.problems.wording import duration
from tests.unit.problems.facts import NOW, WRONG, calm

PAUSED = Condition(
    kind="pool_paused", subject="coding", severity="critical", title="Pool coding is paused",
    brief="pool coding paused", detail="3 actions wait.", affected=3,
)  # fmt: skip


class Course:
    """Problems over time, judged once a second."""

    def __init__(self) -> None:
        self.now = NOW
        self.problems: list[SystemProblem] = []
        self.said: dict[str, Acknowledgement] = {}

    def go(self, seconds: int, *conditions: Condition, unknown: tuple[str, ...] = ()) -> Course:
        """Let the conditions hold for some seconds."""
        for _ in range(seconds):
            self.now += 1
            before = {each.id: each for each in self.problems}
            self.problems = follow(conditions, unknown, before, self.now, self.said)
        return self

    @property
    def states(self) -> list[str]:
        return [each.state.value for each in self.problems]


def test_a_problem_is_pending_then_new_then_held_then_cleared_and_listed_for_a_while() -> None:
    course = Course()

    assert course.go(60, PAUSED).states == ["pending"]
    assert course.go(1, PAUSED).states == ["new"]
    assert course.go(int(NEW_SECONDS), PAUSED).states == ["held"]
    assert course.go(5).states == ["held"]
    assert course.go(1).states == ["cleared"]
    assert course.go(int(LISTED_SECONDS) - 1).states == ["cleared"]
    assert course.go(1).states == []


def test_a_condition_that_ends_before_its_time_is_never_raised() -> None:
    assert Course().go(60, PAUSED).go(1).states == []


def test_a_break_that_is_short_changes_nothing() -> None:
    course = Course().go(61, PAUSED)
    raised = course.problems[0].raised_at

    course.go(4).go(10, PAUSED).go(4).go(10, PAUSED)

    assert [each.raised_at for each in course.problems] == [raised]


def test_a_condition_that_holds_again_is_another_incident() -> None:
    course = Course().go(61, PAUSED).go(10)
    first = course.problems[0].incident

    course.go(61, PAUSED)

    assert course.states == ["new"]
    assert course.problems[0].incident != first


def test_while_facts_are_unknown_problems_stay_as_they_are() -> None:
    course = Course().go(61, PAUSED)

    course.go(100, unknown=("pool_paused",))

    assert course.states == ["new"]
    assert course.go(6).states == ["cleared"]


def test_an_acknowledged_problem_stays_listed_and_leaves_the_banner() -> None:
    course = Course().go(61, PAUSED)
    problem = course.problems[0]
    assert health_of(course.problems).banner

    course.said[problem.id] = Acknowledgement(
        by="ops", note="planned", at=NOW, incident=problem.raised_at
    )
    course.go(1, PAUSED)

    assert course.states == ["acknowledged"]
    health = health_of(course.problems, waiting=3)
    assert (health.state, health.banner, health.count) == (HealthState.OK, "", 1)
    assert course.go(6).states == ["cleared"]


def test_an_acknowledgement_is_of_one_incident() -> None:
    course = Course().go(61, PAUSED)
    problem = course.problems[0]
    course.said[problem.id] = Acknowledgement(
        by="ops", note="planned", at=NOW, incident=problem.raised_at
    )

    assert course.go(10).go(61, PAUSED).states == ["new"]


@pytest.mark.parametrize("kind", sorted(WRONG))
def test_every_kind_is_raised_after_its_time_and_cleared_after_it(kind: str) -> None:
    limits, problems, now = ProblemThresholds(), list[SystemProblem](), NOW
    for now in (NOW, NOW + KIND_OF[kind].raise_seconds):
        problems = judge(WRONG[kind], problems, now, limits)
    assert [each.state for each in problems] == [ProblemState.NEW]

    for later in (now + 1, now + 1 + KIND_OF[kind].clear_seconds):
        problems = judge(calm(), problems, later, limits)
    assert [each.state for each in problems] == [ProblemState.CLEARED]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=14))
def test_a_problem_is_raised_at_most_once_for_each_incident(
    course_of: list[tuple[bool, int]],
) -> None:
    """Between two raises the condition was gone for its time, and held for its time after that."""
    failing = msgspec.structs.replace(PAUSED, kind=TASK_FAILING.key)
    course, raises = Course(), list[float]()
    gone = 0.0
    for holds, seconds in course_of:
        for _ in range(seconds):
            course.go(1, *([failing] if holds else []))
            gone = 0.0 if holds else gone + 1
            raised = [each.raised_at for each in course.problems if each.is_raised]
            if raised and raised[0] not in raises:
                raises += raised
            assert gone <= TASK_FAILING.clear_seconds + 1 or not raised
    assert all(b - a > TASK_FAILING.clear_seconds for a, b in pairwise(raises))


conditions = st.builds(
    msgspec.structs.replace,
    st.just(PAUSED),
    subject=st.sampled_from("abcdef"),
    severity=st.sampled_from(["critical", "warning"]),
    affected=st.integers(0, 3),
    since=st.one_of(st.none(), st.floats(NOW - 99, NOW)),
)


@given(st.lists(conditions, max_size=6, unique_by=lambda each: each.subject), st.randoms())
def test_the_rank_is_total_and_puts_severity_before_actions_before_age(
    found: list[Condition], random: object
) -> None:
    problems = [
        SystemProblem(condition=each, state=ProblemState.HELD, began_at=NOW, seen_at=NOW)
        for each in found
    ]
    shuffled = list(problems)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert ranked(shuffled) == ranked(problems)
    assert len({rank(each) for each in problems}) == len(problems)
    keys = [
        (each.condition.severity, -each.condition.affected, each.since) for each in ranked(problems)
    ]
    assert keys == sorted(keys)


def problem(brief: str, severity: str = "critical", affected: int = 0) -> SystemProblem:
    condition = msgspec.structs.replace(
        PAUSED, subject=brief, brief=brief, severity=severity, affected=affected
    )
    return SystemProblem(
        condition=condition, state=ProblemState.HELD, began_at=NOW, raised_at=NOW, seen_at=NOW
    )


@pytest.mark.parametrize(
    ("problems", "says", "banner"),
    [
        ([], "Everything works. 20 actions wait, none longer than 3.1 s.", ""),
        (
            [
                problem("quota of serper used up", affected=121),
                problem("node cpu-04 lost", affected=53),
                problem("task swe failing", "warning", 96),
            ],
            "3 problems. Two hold up 174 actions: quota of serper used up, node cpu-04 lost.",
            "2 critical problems hold up 174 actions: quota of serper used up, node cpu-04 lost.",
        ),
        (
            [problem("pool coding paused", affected=1)],
            "1 problem. It holds up 1 action: pool coding paused.",
            "1 critical problem holds up 1 action: pool coding paused.",
        ),
        (
            [problem("task swe failing", "warning", 96)],
            "1 problem. No action is held up: task swe failing.",
            "",
        ),
        (
            [problem("no scheduler loop"), problem("webhook fails", "warning")],
            "2 problems. One is critical: no scheduler loop.",
            "1 critical problem: no scheduler loop.",
        ),
    ],
)
def test_the_health_is_one_sentence(problems: list[SystemProblem], says: str, banner: str) -> None:
    health = health_of(problems, 20, 3.1)

    assert (health.headline, health.banner) == (says, banner)


def test_without_a_judgement_the_health_is_unknown() -> None:
    assert unknown_health(12.3).headline == "No data for 12 s."
    assert unknown_health(None).headline == "No data yet."
    why = unknown_health(12.3, "Redis refuses writes.")
    assert (why.headline, why.banner) == (
        "Redis refuses writes. No data for 12 s.",
        "Redis refuses writes.",
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3.14, "3.1 s"),
        (44.0, "44 s"),
        (736, "12 min 16 s"),
        (7260, "2 h 1 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_durations_are_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text
