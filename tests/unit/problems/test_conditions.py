"""Conditions of problems: each kind holds in its own facts, in no others, and says so in words."""

from __future__ import annotations

from typing import Any

import pytest

from tangram_web.problems.conditions import conditions_of
from tangram_web.problems.facts import Condition, SystemFacts
from tangram_web.problems.kinds import KINDS
from tangram_web.problems.missed_actions import with_missed
from tangram_web.problems.thresholds import ProblemThresholds
from tests.unit.problems.facts import (
    FAILING,
    NODE,
    NOW,
    POOL,
    QUOTA,
    WRONG,
    calm,
    lost,
    overview,
    queue,
    wanted,
)

LIMITS = ProblemThresholds()


def found(facts: SystemFacts, *raised: str) -> list[Condition]:
    return conditions_of(facts, LIMITS, raised)[0]


def only(facts: SystemFacts, *raised: str) -> Condition:
    (condition,) = found(facts, *raised)
    return condition


def test_nothing_is_wrong_in_a_calm_system() -> None:
    assert conditions_of(calm(), LIMITS) == ([], set())


def test_every_kind_has_facts_in_which_it_holds() -> None:
    assert WRONG.keys() == {kind.key for kind in KINDS}


@pytest.mark.parametrize("kind", [kind.key for kind in KINDS])
def test_a_kind_holds_in_its_facts_alone_and_names_what_to_do(kind: str) -> None:
    condition = only(WRONG[kind])

    assert condition.kind == kind
    assert condition.title[0].isupper()
    assert not condition.title.endswith(".")
    assert condition.detail.endswith(".")
    assert condition.brief
    assert condition.evidence_link.startswith("/")
    assert not condition.verb or condition.verb_link.startswith("/")


def test_without_any_source_every_kind_is_unknown() -> None:
    assert conditions_of(SystemFacts(now=NOW), LIMITS) == ([], {kind.key for kind in KINDS})


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (calm(nodes=[lost()]), ("critical", 12, "12 stranded")),
        (calm(nodes=[lost(alarm="")]), ("warning", 12, "12 stranded")),
        (
            calm(nodes=[lost(alarm="… Pool coding has no other node: its actions wait.")]),
            ("critical", 15, "12 stranded, 3 waiting"),
        ),
        (
            calm(nodes=[lost()], queues=[queue(node="n1", blocked_by="")]),
            ("critical", 53, "12 stranded, 41 waiting"),
        ),
    ],
)
def test_a_lost_node_counts_what_it_holds_up(
    facts: SystemFacts, expected: tuple[str, int, str]
) -> None:
    condition = only(facts)

    assert (condition.severity, condition.affected, condition.affected_note) == expected
    assert condition.since == NOW - 30


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("a drained node without work is lost", calm(nodes=[lost(alarm="", drained=True)])),
        ("a pool is paused without work", calm(overview=overview(
            pools=[POOL | {"paused": True, "queued": 0}]))),
        ("a quota is used up and nothing waits", calm(
            resources={"api:serper": {"quotas": [QUOTA]}})),
        ("few actions of a task fail", calm(overview=overview(
            failing=[FAILING | {"finished": 19, "failed": 19}]))),
        ("a task without rewards never had one", calm(overview=overview(
            failing=[FAILING | {"failed": 0, "rollouts": 9, "unrewarded": 9}]))),
        ("an action blocks few others", calm(queues=[queue(waiting=2)])),
        ("a queue is young", calm(queues=[queue(waited_seconds=5.0)])),
        ("a rollout worker was removed hours ago", calm(
            roles={"loop": NOW, "node": NOW, "rollout": NOW - 9999})),
        ("a drained node is late", calm(
            nodes=[NODE | {"state": "drained"}], node_workers={"n1": NOW - 60})),
    ],
)  # fmt: skip
def test_what_holds_nothing_up_is_no_problem(kind: str, facts: SystemFacts) -> None:
    assert found(facts) == [], kind


@pytest.mark.parametrize(
    ("problem", "facts"),
    [
        ("task_failing:lab/verify", calm(overview=overview(failing=[FAILING | {"failed": 40}]))),
        ("part_late:projector", calm(lags={"projector": 20.0})),
        ("service_thrashing:judge", calm(overview=overview(restores={"judge": 4}))),
        ("redis_memory:redis", calm(redis_memory=(80, 100))),
    ],
)
def test_between_its_thresholds_a_problem_stays_as_it_is(problem: str, facts: SystemFacts) -> None:
    assert found(facts) == []
    assert only(facts, problem).id == problem


def test_a_task_fails_whose_rollouts_have_no_reward_any_more() -> None:
    row: dict[str, Any] = FAILING | {
        "failed": 0, "rollouts": 9, "unrewarded": 9, "rewarded_at": NOW - 900,
    }  # fmt: skip
    condition = only(calm(overview=overview(failing=[row])))

    assert condition.detail.startswith("9 rollouts without a reward; none since")
    assert condition.project == "lab"


def test_texts_have_the_numbers_and_the_instant() -> None:
    quota = only(WRONG["quota_exhausted"])
    failing = only(WRONG["task_failing"])

    assert quota.title == "API serper has used up its quota"
    assert quota.detail == "50 of 50 units in 1 h. The first units come back at 08:01:00 UTC."
    assert quota.affected_link == "/actions/?q=state%3Aqueued%20waits%3Aapi%3Aserper"
    assert failing.detail == "80 of 100 actions in 10 min: 80 × exit code 137."
    assert failing.verb_link == "/act/task/pause/?target=lab%2Fverify"


def test_the_pool_of_a_project_is_a_problem_of_that_project_alone() -> None:
    resource = "llm:seats@lab"
    facts = calm(overview=wanted(resource, 2), resources={resource: {"quotas": [QUOTA]}})

    assert only(facts).project == "lab"


def test_an_open_circuit_without_waiting_actions_is_a_warning() -> None:
    facts = calm(resources={"api:serper": {"hindrance": "the circuit is open"}})

    assert only(facts).severity == "warning"


def test_actions_that_the_journal_no_longer_holds_are_counted_as_the_scheduler_does() -> None:
    """They wait for a quota for longer than the journal is retained, and the frames began again."""
    queues = [queue(waiting=9, needs={"api:serper": 1.0}, blocked_by="")]
    known = overview(pools=[POOL | {"queued": 0}], wanted=[], counts={"queued": 0, "running": 2})

    found = with_missed(known, {"coding": {"queued": 9}}, queues)
    facts = calm(overview=found, resources={"api:serper": {"quotas": [QUOTA]}})

    assert (found["counts"]["queued"], found["pools"][0]["queued"]) == (9, 9)
    assert only(facts).affected == 9
    assert with_missed(overview(), {"coding": {"queued": 3}}, queues) == overview()
