"""Two incidents with short thresholds, each solved from the Overview with at most three clicks within half a minute.

They have a Tangram of their own: its thresholds are seconds where they are minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.browser.conftest import Open
from tests.acceptance.browser.pages import PATIENCE_MS, audited, press, problem_on, visit
from tests.acceptance.up.conftest import Tangram
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

THRESHOLDS: Final = {
    "BLOCKED_SECONDS": "3", "SLOW_WINDOW_SECONDS": "20", "SLOW_EARLIER_SECONDS": "5",
    "SLOW_EARLIER_ACTIONS": "20", "SLOW_ACTIONS": "5",
}  # fmt: skip
SLOW: Final = "family_slow:default/suite/unit"
MOST_CLICKS: Final = 3
MOST_SECONDS: Final = 30.0
#: Counts clicks over the pages of a tab.
COUNTER: Final = "addEventListener('click', () => { sessionStorage.clicks = Number(sessionStorage.clicks ?? 0) + 1; }, true)"


@pytest.fixture(scope="module")
def tangram(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tangram]:
    home = tmp_path_factory.mktemp("drills") / "home"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in THRESHOLDS.items():
            patch.setenv(f"TANGRAM_PROBLEM_{name}", value)
        running = Tangram(home, "--no-demo", "--port", str(free_port()))
    running.wait_until_ready()
    yield running
    assert running.end() == 0


@pytest.fixture(scope="module")
def cookies() -> dict[str, Any]:
    """What signing in to this Tangram left."""
    return {}


@contextmanager
def solved(page: Page) -> Iterator[None]:
    """What is done within takes few clicks and little time."""
    page.evaluate("sessionStorage.clicks = 0")
    began = monotonic()
    yield
    assert monotonic() - began <= MOST_SECONDS
    assert 0 < int(page.evaluate("sessionStorage.clicks")) <= MOST_CLICKS


def overview(open_page: Open) -> Page:
    """The Overview in a tab that counts clicks."""
    page = open_page("/")
    page.add_init_script(COUNTER)
    visit(page, "/")
    return page


def commands(tangram: Tangram, count: int, *command: str) -> list[str]:
    """Submit commands of one family; return their ids."""
    one = {"task": "suite", "family": "unit", "kind": "exec", "cost": {"cpu": 0.1}}
    body = {"actions": [{**one, "exec": {"command": command}}] * count}
    return [each["id"] for each in tangram.post("/api/v1/actions/batch", body)["items"]]


def finish(tangram: Tangram, ids: list[str]) -> None:
    """Return once the actions have ended."""
    for each in ids:
        action = tangram.get(f"/api/v1/actions/{each}?wait=120")
        assert action["outcome"] == "completed", action


def test_a_command_family_becomes_slow(open_page: Open, tangram: Tangram) -> None:
    page = overview(open_page)
    for _ in range(6):
        finish(tangram, commands(tangram, 50, "true"))
    page.wait_for_timeout(28_000)  # until they are earlier history

    # The fault: each command of the family takes seconds.
    problem = page.locator(f'.problem[data-id="{SLOW}"]')
    until = monotonic() + PATIENCE_MS / 1000
    while not problem.is_visible():
        assert monotonic() < until, page.inner_text("main")
        finish(tangram, commands(tangram, 8, "sleep", "4"))
    expect(problem.locator(".title")).to_contain_text("Commands of family unit run")
    expect(problem).to_contain_text("Task suite: the median of 20 s is")
    expect(problem.locator(".owner")).to_contain_text("task suite")

    with solved(page):
        press(problem, "Pause task…")
        page.get_by_role("button", name="Pause", exact=True).click()
        expect(page.get_by_role("heading", name="Done")).to_be_visible()
    audited(page, "task/default/suite", "pause")

    # The evidence: its slow commands, the slowest one first.
    visit(page, "/")
    page.locator(f'.problem[data-id="{SLOW}"] .evidence').click()
    expect(page.locator("#rows tbody tr").first).to_contain_text("sleep 4")

    visit(page, "/")
    expect(page.locator(f'.problem[data-id="{SLOW}"]')).to_have_attribute("data-state", "cleared")


def test_one_trajectory_holds_what_others_wait_for(open_page: Open, tangram: Tangram) -> None:
    page = overview(open_page)
    cores = tangram.get("/api/v1/status")["nodes"][0]["resources"]["cpu"]["capacity"]
    body = {"task": "drill", "kind": "exec", "cost": {"cpu": cores}, "trajectory": "hog"}
    hog = tangram.hold({**body, "exec": {"command": ["sleep", "600"]}})["id"]
    small = {"task": "small", "kind": "exec", "cost": {"cpu": 1}, "exec": {"command": ["true"]}}
    waiting = [tangram.post("/api/v1/actions", small)["id"] for _ in range(6)]

    problem = problem_on(page, f"blocker:{hog}")
    expect(problem.locator(".title")).to_contain_text("of task drill holds up 6 actions")
    expect(problem).to_contain_text("Trajectory hog holds")
    expect(problem.locator(".affected")).to_have_text("6 waiting")

    with solved(page):
        press(problem, "Cancel action…")
        page.get_by_role("button", name="Cancel", exact=True).click()
        expect(page.get_by_role("heading", name="Done")).to_be_visible()
        finish(tangram, waiting)
    audited(page, f"action/{hog}", "cancel")


def test_the_choice_of_the_trend_is_one_click_and_web_processes_are_listed(
    open_page: Open, tangram: Tangram
) -> None:
    page = open_page("/")
    links = page.get_by_role("navigation", name="Range of the trends")
    with page.expect_response("**/resources.json?trend=10800") as answer:
        links.get_by_role("link", name="3 h").click()
    assert answer.value.ok
    expect(links.get_by_role("link", name="3 h")).to_have_attribute("aria-current", "true")
    assert "trend=10800" in page.url

    visit(page, "/workers/")
    expect(page.get_by_role("cell", name="web", exact=True)).to_have_count(1)
