"""The page of a trajectory shows the sessions and programs of its environment, and to its members alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.acceptance.browser.conftest import Open, run
from tests.acceptance.browser.pages import fits
from tests.acceptance.browser.people import WORD, sign_in
from tests.acceptance.browser.test_console_is_accessible import violations
from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = "/trajectories/default/lived/"
MAKE = f"""
from django.contrib.auth import get_user_model
from tangram_web.accounts.models import Membership
user = get_user_model().objects.create_user("grace", password={WORD!r})
Membership.objects.create(user=user, project_id="elsewhere", role="viewer")
"""


@pytest.fixture(scope="module")
def lived(tangram: Tangram) -> str:
    """An environment with a session, a program in the background and a fork; the id of its action."""
    leaves = "exec sleep 900 >/dev/null 2>&1 &"
    action = run(tangram, "sh", "-c", leaves, trajectory="lived")
    # The directory of the background program is in the tree: without a copy the fork is refused.
    forks = {"from": "lived", "names": ["lived-fork"], "on_busy": "copy"}
    tangram.post("/api/v1/trajectories", forks)
    tangram.post("/api/v1/trajectories/lived/sessions", {"name": "console", "shell": "sh"})
    return str(action["id"])


def expect_contents(page: Page, action_id: str) -> None:
    panel = page.locator("#environment")
    expect(panel.locator("[data-is=state] .chip")).to_have_text("running")
    session = panel.locator("#sessions tbody tr")
    expect(session).to_have_count(1)
    expect(session).to_contain_text("console")
    expect(session).to_contain_text("idle")
    program = panel.locator("#programs tbody tr", has_text="sleep 900")
    expect(program).to_contain_text("background")
    expect(program.get_by_role("link")).to_have_attribute("href", f"/actions/{action_id}/")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_sessions_and_background_programs_are_on_the_page(
    open_page: Open, lived: str, scheme: str
) -> None:
    page = open_page(PAGE, color_scheme=scheme)
    expect_contents(page, lived)
    expect(page.locator("#environment code")).to_have_text("tangram shell lived --project default")
    assert violations(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert fits(page)
    page.get_by_role("link", name="lived-fork", exact=True).click()
    expect(page.locator("#environment").get_by_role("link", name="lived")).to_be_visible()


def test_the_page_keeps_its_contents_while_the_node_does_not_answer(
    open_page: Open, lived: str, complaints: list[str]
) -> None:
    page = open_page(PAGE)
    expect_contents(page, lived)

    def refuse(route: Route) -> None:
        route.fulfill(status=503, json={"detail": "the node does not answer"})

    page.route("**/live/environment/**", refuse)
    note = page.locator("#environment [data-is=note]")
    expect(note).to_have_text("not known now: the node does not answer")
    expect_contents(page, lived)
    page.unroute("**/live/environment/**")
    expect(note).to_contain_text("as of")
    complaints.clear()  # the browser reports each 503


def test_a_session_that_ends_is_shown_with_its_status(
    open_page: Open, tangram: Tangram, lived: str
) -> None:
    tangram.post("/api/v1/trajectories/lived/sessions", {"name": "brief", "shell": ["sh", "-c", "exit 7"]})  # fmt: skip
    page = open_page(PAGE)
    row = page.locator("#sessions tbody tr", has_text="brief")
    expect(row).to_contain_text("ended with 7")
    tangram.request("DELETE", "/api/v1/trajectories/lived/sessions/brief", {})
    expect(row).to_have_count(0)


def test_members_of_another_project_get_404(browser: Browser, tangram: Tangram, lived: str) -> None:
    tangram.post("/api/v1/projects", {"name": "elsewhere", "default_pool": "default"})
    subprocess.run(
        [sys.executable, "manage.py", "shell", "-c", MAKE], cwd=ROOT, check=True,
        env={**os.environ, "TANGRAM_HOME": str(tangram.home)},
    )  # fmt: skip
    context = browser.new_context()
    page = sign_in(context, tangram, "grace")
    for path in (PAGE, "/live/environment/default/lived"):
        assert page.request.get(tangram.access["url"] + path).status == 404
    context.close()
