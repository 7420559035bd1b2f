"""The page of a waiting action follows it, from why it waits to its end, without being reloaded."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.acceptance.browser.conftest import Open
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_it_says_why_until_it_runs_and_then_what_it_got(open_page: Open, tangram: Tangram) -> None:
    lease = {
        "task": "page",
        "kind": "lease",
        "cost": {"api:demo": 8},
        "lease": {"ttl_seconds": 600},
    }
    first = tangram.hold(lease)
    second = tangram.post("/api/v1/actions", lease)
    # The page exists once the projector has written the row.
    while second["id"] not in str(tangram.get("/api/v1/actions?task=page")):
        pass
    page = open_page(f"/actions/{second['id']}/")
    expect(page.locator("#why")).to_contain_text("waits for 8 of api:demo")
    expect(page.get_by_role("heading", name="How it can start")).to_be_visible()

    tangram.post(f"/api/v1/leases/{first['id']}/release", {})

    expect(page.locator(".outcome-strip .chip").first).to_have_text("running")
    expect(page.locator("#why")).to_have_count(0)
    tangram.post(f"/api/v1/leases/{second['id']}/release", {})
    expect(page.locator(".outcome-strip .chip").first).to_have_text("completed")
    expect(page.get_by_role("button", name="Save “Phases” as PNG")).to_have_count(1)
