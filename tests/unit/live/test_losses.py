"""A lost node says what it held, what became of it, and alarms while work hangs on it."""

from __future__ import annotations

from typing import Any

import pytest

from domain.action import Outcome
from domain.decisions import Forget
from domain.events import NodeLost, NodeReturned
from tangram_web.live.frames import FrameFold
from tests.unit.live.journal import Journal, environment

LOST = NodeLost(node="n1", incarnation=1)


def alarms_in(nodes: list[dict[str, Any]]) -> list[str]:
    return [alarm for node in nodes if (alarm := node.get("alarm"))]


def rows(journal: Journal) -> list[dict[str, Any]]:
    fold = FrameFold()
    for entry in journal.entries:
        fold.fold(entry)
    return fold.node_rows()


@pytest.fixture
def journal() -> Journal:
    """Two actions are with a node, one in an environment, when it is lost; a third one waits."""
    journal = Journal()
    journal.join("n1")
    journal.join("n2")
    journal.submit("a1")
    journal.submit("a2", trajectory="t1", environment=environment(2**30))
    journal.submit("a3")
    journal.grant("a1", (0,))
    journal.grant("a2", (1,))
    journal.start("a1")
    journal.at += 10
    journal.write([LOST], [])
    return journal


def test_the_row_of_a_lost_node_keeps_what_it_held(journal: Journal) -> None:
    loss = rows(journal)[0]["loss"]

    assert (loss["actions"], loss["environments"], loss["open"]) == (2, 1, 2)
    assert loss["since"] == journal.at + 50_000
    assert "It held 2 actions and 1 environment: 2 still with it" in loss["says"]


def test_the_row_says_what_became_of_each_action(journal: Journal) -> None:
    journal.at += 30
    journal.finish("a1", Outcome.UNKNOWN)
    journal.requeue("a2")
    journal.finish("a3")

    row = rows(journal)[0]

    assert row["loss"]["became"] == {"requeued": 1, "unknown": 1}
    assert row["loss"]["says"] == (
        "It held 2 actions and 1 environment: 1 waited again, 1 ended as unknown."
    )
    assert "Node n1 is lost since" in row["alarm"]


def test_the_alarm_ends_with_the_return_and_the_loss_stays_listed(journal: Journal) -> None:
    journal.at += 5
    journal.write([NodeReturned(node="n1", incarnation=1)], [])
    journal.finish("a1")

    found = rows(journal)

    assert alarms_in(found) == []
    assert found[0]["loss"]["returned"] == journal.at + 50_000
    assert found[0]["loss"]["says"].endswith("1 completed, 1 continued after its return.")


def test_a_node_without_work_alarms_only_if_its_pool_has_no_other() -> None:
    journal = Journal()
    journal.join("n1")
    journal.join("n2")
    journal.write([LOST], [])
    assert alarms_in(rows(journal)) == []

    journal.write([NodeLost(node="n2", incarnation=1)], [])

    assert len(alarms_in(rows(journal))) == 2
    assert "Pool default has no other node: its actions wait." in rows(journal)[0]["alarm"]


def test_a_forgotten_node_leaves_no_alarm(journal: Journal) -> None:
    journal.write([], [Forget("n1", "i1")])
    journal.finish("a1", Outcome.UNKNOWN)

    assert [row["name"] for row in rows(journal)] == ["n2"]
    assert alarms_in(rows(journal)) == []
