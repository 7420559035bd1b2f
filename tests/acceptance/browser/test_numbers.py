"""Numbers and warnings of the console in Chromium, read in the states in which they could be wrong."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from benchmarks import figures
from benchmarks.figures import Fact, crawl
from tests.acceptance.browser.conftest import Open, run
from tests.acceptance.browser.contradictions import contradictions, numbers_of
from tests.acceptance.browser.pages import apply, until, visit
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Pages that show the same figures, by their markup.
SHARING = {
    "Overview": "/",
    "Queues": "/queues/",
    "Operate": "/operate/",
    "Tasks": "/tasks/",
    "Task": "/tasks/default/held/",
    "Pause": "/act/pool/pause/?target=default",
}
CALLED = """apiVersion: tangram/v1
kind: Resource
metadata: {name: "api:counted"}
spec: {limit_units: 1}
"""


@contextmanager
def frozen_node(page: Page) -> Iterator[None]:
    """The worker of the only node shows no life."""
    visit(page, "/workers/")
    worker = page.locator("tr", has=page.get_by_role("cell", name="node", exact=True)).first
    pid = int(worker.locator("td").last.inner_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def held(tangram: Tangram, seconds: int = 600) -> dict[str, Any]:
    """Submit a command that runs until it is cancelled."""
    body = {"task": "held", "kind": "exec", "cost": {"cpu": 1}}
    return dict(
        tangram.post("/api/v1/actions", {**body, "exec": {"command": ["sleep", str(seconds)]}})
    )


def test_a_frozen_node_is_on_every_page_and_stays_listed(open_page: Open, tangram: Tangram) -> None:
    name = tangram.get("/api/v1/nodes")["results"][0]["name"]
    action = held(tangram)
    page = open_page("/")
    until(page, f"/actions/{action['id']}/", lambda p: "running" in p.inner_text("main"))
    problem = page.locator(f'.problem[data-id="node_lost:{name}"]')
    says = re.compile(rf"critical problem.* up .*action.*: .*node {name} lost.*Open the Overview")

    with frozen_node(page):
        visit(page, "/")
        # Live, without a reload: the page was there first.
        expect(problem.locator(".title")).to_have_text(f"Node {name} is lost")
        expect(problem).to_contain_text(re.compile("It held 1 action.*: 1 still with it"))
        expect(problem).to_have_attribute("data-severity", "critical")
        expect(page.locator("#health")).to_contain_text(f"node {name} lost")
        expect(page.locator("#problem-banner")).to_be_hidden()
        row = page.locator('#resources tr[data-id="pool/default"]')
        expect(row.locator(".free")).to_contain_text("lost")
        expect(row.locator(".tag")).to_have_text("node lost")
        for path in ("/queues/", "/tasks/", "/audit/", "/operate/", "/cpu/", "/configuration/"):
            visit(page, path)
            expect(page.locator("#problem-banner")).to_have_text(says)
            expect(page.locator(".side .count")).to_be_visible()
        visit(page, "/workers/")
        row = page.locator("#nodes tbody tr", has_text=name)
        expect(row).to_contain_text("lost")
        expect(row).to_contain_text("1 still with it")

    until(page, "/workers/", lambda p: " to " in p.locator("#nodes tbody tr").first.inner_text())
    visit(page, "/")
    expect(problem).to_have_attribute("data-state", "cleared")
    expect(page.locator("#problem-banner")).to_be_empty()
    tangram.post(f"/api/v1/actions/{action['id']}/cancel", {})
    until(
        page,
        "/workers/",
        lambda p: (
            re.search("It held 1 action.*: 1 ended as cancelled", p.inner_text("#nodes"))
            is not None
        ),
    )


def test_a_verb_on_a_pool_counts_what_the_overview_and_operate_show(
    open_page: Open, tangram: Tangram
) -> None:
    cores = tangram.get("/api/v1/status")["nodes"][0]["resources"]["cpu"]["capacity"]
    command = {"command": ["sleep", "600"]}
    body = {"task": "held", "kind": "exec", "cost": {"cpu": cores}, "exec": command}
    actions = [tangram.post("/api/v1/actions", body)["id"] for _ in range(4)]
    page = open_page("/")
    pool = page.locator('#resources tr[data-id="pool/default"]')
    expect(pool.locator(".waits")).to_have_text("3")
    expect(page.locator("#health .detail")).to_contain_text("1 action runs.")
    expect(page.locator("#all-waiting")).to_have_text("3 actions wait")

    visit(page, "/operate/")
    row = page.locator("tr", has=page.get_by_role("cell", name="default", exact=True))
    row = row.filter(has=page.get_by_role("link", name="Pause"))
    assert [row.locator("td").nth(n).inner_text() for n in (2, 3, 4)] == ["3", "0", "1"]
    for verb in ("pause", "policy", "share"):
        visit(page, f"/act/pool/{verb}/?target=default")
        facts = page.locator(".panel", has_text="counted now").locator("dd")
        assert facts.all_inner_texts() == ["3", "0", "1"]

    # Nothing changes while they wait: all pages agree.
    shown = numbers_of(page, pool="default", task="held")
    assert contradictions(shown) == {}
    assert (shown["waiting"]["queues"], shown["running"]["operate"]) == (3, 1)
    assert sum(map(len, shown.values())) >= 15  # numbers that were read
    marked = crawl(page, tangram.access["url"], SHARING)
    assert figures.contradictions(marked) == {}
    both = figures.shared(marked)
    assert set(both[Fact("waiting", "pool/default")]) >= {"Operate", "Pause"}
    assert set(both[Fact("waiting-for", "pool/default")]) > {
        "Overview"
    }  # and the list that it links to
    assert set(both[Fact("waiting", "system")]) == {"Overview", "Queues"}
    assert any(place.startswith("list ") for place in both[Fact("actions", "task/default/held")])

    for each in reversed(actions):
        tangram.post(f"/api/v1/actions/{each}/cancel", {})


def test_the_shares_of_a_trajectory_add_up_and_agree_with_its_critical_path(
    open_page: Open, tangram: Tangram
) -> None:
    """Parallel calls of an API with one seat: their waits together are longer than the trajectory."""
    page = open_page("/configuration/edit/")
    apply(page, CALLED)
    body = {"task": "shares", "trajectory": "shared", "kind": "noop", "cost": {"api:counted": 1}}
    done = [tangram.post("/api/v1/actions", body)["id"] for _ in range(5)]
    tangram.post("/api/v1/actions?wait=60", body)
    until(page, "/trajectories/?task=shares", lambda p: "shared" in p.inner_text("main"))
    until(page, f"/actions/{done[-1]}/", lambda p: "completed" in p.inner_text("main"))
    visit(page, "/trajectories/default/shared/")

    shares = [float(share) for share in re.findall(r"([\d.]+) %", page.inner_text("#shares"))]
    assert sum(shares) == pytest.approx(100, abs=0.2)
    table = page.locator("#critical table").first.inner_text()
    trainer = re.search(r"trainer: .*?([\d.]+) %", table)
    assert shares[2] == (float(trainer[1]) if trainer else 0.0)
    expect(page.locator("#cost")).to_contain_text("held no cores and no GPUs")
    assert "finished yet" not in page.inner_text("main")


def test_failing_commands_look_unlike_passing_ones(open_page: Open, tangram: Tangram) -> None:
    for code in (0, 3, 3):
        done = run(tangram, "sh", "-c", f"exit {code}", task="exits")
    page = open_page("/")
    until(page, "/actions/?task=exits&exit=failed", lambda p: done["id"] in p.content())
    rows = page.locator("#rows tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("exit 3")

    visit(page, f"/actions/{done['id']}/")
    expect(page.locator('.outcome-strip .chip[data-is="failed"]')).to_have_text("exit 3")
    visit(page, "/tasks/default/exits/")
    expect(page.locator("#outcomes")).to_contain_text("exit code not 0")
    expect(
        page.locator("#outcomes tbody tr", has_text="exit code not 0").locator("td").nth(1)
    ).to_have_text("2")
    page.get_by_role("link", name="2 of 3 failed").click()
    expect(page.locator("#rows tbody tr")).to_have_count(2)
    visit(page, "/")
    expect(page.locator("#outcomes tbody tr", has_text="Exit code not 0")).to_be_visible()


@pytest.mark.long
def test_a_predicted_start_is_unknown_at_first_and_then_a_range_with_its_hit_rate(
    open_page: Open, tangram: Tangram
) -> None:
    cores = tangram.get("/api/v1/status")["nodes"][0]["resources"]["cpu"]["capacity"]
    command = {"command": ["sleep", "0.2"]}
    body = {"task": "starts", "kind": "exec", "cost": {"cpu": cores}, "exec": command}
    for _ in range(4):
        tangram.post("/api/v1/actions/batch", {"actions": [body] * 100})
    page = open_page("/queues/")
    starts = page.locator("#rows tbody tr", has_text="starts").locator("td").last
    expect(starts).to_have_text("unknown")
    held = re.compile(r"^\d.* to .* \(\d+\.\d % of \d+ held\)$")
    until(
        page,
        "/queues/",
        lambda _: starts.count() == 1 and held.match(starts.inner_text().strip()) is not None,
    )
    tangram.post("/api/v1/tasks/starts/cancel", {})
