"""The page of decisions shows some at a time, filtered; what was chosen is in the address."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from contract.responses import DecisionDetails, DecisionsResponse
from tangram_web.dashboard.recent_decisions import PAGE
from tangram_web.lib import scheduler_client
from tangram_web.records.models import NodeRecord

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def a_decision(number: int, at: float, resource: str = "cpu:n1") -> DecisionDetails:
    return DecisionDetails(
        at, resource, "paper" if number % 2 else "malleable", [f"act_{number:05}"],
        {f"act_{number:05}": 2}, [], 3, 1.0, [], at="2026-11-20T12:00:00.000000Z",
    )  # fmt: skip


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[DecisionDetails]:
    """What the scheduler keeps, latest first; tests change it."""
    found = [a_decision(number, 1000.0 - number) for number in range(3 * PAGE)]
    monkeypatch.setattr(
        scheduler_client, "decisions", lambda limit: DecisionsResponse(found[:limit])
    )
    return found


@pytest.fixture
def browser(defaults: None, redis_bus: Any, kept: list[DecisionDetails]) -> Client:
    NodeRecord.objects.create(name="n1", pool="wide", joined_at=NOW, state="ready")
    client = Client()
    client.force_login(get_user_model().objects.create_user("ops", is_staff=True))
    return client


def shown(browser: Client, address: str) -> list[str]:
    page = browser.get(address).context["found"]
    return [one.view.candidates[0] for one in page.items]


def test_a_page_is_bounded_and_the_next_one_goes_on(browser: Client) -> None:
    first = browser.get("/decisions/").context["found"]

    following = shown(browser, f"/decisions/?{first.older}")

    assert len(first.items) == PAGE
    assert following == [f"act_{number:05}" for number in range(PAGE, 2 * PAGE)]


def test_pages_stay_put_while_decisions_arrive(
    browser: Client, kept: list[DecisionDetails]
) -> None:
    older = browser.get("/decisions/").context["found"].older
    before = shown(browser, f"/decisions/?{older}")

    kept[:0] = [a_decision(900 + number, 2000.0 - number) for number in range(7)]

    assert shown(browser, f"/decisions/?{older}") == before


def test_decisions_of_one_instant_are_on_one_page(
    browser: Client, kept: list[DecisionDetails]
) -> None:
    for number in range(PAGE - 1, PAGE + 3):
        kept[number].at_seconds = kept[PAGE - 1].at_seconds
    first = browser.get("/decisions/").context["found"]

    following = shown(browser, f"/decisions/?{first.older}")

    assert len(first.items) == PAGE + 3
    assert following[0] == f"act_{PAGE + 3:05}"


@pytest.mark.parametrize(
    ("query", "fits"),
    [
        ("policy=paper", lambda one: one.policy == "paper"),
        ("resource=gpu%3An9", lambda one: one.resource == "gpu:n9"),
        ("pool=wide", lambda one: one.resource == "cpu:n1"),
        ("pool=wide&policy=paper", lambda one: (one.resource, one.policy) == ("cpu:n1", "paper")),
    ],
    ids=["by policy", "by resource", "by pool", "by two"],
)
def test_a_filter_holds_on_every_page_and_in_the_file(
    browser: Client, kept: list[DecisionDetails], query: str, fits: Any
) -> None:
    kept[5:10] = [a_decision(number, 1000.0 - number, "gpu:n9") for number in range(5, 10)]
    wanted = [one.candidates[0] for one in kept if fits(one)]

    found, address = [], query
    while address:
        page = browser.get(f"/decisions/?{address}").context["found"]
        found += [one.view.candidates[0] for one in page.items]
        address = page.older
    file = browser.get(f"/export/decisions.csv?{query}").getvalue().decode()

    assert found == wanted
    assert len(list(csv.DictReader(io.StringIO(file)))) == len(wanted)


def test_chosen_filters_stay_chosen(browser: Client) -> None:
    text = browser.get("/decisions/?policy=paper").content.decode()

    assert '<option value="paper" selected>' in text
    assert "policy=paper&amp;before=" in text
    assert '<option value="wide">' in text


def test_a_limit_has_no_pool_even_where_a_node_has_its_name(
    browser: Client, kept: list[DecisionDetails]
) -> None:
    kept[:] = [a_decision(1, 1.0, "api:n1")]

    assert browser.get("/decisions/").context["found"].items[0].pool == ""


def test_a_page_whose_decisions_are_gone_leads_back(browser: Client) -> None:
    for query in ("policy=none", "before=1"):
        answer = browser.get(f"/decisions/?{query}")
        assert "No kept decision matches" in answer.content.decode()


@pytest.mark.parametrize("before", ["x", "nan", "\0", "1e999x"])
def test_invalid_input_is_refused_with_the_reason(browser: Client, before: str) -> None:
    answer = browser.get(f"/decisions/?before={quote(before)}")

    assert answer.status_code == 200
    assert "is not an instant of the journal" in answer.content.decode()
