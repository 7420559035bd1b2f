"""The benchmark of first paint opens every page of the site map, and each page answers on its rows."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import resolve

from benchmarks import first_paint
from benchmarks.million import fill
from tangram_web.lib import scheduler_client
from tangram_web.pools import services
from tests.page_addresses import HTML_PAGES

ACTIONS = 400
#: Pages of objects that the rows of the benchmark lack.
NOT_MEASURED = {
    "problems:acknowledge", "rollouts:one", "fleets:one", "parallelism:one", "operations:done",
    "simulations:one", "webhooks:one",
}  # fmt: skip


def test_every_page_is_measured_or_named_as_one_without_an_object() -> None:
    measured = {
        resolve(address.partition("?")[0]).view_name
        for address in first_paint.pages(ACTIONS).values()
    }

    assert {page.name for page in HTML_PAGES} - measured == NOT_MEASURED


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_each_measured_page_answers(redis_bus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 0.01)
    services.ensure_defaults()
    fill(ACTIONS)

    asked = first_paint.ask_all(ACTIONS)

    assert list(asked) == list(first_paint.pages(ACTIONS))
    assert asked["Tasks"]["queries"] > 0
