"""Conditions of problems: each kind holds in its own facts, in no others, and says so in words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tangram_web.problems.collecting import remembered_web
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
    SLOW,
    WRONG,
    calm,
    lost,
    overview,
    queue,
    wanted,
    web,
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
        ("a family is young", calm(overview=overview(slow=[SLOW | {"earlier_seconds": 60.0}]))),
        ("few commands of a family ended before", calm(overview=overview(
            slow=[SLOW | {"earlier_actions": 9}]))),
        ("few commands of a family ended lately", calm(overview=overview(
            slow=[SLOW | {"actions": 9}]))),
        ("a family is slower by milliseconds", calm(overview=overview(
            slow=[SLOW | {"median_seconds": 0.4, "earlier_median_seconds": 0.04}]))),
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
        ("web_late:h1:1", calm(web={"web-1": web(delay_seconds=0.7)})),
        ("family_slow:lab/verify/test", calm(overview=overview(
            slow=[SLOW | {"median_seconds": 6.0}]))),
        ("service_thrashing:judge", calm(overview=overview(restores={"judge": 4}))),
        ("redis_memory:redis", calm(redis_memory=(80, 100))),
    ],
)  # fmt: skip
def test_between_its_thresholds_a_problem_stays_as_it_is(problem: str, facts: SystemFacts) -> None:
    assert found(facts) == []
    assert only(facts, problem).id == problem


def test_a_dead_web_process_is_critical_while_no_other_answers() -> None:
    alone = only(calm(web={"web-1": web(at=NOW - 60)}))
    one_of_two = only(WRONG["web_dead"])

    assert (alone.severity, one_of_two.severity) == ("critical", "warning")
    assert alone.detail.endswith("pages and API are down, running actions continue.")
    assert one_of_two.detail == "Process 2 showed no life after 07:59:00 UTC. 1 other answers."


def test_a_web_process_that_begins_replaces_one_that_died_on_its_host_before() -> None:
    dead = {"web-1": web(at=NOW - 60), "web-2": web(2, at=NOW - 50)}
    third = {"web-3": web(3, began=NOW - 40)}
    #: It replaced the first one, died as well, and was replaced.
    chain = {
        "web-1": web(at=NOW - 60),
        "web-2": web(2, began=NOW - 55, at=NOW - 30),
        "web-3": web(3, began=NOW - 25),
    }

    assert only(calm(web=dead | third)).title == "Web process on h1 is dead"
    assert only(calm(web=dead)).title == "2 web processes on h1 are dead"
    assert only(calm(web=dead | third)).since == NOW - 50
    assert found(calm(web=chain)) == []
    elsewhere = {"web-3": web(3, began=NOW - 25, host="h2")}
    assert only(calm(web={"web-1": web(at=NOW - 60)} | elsewhere)).subject == "h1"


def test_web_processes_have_their_time_when_the_whole_system_starts_again() -> None:
    dead = {"web-1": web(at=NOW - 600)}

    assert found(calm(web=dead, web_since=NOW - 3)) == []
    assert only(calm(web=dead, web_since=NOW - 11)).kind == "web_dead"


def test_a_web_process_that_ended_in_order_is_not_dead_and_still_replaces_an_earlier_one() -> None:
    fresh, stale, old = web(at=NOW - 2), web(2, at=NOW - 990), web(3, at=NOW - 4000)
    before = {"web-1": fresh, "web-2": stale, "web-3": old}

    kept = remembered_web(before, {"web-4": web(4)}, NOW)

    assert kept == {"web-1": web(at=NOW - 2, ended=True), "web-2": stale, "web-4": web(4)}
    assert found(calm(web=kept)) == []
    del kept["web-4"]
    assert [each.kind for each in found(calm(web=kept, web_since=NOW - 60))] == []
    without = {"web-2": stale}
    assert only(calm(web=without)).kind == "web_dead"


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


def test_a_slow_family_says_how_long_its_commands_take_and_took() -> None:
    slow = only(WRONG["family_slow"])
    without = only(calm(overview=overview(slow=[SLOW | {"family": ""}])))

    assert slow.title == "Commands of family test run 4.0 times as long"
    assert slow.detail == "Task verify: the median of 10 min is 12 s; it was 3.0 s before."
    assert (slow.affected, slow.affected_word, slow.affected_note) == (40, "actions", "in 10 min")
    assert slow.evidence_link.endswith(
        "family%3Atest%20execution%3A%3E4500ms%20since%3A1h&sort=-execution"
    )
    assert (without.subject, without.brief) == ("lab/verify", "commands of task verify slow")
    assert "family%3Anone" in without.evidence_link


@pytest.mark.parametrize("kind", ["task_failing", "family_slow", "blocker"])
def test_the_owner_is_the_submitter_where_one_is_known_else_the_project(kind: str) -> None:
    facts = WRONG[kind]
    known = msgspec.structs.replace(facts, submitters={"lab": "ada", "other": "token ci"})

    assert (only(facts).owner, only(known).owner) == ("project lab", "ada")
    assert only(WRONG["node_lost"]).owner == "platform"
    assert only(WRONG["webhook_failing"]).owner == "project lab"


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
