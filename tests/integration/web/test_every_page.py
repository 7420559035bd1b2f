"""Every page of the site map: its readers, its queries, its answer to nonsense, and a page added."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import clear_url_caches

from tangram_web import site_map, urls
from tangram_web.accounts.models import Membership, Role
from tangram_web.dashboard.pages import Access, ConsolePage, NavigationGroup
from tangram_web.lib import scheduler_client
from tests.integration.web.site import PARAMETERS, rollout_log, rows, singles, site_address
from tests.page_addresses import HTML_PAGES, READ_PAGES, parameters_of
from tests.tiers import by_tier

ICONS = Path(site_map.__file__).parents[1] / "frontend" / "icons.svg"
BASELINE = Path(__file__).with_name("query_counts.json")
MARKUP = "</script><svg onload=alert(1)>\"'"
LONG = "x" * 10_000
NONSENSE = (LONG, MARKUP, "\0", "%", "../../etc/passwd", "' OR 1=1 --", "\u202e\ud7ff", "-1", "NaN",
            "2026-13-45T00:00:00Z", "0001-01-01T00:00:00+14:00")  # fmt: skip
FIELDS = ("project", "username", "role", "name", "days", "scopes", "workload", "window", "policies",
          "batch", "seeds", "title", "pasted", "url", "events", "confirm", "session", "state",
          "enabled", "rewards", "task", "trajectory", "outcome", "before", "action", "range", "to", "trend",
          "at", "target", "kind", "policy", "resource", "pool", "actor", "since",
          "lane", "group", "instance", "handler", "worker", "llm", "turn",
          "q", "add", "sort", "after", "columns", "typed", "ids", "verb", "query", "order", "a", "b", "back", "text",
          "place", "key")  # fmt: skip
#: Pages that need an admin of every project.
ADMIN_ONLY = {"configuration:edit"}
#: Pages without an answer for the rows of these tests: a link that was used, no GPU history.
NO_ANSWER = {"dashboard:enter": 403, "dashboard:gpu-past": 404}

every_page = pytest.mark.parametrize("page", READ_PAGES, ids=lambda page: page.name)


@pytest.fixture(autouse=True)
def site(
    defaults: None, redis_bus: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Any
) -> None:
    # The scheduler does not answer: a question to it is no database query.
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 0.01)
    settings.TANGRAM_BODIES_DIRECTORY = str(tmp_path)
    rollout_log(tmp_path)
    singles()
    rows(0, 20)


def browser(name: str = "", role: Role | None = None, **rights: Any) -> Client:
    """Return a browser; signed in with an account of that name, if it has one."""
    client = Client()
    if name:
        user = get_user_model().objects.create_user(name, **rights)
        if role is not None:
            Membership.objects.create(user=user, project_id="default", role=role)
        client.force_login(user)
    return client


@every_page
def test_a_page_opens_for_its_readers_and_is_refused_to_others(page: ConsolePage) -> None:
    address, served = site_address(page), NO_ANSWER.get(page.name, 200)
    public, signed_in = page.access is Access.PUBLIC, page.access is Access.SIGNED_IN
    every_project = page.access is Access.ALL_PROJECTS
    admins = page.name in ADMIN_ONLY

    anonymous = browser().get(address)
    assert anonymous.status_code == (served if public else 302)
    assert public or "/login/" in anonymous["Location"]
    stranger = browser("stranger").get(address)
    assert stranger.status_code == (served if public or signed_in else 403)
    member = browser("member", Role.ADMIN).get(address)
    expected = 403 if every_project or admins else served
    assert member.status_code == expected
    staff = browser("staff", is_staff=True).get(address)
    assert staff.status_code == (403 if admins else served)
    root = browser("root", is_staff=True, is_superuser=True).get(address)
    assert root.status_code == served
    if page in HTML_PAGES:
        assert b" \xc2\xb7 Tangram</title>" in root.content
        assert root.content.count(b'aria-current="page"') == 1
        assert page.purpose.encode() in root.content


@pytest.mark.parametrize(
    "page", [page for page in site_map.PAGES if page not in READ_PAGES], ids=lambda page: page.name
)
def test_a_button_is_refused_to_strangers_and_takes_no_get(page: ConsolePage) -> None:
    address = site_address(page)

    assert browser().post(address).status_code == 302
    stranger = browser("stranger")
    assert stranger.post(address).status_code == (302 if page.access is Access.SIGNED_IN else 403)
    assert stranger.get(address).status_code == 405


def count_of(client: Client, page: ConsolePage) -> int:
    with CaptureQueriesContext(connection) as queries:
        answer = client.get(site_address(page))
        assert answer.status_code == NO_ANSWER.get(page.name, 200)
        if answer.streaming:
            b"".join(answer.streaming_content)  # type: ignore[attr-defined]
    return len(queries)


def test_pages_ask_as_often_as_the_baseline_says() -> None:
    """A count may go down. ``RECORD_QUERY_COUNTS=1`` writes `query_counts.json`."""
    client = browser("root", is_staff=True, is_superuser=True)
    counts = {page.name: count_of(client, page) for page in READ_PAGES}
    if os.environ.get("RECORD_QUERY_COUNTS"):
        BASELINE.write_text(json.dumps(counts, indent=2) + "\n")

    assert counts == json.loads(BASELINE.read_text())


@every_page
def test_more_rows_are_not_more_queries(page: ConsolePage) -> None:
    client = browser("root", is_staff=True, is_superuser=True)
    few = count_of(client, page)
    rows(20, 120)

    assert count_of(client, page) == few


def addresses_of_nonsense(page: ConsolePage, text: str) -> Iterator[str]:
    """Yield the address of ``page`` with ``text`` for each parameter of its path in turn."""
    for name in parameters_of(page):
        safe = "" if f"path:{name}" not in page.path else "/"
        path = site_address(page).partition("?")[0]
        known = PARAMETERS.get(name)
        if known is not None:
            yield path.replace(known, quote(text, safe=safe))


@pytest.mark.parametrize("page", site_map.PAGES, ids=lambda page: page.name)
def test_nonsense_is_answered_and_never_becomes_markup(page: ConsolePage) -> None:
    client = browser("root", is_staff=True, is_superuser=True)
    address = site_address(page).partition("?")[0]
    # Pages share what reads their parameters: each gets some of the texts, and all of them with --long.
    every = by_tier(4, 4, 1)
    for text in NONSENSE[site_map.PAGES.index(page) % every :: every]:
        sent = dict.fromkeys(FIELDS, text)
        answers = [client.get(address, sent), client.get(address, {**sent, "project": "default"})]
        if "POST" in page.methods:
            answers += [
                client.post(address, sent),
                client.post(address, {**sent, "project": "default"}),
            ]
        for unknown in addresses_of_nonsense(page, text):
            missing = client.get(unknown)
            assert missing.status_code in (404, 405), unknown[:80]
            answers.append(missing)
        for answer in answers:
            assert answer.status_code < 500, text[:40]
            assert MARKUP.encode() not in answer.getvalue(), text[:40]


def hello(request: HttpRequest) -> dict[str, str]:
    return {"title": "Hello", "cure": "Served."}


def test_a_page_is_added_by_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    page = ConsolePage(
        name="dashboard:hello", path="hello/", title="Hello", key="h", group=NavigationGroup.MANAGE, icon="book",
        access=Access.ALL_PROJECTS, view=hello, template="dashboard/refused.html",
    )  # fmt: skip
    monkeypatch.setattr(site_map, "PAGES", [*site_map.PAGES, page])
    try:
        importlib.reload(urls)
        clear_url_caches()
        member, staff = browser("member", Role.VIEWER), browser("staff", is_staff=True)

        assert b"Served." in staff.get("/hello/").content
        link = b'<a href="/hello/" data-key="h"><svg class="i" aria-hidden="true"><use href="/static/icons.svg#book"/></svg>Hello</a>'
        assert link in staff.get("/queues/").content
        assert browser().get("/hello/").status_code == 302
        assert member.get("/hello/").status_code == 403
        assert b"/hello/" not in member.get("/queues/").content
        assert staff.post("/hello/").status_code == 405
    finally:
        monkeypatch.undo()
        importlib.reload(urls)
        clear_url_caches()


def test_every_page_with_a_title_says_its_purpose_in_one_sentence() -> None:
    symbols = set(re.findall(r'<symbol id="(\w+)"', ICONS.read_text()))
    for page in site_map.PAGES:
        assert bool(page.title) == bool(page.purpose), page.name
        assert page.icon in symbols, page.name
        if page.purpose:
            assert re.fullmatch(r"[A-Z][^.]{10,105}\.", page.purpose), page.purpose


def test_every_view_is_reached_through_the_site_map() -> None:
    assert all(callable(page.view) for page in site_map.PAGES)
    names = [page.name for page in site_map.PAGES]
    assert len(names) == len(set(names))
    sections = {page.section for page in site_map.PAGES if page.section}
    assert sections <= {page.name for page in site_map.PAGES if page.group}


def test_a_response_of_a_view_is_passed_on() -> None:
    page = ConsolePage(
        name="a:b", path="b/", access=Access.PUBLIC, view=lambda _: HttpResponse("whole")
    )
    request = HttpRequest()
    request.method = "GET"

    assert page.handler()(request).content == b"whole"
