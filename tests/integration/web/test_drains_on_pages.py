"""Nodes and parts says what a drain has moved, and what it waits for."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from domain.events import ConfigApplied
from domain.inventory import Config
from tangram_web.lib import scheduler_client
from tests.integration.web.test_lost_nodes_on_pages import publish
from tests.unit.live.journal import Journal

pytestmark = pytest.mark.django_db
SAID = "3 of 7 trajectories were moved, 4 hold a process"


@pytest.mark.parametrize("says", [True, False], ids=["this version", "a loop that says nothing"])
def test_the_row_of_a_draining_node_says_what_it_waits_for(
    defaults: None, redis_bus: Any, monkeypatch: pytest.MonkeyPatch, says: bool
) -> None:
    journal = Journal()
    journal.join("n1")
    names = frozenset({"n1"})
    config = Config(revision=9, drained_nodes=names, finishing_nodes=names)
    journal.write([ConfigApplied(config=config)], [])
    publish(redis_bus, journal)
    node: dict[str, Any] = {"name": "n1"} | ({"drain": {"text": SAID}} if says else {})
    passes = {"p50": 0.001, "p99": 0.002}
    status = {"nodes": [node], "pass_seconds": passes, "cycle_seconds": passes}
    monkeypatch.setattr(scheduler_client, "status", lambda: status)
    browser = Client()
    browser.force_login(get_user_model().objects.create_user("ops", is_staff=True))

    page = browser.get(reverse("dashboard:workers")).content.decode()

    assert "its trajectories finish" in page
    assert (SAID in page) == says
