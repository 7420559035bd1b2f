"""Rollouts in Chromium over a running stack: lanes, one rollout with turns and a patch, groups, backends, and live updates."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from rollout.ports import Record
from scheduler.runtime.rollouts.log_store import RolloutLogs
from tests.acceptance.browser.conftest import DESK, PHONE, Open
from tests.acceptance.browser.pages import fits, until
from tests.acceptance.browser.test_console_is_accessible import violations
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PATCH = b"diff --git a/sums.py b/sums.py\n--- a/sums.py\n+++ b/sums.py\n@@ -1 +1 @@\n-return a - b\n+return a + b\n"


def submit(tangram: Tangram, **fields: Any) -> list[str]:
    body = {"task": "pages", "handler": "noop", "instances": [{"id": "sum-1"}], **fields}
    made: list[dict[str, str]] = tangram.post("/api/v1/rollouts", body)["rollouts"]
    return [each["id"] for each in made]


def finished(tangram: Tangram, rollout: str) -> Any:
    found = tangram.get(f"/api/v1/rollouts/{rollout}?wait=60")
    while found["state"] != "finished":
        found = tangram.get(f"/api/v1/rollouts/{rollout}?wait=60")
    return found


@pytest.fixture(scope="module")
def samples(tangram: Tangram) -> list[str]:
    """Eight samples of one instance, of which one failed; the log of the first has a turn and a patch."""
    made = submit(tangram, samples=7, group="pages-1")
    failed = submit(tangram, group="pages-1", options={"reward": "nonsense"})
    for each in (*made, *failed):
        finished(tangram, each)
    [folder] = tangram.home.rglob(f"rollouts/{made[0]}")
    logs = RolloutLogs(folder.parent)
    count = len(logs.read(made[0]))
    message = {"content": "I change the sign.", "tool_calls": [
        {"function": {"name": "bash", "arguments": '{"command": "pytest -q"}'}}]}  # fmt: skip
    header = {"message": message, "weights_version": 1, "backend": "b1", "prompt_tokens": 40,
              "response_tokens": 12, "extra": {"finish": "stop", "follows": None}}  # fmt: skip
    turn = Record("turn", header, {"logprobs": struct.pack("<12f", *(-0.1 * n for n in range(12)))})
    logs.append(made[0], 99, count, turn)
    patch = Record("artefact", {"name": "change.patch"}, {"content": PATCH})
    logs.append(made[0], 99, count + 1, patch)
    return [*made, *failed]


def shown(page: Page, rollout: str) -> None:
    until(page, f"/rollouts/{rollout}/", lambda p: "finished" in p.inner_text("main .titled"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_one_rollout_shows_turns_tokens_and_its_patch_on_each_screen(
    open_page: Open, samples: list[str], scheme: str
) -> None:
    page = open_page("/rollouts/", color_scheme=scheme, reduced_motion="reduce")
    shown(page, samples[0])
    expect(page.locator("#turns")).to_contain_text("I change the sign.")
    expect(page.locator("#turns .turn svg.tokens rect")).to_have_count(13)
    expect(page.locator("#artefacts .diff .add")).to_have_text("+return a + b")
    expect(page.locator("#stages")).to_contain_text("EVAL")
    assert violations(page) == []
    for size in (PHONE, DESK):
        page.set_viewport_size(ViewportSize(width=size["width"], height=size["height"]))
        assert fits(page), size
    with page.expect_download() as begun:
        page.get_by_role("link", name="Download", exact=True).click()
    assert begun.value.path().read_bytes() == PATCH
    page.locator("#group a").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("rol_")


def test_a_failed_sample_says_what_to_do_and_its_group_shows_it(
    open_page: Open, samples: list[str]
) -> None:
    page = open_page("/rollouts/")
    shown(page, samples[-1])
    expect(page.locator("#cure")).to_contain_text("submit the instance again")
    until(page, "/rollouts/groups/?group=pages-1", lambda p: "8 of 8" in p.inner_text("main"))
    row = page.locator("#rows tbody tr")
    expect(row).to_have_count(1)
    expect(row.locator("rect.reward")).to_have_count(7)
    expect(row.locator("rect.failed")).to_have_count(1)
    expect(row).to_contain_text("wasted")
    assert violations(page) == []


def test_a_rollout_without_a_backend_waits_with_the_reason_and_the_page_follows_its_cancel(
    open_page: Open, tangram: Tangram
) -> None:
    [waits] = submit(tangram, llm="pages-none")
    page = open_page("/rollouts/")
    lane = page.locator("[data-lane=run]")
    expect(
        lane.locator(f"a[title={waits}]")
    ).to_be_visible()  # by itself: the page is not loaded again
    expect(lane).to_contain_text("backend")
    until(page, f"/rollouts/{waits}/", lambda p: p.locator("#why").count() > 0)
    expect(page.locator("#why")).to_contain_text("RUN waits for its lease")
    tangram.post(f"/api/v1/rollouts/{waits}/cancel", {})
    expect(page.locator(".titled .chip[data-is=cancelled]")).to_be_visible()
    expect(page.locator("#cure")).to_contain_text("It was cancelled")


def test_backends_show_seats_and_a_new_one_appears(open_page: Open, tangram: Tangram) -> None:
    page = open_page("/rollouts/backends/")
    added = {"pool": "pages-llm", "name": "b1", "address": "http://127.0.0.1:9", "seats": 4}
    tangram.post("/api/v1/backends", added)
    pool = page.locator("[data-pool=pages-llm]")
    expect(pool).to_contain_text("0 of 4 taken")
    tangram.post("/api/v1/backends/pages-llm/b1/drain", {})
    expect(pool.locator("td .chip[data-is=drained]")).to_be_visible()
    assert violations(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert fits(page)
    tangram.request("DELETE", "/api/v1/backends/pages-llm/b1", {})
    expect(pool.locator("table")).to_have_count(0)
