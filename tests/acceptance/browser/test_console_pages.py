"""The console in Chromium: a first-time user finds why an action waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.acceptance.browser.conftest import Open, run
from tests.acceptance.browser.pages import addresses_of_pages, expect_whole, go, hold, visit
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def waiting(tangram: Tangram) -> Iterator[dict[str, Any]]:
    """An action that waits for all cores, which another one holds."""
    cores = tangram.get("/api/v1/status")["nodes"][0]["resources"]["cpu"]["capacity"]
    body = {"task": "held", "kind": "exec", "cost": {"cpu": cores}}
    holder = tangram.post("/api/v1/actions", {**body, "exec": {"command": ["sleep", "600"]}})
    waiter = tangram.post("/api/v1/actions", {**body, "exec": {"command": ["true"]}})
    yield waiter
    tangram.post(f"/api/v1/actions/{holder['id']}/cancel", {})


@pytest.mark.long
def test_every_page_opens_without_a_complaint(open_page: Open, tangram: Tangram) -> None:
    """On a dark desk, with motion; axe looks at all of them on the others, in every run."""
    done = run(tangram, "true", trajectory="seen-1", step=1)
    for address in addresses_of_pages(done):
        expect_whole(open_page(address, color_scheme="dark"), address)


def test_from_the_queues_to_why_an_action_waits_and_what_blocks_it(
    open_page: Open, waiting: dict[str, Any]
) -> None:
    page = open_page("/queues/")
    row = page.locator("#rows tbody tr", has_text=waiting["id"][-8:])
    expect(row).to_contain_text("cpu")
    row.locator("a.id").click()
    why = page.locator("#why")
    expect(why).to_contain_text("Why it waits")
    expect(why).to_contain_text("waits for")
    expect(why).to_contain_text("Binding resource")


def test_keys_go_from_page_to_page(open_page: Open) -> None:
    page = open_page("/")
    page.locator(".who").click()
    expect(page.locator("#account")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#account")).to_be_hidden()
    page.get_by_role("button", name="Theme: as the system").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.keyboard.press("?")
    expect(page.locator("#help tr", has_text="Pause or resume the live page")).to_be_visible()
    # The Overview has no filter.
    expect(page.locator("#help tr", has_text="Filter")).to_have_count(0)
    page.mouse.click(5, 5)  # beside the dialog
    expect(page.locator("#help")).to_be_hidden()
    for key, title in (
        ("q", "Queues"),
        ("t", "Trajectories"),
        ("k", "Tasks"),
        ("w", "Nodes and parts"),
    ):
        go(page, key)
        expect(page).to_have_title(f"{title} · Tangram")
        page.wait_for_load_state("load")  # before that its scripts hear no keys


def test_a_trajectory_is_drawn_and_leads_to_its_actions(open_page: Open, tangram: Tangram) -> None:
    for step in range(3):
        done = run(tangram, "true", trajectory="drawn", step=step)
    page = open_page("/trajectories/?task=seen")
    page.get_by_role("link", name="drawn", exact=True).click()
    expect(page.locator(".lanes rect.execution")).to_have_count(3)
    page.get_by_role("link", name=f"…{done['id'][-8:]}", exact=True).click()
    expect(page.locator("#action-id")).to_have_text(done["id"])
    page.get_by_role("link", name="seen", exact=True).first.click()
    expect(page.locator("h1")).to_have_text("seen")
    expect(page.get_by_role("heading", name="Steps")).to_be_visible()


def test_the_core_map_names_the_holders_of_cores(open_page: Open, waiting: dict[str, Any]) -> None:
    page = open_page("/cpu/")
    expect(page.locator(".card tg-coremap canvas")).to_be_visible()
    row = page.locator("#holders tbody tr", has_text="held")
    expect(row).to_have_count(1)
    page.locator(".card summary").click()
    expect(page.locator(".card .twin")).to_contain_text("One action")
    hold(page)
    row.locator("a").click()
    expect(page.get_by_role("heading", name="Phases")).to_be_visible()


def test_the_explorer_completes_a_filter_and_cancels_what_is_selected(
    open_page: Open, tangram: Tangram, waiting: dict[str, Any]
) -> None:
    run(tangram, "sh", "-c", "exit 3", task="explored")
    page = open_page("/actions/?q=")
    expect(page.locator("#facets")).to_contain_text("queued")
    page.keyboard.press("?")
    expect(page.locator("#help tr", has_text="Filter").locator("kbd")).to_have_text(["/", "f"])
    page.keyboard.press("?")
    page.keyboard.press("/")
    expect(page.locator("#filter")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#filter")).not_to_be_focused()
    page.keyboard.press("f")
    expect(page.locator("#filter")).to_be_focused()
    page.keyboard.type("exit:")
    expect(page.get_by_role("option", name="exit:!=0")).to_be_visible()
    page.keyboard.type("3 task:expl")
    expect(page.get_by_role("option", name="task:explored")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".ex-chip")).to_have_count(2)
    rows = page.locator("#rows tbody tr")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("exit 3")
    expect(page.locator("#total")).to_have_text("1 action")

    visit(page, f"/actions/?q=id:{waiting['id']}")
    expect(page.locator("#live")).to_be_visible()
    expect(rows.first.locator("[data-wait]")).to_contain_text("waits for")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("#selected-count")).to_have_text("1")
    page.keyboard.press(".")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("1 selected")
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.locator("main")).to_contain_text("Done")


def test_selected_tasks_get_a_priority_and_two_are_compared(
    open_page: Open, tangram: Tangram
) -> None:
    for task in ("chosen-a", "chosen-b"):
        run(tangram, "true", task=task)
    page = open_page("/tasks/?q=id:chosen*")
    rows = page.locator("#rows tbody tr")
    expect(rows).to_have_count(2)
    rows.first.get_by_role("checkbox").check()
    expect(page.locator("#selected-compare")).to_be_hidden()
    rows.last.get_by_role("checkbox").check()
    page.get_by_role("link", name="Compare them").click()
    expect(page.locator("main")).to_contain_text("chosen-a")
    expect(page.locator("main")).to_contain_text("chosen-b")

    visit(page, "/actions/?q=task:chosen*")
    page.locator("#rows tbody input").first.check()
    page.get_by_role("button", name="Select all of the filter").click()
    expect(page.get_by_role("link", name="Compare their tasks")).to_be_visible()
    page.get_by_role("button", name="Priority of their tasks…").click()
    expect(page.locator("h1")).to_contain_text("2 selected")
    page.get_by_label("Priority").fill("7")
    page.get_by_role("button", name="Change priority", exact=True).click()
    expect(page.locator("main")).to_contain_text("Done")


def test_an_action_is_run_again_from_its_page(open_page: Open, tangram: Tangram) -> None:
    first = run(tangram, "echo", "first", task="again")["id"]
    page = open_page(f"/actions/{first}/")
    page.get_by_role("link", name="Run again like this…").click()
    text = page.get_by_label("The request as JSON")
    text.fill(text.input_value().replace('"first"', '"second"'))
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator("h1")).to_have_text("echo second")
    expect(page.locator("main")).to_contain_text("console")
    assert first not in page.url
