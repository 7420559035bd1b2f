"""The page of a running command shows what it prints, while it prints it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.acceptance.browser.conftest import Open
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = "echo first; echo warning >&2; until [ -e go ]; do sleep 0.05; done; echo 'the last line'"


def test_the_page_follows_a_command_to_its_end(open_page: Open, tangram: Tangram) -> None:
    action = {
        "task": "page",
        "trajectory": "followed",
        "kind": "exec",
        "cost": {"cpu": 0.1},
        "exec": {"command": ["sh", "-c", SCRIPT]},
    }
    accepted = tangram.post("/api/v1/actions", action)
    # The page exists once the projector has written the row.
    while accepted["id"] not in str(tangram.get("/api/v1/actions?task=page")):
        pass
    page = open_page(f"/actions/{accepted['id']}/")
    expect(page.locator("#live-output pre[data-stream=stdout]")).to_have_text("first\n")
    expect(page.locator("#live-output pre[data-stream=stderr]")).to_have_text("warning\n")
    tangram.request("PUT", "/api/v1/trajectories/followed/files/go", {})
    expect(page.locator("#kept-output pre").first).to_have_text("first\nthe last line\n")
    expect(page.locator("#live-output")).to_be_hidden()

    output = page.locator("#kept-output tg-output").first
    output.get_by_label("Find in standard output").fill("L")
    expect(output.get_by_role("status")).to_have_text("1 of 2")
    output.get_by_label("Find in standard output").press("Enter")
    expect(output.get_by_role("status")).to_have_text("2 of 2")
    marked = page.evaluate("[...CSS.highlights.get('found')].map(String)")
    assert marked == ["l", "l"]
    output.get_by_role("button", name="Wrap lines").click()
    assert output.locator("pre").evaluate("each => getComputedStyle(each).whiteSpace") == "pre"
    with page.expect_download() as begun:
        output.get_by_role("button", name="Raw text").click()
    assert begun.value.path().read_text() == "first\nthe last line\n"
