"""Self-service in Chromium over a running stack: compare policies, make a token."""

from __future__ import annotations

import json
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import expect

from tests.acceptance.browser.conftest import Open, run
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_live_window_is_compared_and_the_result_kept(open_page: Open, tangram: Tangram) -> None:
    run(tangram, "true", trajectory="window-1")
    page = open_page("/simulate/?workload=recorded&policies=minimum&policies=balanced")
    page.get_by_label("Title").fill("What if?")
    page.get_by_role("button", name="Simulate").click()

    expect(page.locator("h1")).to_have_text("What if?")
    # The page fetches itself again while the simulation waits and runs.
    expect(page.locator(".titled .chip")).to_have_text("finished")
    expect(page.locator("table.numbers tbody tr")).to_have_count(2)
    expect(page.locator(".plot svg")).to_have_count(2)
    with page.expect_download() as begun:
        page.get_by_role("link", name="JSON").click()
    kept = json.loads(begun.value.path().read_text())
    assert kept["outcome"]["simulated"] is True
    page.get_by_role("button", name="Delete").click()
    expect(page.locator("h1")).to_have_text("Simulate")
    expect(page.get_by_role("link", name="What if?")).to_have_count(0)


def test_a_token_works_once_made_and_not_once_revoked(open_page: Open, tangram: Tangram) -> None:
    page = open_page("/people/tokens/")
    page.get_by_label("Name").fill("from a page")
    page.get_by_role("button", name="Create").click()
    token = page.locator("#token").inner_text()
    headers = {"Authorization": f"Bearer {token}"}
    with urlopen(Request(f"{tangram.access['url']}/api/v1/pools", headers=headers)) as answer:
        assert answer.status == 200

    page.get_by_role("button", name="Revoke from a page").click()
    expect(page.get_by_role("status")).to_contain_text("is revoked")
    expect(page.get_by_role("button", name="Revoke from a page")).to_have_count(0)
