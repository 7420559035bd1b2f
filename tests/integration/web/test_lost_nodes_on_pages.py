"""Every page has the banner of a lost node, of the problems that the Overview lists."""

from __future__ import annotations

from time import time
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from domain.events import NodeLost, NodeReturned
from domain.version import VERSION
from scheduler.runtime.liveness import show_life
from tangram_web.lib import bus
from tangram_web.live.frames import FrameFold
from tangram_web.live.topic_store import save_snapshots
from tangram_web.problems.facts import SystemFacts
from tangram_web.problems.judge import judge
from tangram_web.problems.kinds import KIND_OF
from tangram_web.problems.stored import ProblemStore, StoredProblems
from tangram_web.problems.thresholds import ProblemThresholds
from tests.unit.live.journal import Journal

pytestmark = pytest.mark.django_db


@pytest.fixture
def journal() -> Journal:
    """A node is lost with an action."""
    journal = Journal()
    journal.join("n1")
    journal.submit("a1")
    journal.grant("a1")
    journal.write([NodeLost(node="n1", incarnation=1)], [])
    return journal


def publish(client: Any, journal: Journal) -> None:
    """Publish the frames of a journal, and the problems that they show."""
    fold = FrameFold()
    for entry in journal.entries:
        fold.fold(entry)
    frames = fold.frames(journal.at)
    save_snapshots(client, bus.keys().prefix, frames.values())
    facts = SystemFacts(now=time(), nodes=fold.node_rows(), overview=frames["overview"].body)
    problems = ProblemStore(client, bus.keys()).load().problems
    for now in (facts.now, facts.now + KIND_OF["node_lost"].clear_seconds):
        problems = judge(facts, problems, now, ProblemThresholds())
    ProblemStore(client, bus.keys()).save(StoredProblems(at=facts.now, problems=problems))


@pytest.fixture
def browser(defaults: None, redis_bus: Any) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    return client


def test_a_page_without_live_data_has_the_banner_until_the_node_returns(
    browser: Client, redis_bus: Any, journal: Journal
) -> None:
    publish(redis_bus, journal)
    text = browser.get("/glossary/").content.decode()
    assert "1 critical problem holds up 1 action: node n1 lost." in text
    overview = browser.get("/").content.decode()
    assert "Node n1 is lost" in overview
    assert "It held 1 action: 1 still with it" in overview

    journal.write([NodeReturned(node="n1", incarnation=1)], [])
    publish(redis_bus, journal)

    assert "node n1 lost" not in browser.get("/glossary/").content.decode()


def test_the_page_of_workers_lists_a_lost_node_and_its_loss_after_the_return(
    browser: Client, redis_bus: Any, journal: Journal
) -> None:
    publish(redis_bus, journal)
    text = browser.get("/workers/").content.decode()
    assert 'data-is="lost"' in text

    journal.write([NodeReturned(node="n1", incarnation=1)], [])
    journal.finish("a1")
    publish(redis_bus, journal)

    assert "It held 1 action: 1 completed." in browser.get("/workers/").content.decode()


def test_the_page_of_workers_says_how_far_a_standby_is_behind(
    browser: Client, redis_bus: Any
) -> None:
    keys = bus.keys()
    show_life(redis_bus, keys, "loop@a", "standby", behind_seconds=0.25, cold="")
    show_life(redis_bus, keys, "loop@b", "standby", behind_seconds=None, cold="entry 7-0 differs")
    show_life(redis_bus, keys, "loop@c", "standby")  # of an earlier version
    text = browser.get("/workers/").content.decode()
    assert text.count("behind the leader") == 1
    assert "250 ms behind the leader" in text
    assert "keeps no state: entry 7-0 differs" in text


def test_a_node_of_another_version_is_pointed_out(browser: Client, redis_bus: Any) -> None:
    journal = Journal()
    journal.join("old", version="0.0.9")
    journal.join("same", version=VERSION)
    publish(redis_bus, journal)

    text = browser.get("/workers/").content.decode()

    assert text.count('data-is="differs"') == 1
    assert f"differs from {VERSION}" in text


def test_the_banner_is_not_shown_without_access(redis_bus: Any, journal: Journal) -> None:
    publish(redis_bus, journal)

    assert "node n1 lost" not in Client().get("/login/", follow=True).content.decode()
