"""A member of one project in Chromium over a running stack: pages of that project alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.acceptance.browser.conftest import run
from tests.acceptance.browser.pages import PATIENCE_MS
from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WORD = "correct horse battery"
MAKE = f"""
from django.contrib.auth import get_user_model
from tangram_web.accounts.models import Membership
user = get_user_model().objects.create_user("ada", password={WORD!r})
Membership.objects.create(user=user, project_id="lab", role="viewer")
"""


@pytest.fixture(scope="module")
def member(browser: Browser, tangram: Tangram) -> Iterator[Page]:
    """A page of a signed-in viewer of the project ``lab``."""
    tangram.post("/api/v1/projects", {"name": "lab", "default_pool": "default"})
    subprocess.run(
        [sys.executable, "manage.py", "shell", "-c", MAKE], cwd=ROOT, check=True,
        env={**os.environ, "TANGRAM_HOME": str(tangram.home)},
    )  # fmt: skip
    context = browser.new_context(viewport={"width": 1360, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(f"{tangram.access['url']}/login/")
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill(WORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_title("Overview · Tangram")
    yield page
    context.close()


def test_the_overview_is_live_and_of_the_project_alone(member: Page, tangram: Tangram) -> None:
    expect(member.locator("tg-live")).to_have_attribute("data-is", "live")
    theirs = run(tangram, "true", task="theirs")
    ours = run(tangram, "true", project="lab", task="ours")

    finished = member.locator("#finished")
    expect(finished.get_by_role("link", name=ours["id"][-8:])).to_be_visible()
    expect(finished.get_by_text("ours", exact=True)).to_be_visible()
    expect(finished.get_by_role("link", name=theirs["id"][-8:])).to_have_count(0)
    expect(member.locator('#resources tr[data-id="pool/default"] .note')).to_have_text("1 node")


def test_the_overview_looks_back_at_the_project_alone(member: Page, tangram: Tangram) -> None:
    run(tangram, "true", task="theirs")
    run(tangram, "true", project="lab", task="ours")
    member.goto(f"{tangram.access['url']}/")
    member.get_by_role("link", name="15 min", exact=True).click()

    expect(member).to_have_url(re.compile(r"range=900&project=lab$"))
    expect(member.locator("#range-note")).to_have_text("")
    lately, total = (
        member.locator("#outcomes tbody tr", has_text="Completed").locator("td").nth(column)
        for column in (1, 2)
    )
    # Fifteen seconds must be complete, and the page asks every fifteen.
    expect(lately).not_to_have_text("0", timeout=4 * PATIENCE_MS)
    expect(total).not_to_have_text("0")
    answer = member.request.get(f"{tangram.access['url']}/history.json?range=900")
    mine = member.request.get(f"{tangram.access['url']}/export/actions.csv?state=finished").text()
    assert 1 <= answer.json()["whole"]["finished"] <= len(mine.splitlines()) - 1


def test_units_of_other_projects_are_grey_and_unnamed_on_the_map(
    member: Page, tangram: Tangram
) -> None:
    body = {"task": "theirs", "kind": "lease", "cost": {"cpu": 1}, "lease": {"ttl_seconds": 600}}
    theirs = tangram.hold(body)
    ours = tangram.hold({**body, "project": "lab", "task": "ours"})

    member.goto(f"{tangram.access['url']}/cpu/")

    expect(member.locator("#holders").get_by_role("link", name=ours["id"][-8:])).to_be_visible()
    expect(member.locator("#maps .counts")).to_contain_text("held by other projects")
    expect(member.get_by_text(theirs["id"][-8:])).to_have_count(0)
    for each in (theirs, ours):
        tangram.post(f"/api/v1/leases/{each['id']}/release", {})


def test_links_lead_to_what_opens(member: Page, tangram: Tangram) -> None:
    member.goto(f"{tangram.access['url']}/queues/")
    addresses = member.locator("nav.side a").evaluate_all("links => links.map(link => link.href)")
    assert len(addresses) > 8
    for address in addresses:
        answer = member.request.get(address)
        assert answer.status == 200, address
