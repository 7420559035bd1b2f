"""The worker that projects the journal fills the outbox of webhooks."""

from __future__ import annotations

from threading import Event as Stop
from typing import Any

import pytest

from domain.events import NodeLost
from tangram_web import journal_consumers
from tangram_web.webhooks.models import Delivery, Endpoint
from tangram_web.webhooks.signing import new_secret
from tests.integration.web.journal import Journal


@pytest.fixture
def endpoint(defaults: None) -> Endpoint:
    return Endpoint.objects.create(
        project_id="default",
        url="https://hooks.example.com/",
        events=["node.lost", "breaker.opened"],
        secret=new_secret(),
    )


def test_entries_that_the_projector_consumes_are_sent(endpoint, redis_bus, monkeypatch):
    consumers: list[Any] = []

    class Consumer:
        def __init__(self, *given: Any, **_: Any) -> None:
            consumers.append(given[4])

        def run(self, stop: Stop) -> None:
            pass

    monkeypatch.setattr(journal_consumers, "JournalConsumer", Consumer)
    journal_consumers.projector(Stop())
    journal = Journal()
    journal.write([NodeLost(node="n1", incarnation=1)])

    consumers[0](journal.entries)

    assert Delivery.objects.get().subject == "node/n1"
