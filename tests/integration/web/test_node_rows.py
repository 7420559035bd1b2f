"""Nodes as rows."""

from __future__ import annotations

import pytest

from domain.decisions import Forget, Refuse
from domain.events import NodeForgetAsked, NodeLost, NodeReturned
from domain.inventory import Config
from tangram_web.records.models import NodeRecord
from tangram_web.records.projection import project
from tests.integration.web.journal import Journal, a_node

pytestmark = pytest.mark.django_db


@pytest.fixture
def journal() -> Journal:
    return Journal()


def state_of(name: str = "n1") -> str:
    return NodeRecord.objects.get(name=name).state


def test_node_is_described_as_it_introduced_itself(journal):
    journal.write([a_node(oversubscribed=True)])

    project(journal.entries)

    row = NodeRecord.objects.get()
    assert (row.name, row.pool, row.state, row.incarnation) == ("n1", "default", "ready", 1)
    assert row.oversubscribed
    assert row.resources["cpu"]["capacity"] == 4000


def test_silent_node_is_lost_until_it_returns(journal):
    journal.write([a_node()])
    journal.write([NodeLost(node="n1", incarnation=1)])
    project(journal.entries)
    assert state_of() == "lost"

    journal.write([NodeReturned(node="n1", incarnation=1)])
    project(journal.entries)
    assert state_of() == "ready"
    assert NodeRecord.objects.get().lost_at is not None


def test_loss_of_an_earlier_life_says_nothing_of_the_present_one(journal):
    journal.write([a_node(incarnation=2)])
    journal.write([NodeLost(node="n1", incarnation=1)])

    project(journal.entries)

    assert state_of() == "ready"


def test_drained_node_is_ready_again_when_it_is_resumed(journal):
    journal.write([a_node()])
    leaves = frozenset({"n1"})
    journal.configure(Config(drained_nodes=leaves, finishing_nodes=leaves))
    project(journal.entries)
    assert (state_of(), NodeRecord.objects.get().finishing) == ("drained", True)

    journal.configure(Config())
    project(journal.entries)
    assert (state_of(), NodeRecord.objects.get().finishing) == ("ready", False)


def test_node_that_joins_after_it_was_drained_is_drained(journal):
    leaves = frozenset({"n1"})
    journal.configure(Config(drained_nodes=leaves, finishing_nodes=leaves))
    project(journal.entries)
    journal.write([a_node()])

    project(journal.entries)

    assert (state_of(), NodeRecord.objects.get().finishing) == ("drained", True)


def test_a_forgotten_node_has_no_row_until_it_joins_as_a_new_one(journal):
    journal.write([a_node("n1"), a_node("n2")])
    asked = NodeForgetAsked(node="n1")
    journal.write([NodeLost(node="n1", incarnation=1)])
    journal.write([asked], [Refuse("r", "to", "conflict", "it holds work")])
    project(journal.entries)
    assert state_of("n1") == "lost"

    journal.write([asked], [Forget("n1", "id-n1")])
    project(journal.entries)
    assert list(NodeRecord.objects.values_list("name", flat=True)) == ["n2"]

    journal.write([a_node("n1", incarnation=2)])
    project(journal.entries)
    assert state_of("n1") == "ready"
