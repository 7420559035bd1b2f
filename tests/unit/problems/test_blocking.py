"""What queues wait for in the end: the action that holds most of the units that a head is short of."""

from __future__ import annotations

from typing import Any

import pytest

from tangram_web.live.frames import FrameFold
from tangram_web.problems.blocking import Holding, holdings_of, with_causes
from tangram_web.problems.facts import BlockerFact, QueueFact
from tangram_web.problems.thresholds import ProblemThresholds
from tangram_web.problems.work_conditions import blocker
from tests.unit.live.journal import Journal
from tests.unit.problems.facts import NOW, calm, queue

HOG = Holding(action="act_hog", node="n1", kind="cpu", amount=3, since=NOW - 400)


def short(head: str = "act_1", **changes: Any) -> QueueFact:
    """A queue whose head is short of cores of a node."""
    given = {"head": head, "code": "short_of", "resource": "cpu:n1", "blocked_by": ""}
    return queue(**given | changes)


def holders(*held: tuple[str, tuple[int, ...]], milli: int | None = None) -> dict[str, Holding]:
    """What is found in the frame of a node of four cores, some of which actions hold."""
    journal, fold = Journal(), FrameFold()
    journal.join("n1")
    for name, cores in held:
        journal.submit(name, trajectory=f"t-{name}")
        journal.grant(name, cores, milli=milli)
    for entry in journal.entries:
        fold.fold(entry)
    return holdings_of(fold.frames(journal.at)["holders"].body["nodes"])


def test_the_holder_of_a_resource_has_at_least_half_of_what_is_held() -> None:
    found = holders(("a1", (0,)), ("a2", (1, 2, 3)))

    assert list(found) == ["cpu:n1"]
    assert (found["cpu:n1"].action, found["cpu:n1"].amount) == ("a2", 3)
    assert holders(("a1", (0,)), ("a2", (1,)), ("a3", (2,))) == {}
    assert holders(("a1", (0, 1)), milli=100) == {}  # light: on shared cores


def test_all_queues_behind_a_short_head_wait_for_the_holder() -> None:
    behind = queue(head="act_2", code="behind", blocked_by="act_1")
    third = queue(head="act_3", code="behind", blocked_by="act_2")

    found = with_causes([third, short(), behind], {"cpu:n1": HOG}, NOW)

    assert [each.blocked_by for each in found] == ["act_hog"] * 3
    assert (found[0].held, found[0].held_seconds) == ("3 cores of node n1", 400.0)


@pytest.mark.parametrize(
    "waits",
    [
        short(resource="cpu:n2"),
        queue(head="act_1", code="behind", blocked_by="act_9"),
        queue(head="act_1", code="pool_paused", resource="cpu:n1", blocked_by=""),
        queue(head="act_1", code="behind", blocked_by="act_1"),
    ],
    ids=["another node", "behind an action of no queue", "a paused pool", "itself"],
)
def test_other_queues_stay_as_they_are(waits: QueueFact) -> None:
    assert with_causes([waits], {"cpu:n1": HOG}, NOW) == [waits]


def test_an_action_that_has_held_units_for_long_is_a_blocker_and_one_that_began_is_not() -> None:
    known = {"act_hog": BlockerFact(project="lab", task="verify", trajectory="r1")}
    for seconds, expected in ((400.0, 1), (30.0, 0)):
        hog = Holding(action="act_hog", node="n1", kind="cpu", amount=3, since=NOW - seconds)
        facts = calm(queues=with_causes([short()], {"cpu:n1": hog}, NOW), blockers=known)
        found = blocker(facts, ProblemThresholds(), ())
        assert found is not None
        assert len(found) == expected
        for each in found:
            assert each.title == "Action …act_hog of task verify holds up 41 actions"
            assert each.detail == (
                "Trajectory r1 holds 3 cores of node n1. "
                "The first action behind it waits since 07:45:00 UTC."
            )
