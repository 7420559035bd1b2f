"""Three incidents, each seen on the Overview, understood, cured and reviewed without leaving the browser.

`docs/operations.md` tells the same three; with ``DRILL_IMAGES=FOLDER`` its pictures are made.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.browser.pages import apply, audited, press, problem_on, until, visit
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

QUOTA = """apiVersion: tangram/v1
kind: Resource
metadata: {name: "api:drill"}
spec:
  limit_units: 4
  quotas: [{units: 1, window_seconds: 86400}]
"""
SERVICE = """apiVersion: tangram/v1
kind: GpuService
metadata: {name: %s}
spec:
  engine: process
  degrees: [{gpus: 2, memory_bytes: 64424509440}]
  command: [python3, -m, http.server, "{port}", --bind, 127.0.0.1]
  warm_up: {path: /}
"""


def picture(page: Page, name: str) -> None:
    """Keep a picture for the documentation, when that is asked for."""
    folder = os.environ.get("DRILL_IMAGES")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")


def listed(page: Page, action_id: str) -> None:
    """Wait until an action has its row."""
    until(page, "/actions/?task=drill", lambda p: action_id in p.content())


def test_a_quota_is_exhausted(open_page: Any, tangram: Tangram) -> None:
    page = open_page("/configuration/edit/")
    apply(page, QUOTA)
    body = {"task": "drill", "kind": "noop", "cost": {"api:drill": 1}}
    tangram.post("/api/v1/actions?wait=60", body)
    waits = tangram.post("/api/v1/actions", body)["id"]

    # Seen: the Overview names the quota, and the verb that helps is one click away.
    problem = problem_on(page, "quota_exhausted:api:drill")
    expect(problem).to_contain_text("1 of 1 units in 1 d")
    expect(problem.locator(".affected")).to_have_text("1 waiting")
    press(problem, "Change quota…")

    # Understood: what waits, and until when.
    listed(page, waits)
    until(page, "/queues/", lambda p: "api:drill" in p.inner_text("main"))
    until(page, f"/actions/{waits}/", lambda p: "Why it waits" in p.inner_text("main"))
    expect(page.locator("#why")).to_contain_text("of 1 per")
    picture(page, "drill-quota-why")

    # Cured: a larger quota, reviewed before it is saved.
    apply(page, QUOTA.replace("units: 1,", "units: 5,"))
    until(page, f"/actions/{waits}/", lambda p: "completed" in p.inner_text("main"))

    # Reviewed: who changed what, as a revision and in the audit.
    visit(page, "/configuration/revisions/")
    expect(page.locator("#rows tbody tr").first).to_contain_text("update Resource api:drill")
    picture(page, "drill-quota-revisions")
    audited(page, "configuration", "apply")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that shows no life for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_node_falls_silent(open_page: Any, tangram: Tangram) -> None:
    page = open_page("/workers/")
    worker = page.locator("tr", has=page.get_by_role("cell", name="node", exact=True)).first
    pid = int(worker.locator("td").last.inner_text())
    name = tangram.get("/api/v1/nodes")["results"][0]["name"]
    body = {"task": "drill", "kind": "exec", "cost": {"cpu": 1}, "exec": {"command": ["true"]}}

    with stopped(pid):
        # Seen: the Overview says that the node is lost, and offers to retire it.
        problem = problem_on(page, f"node_lost:{name}")
        expect(problem.locator(".title")).to_have_text(f"Node {name} is lost")
        picture(page, "drill-node-lost")
        press(problem, "Retire node…")

        # Understood: why the action waits.
        waits = tangram.post("/api/v1/actions", body)["id"]
        listed(page, waits)
        until(page, f"/actions/{waits}/", lambda p: "May start in" in p.inner_text("main"))
        expect(page.locator("#why")).to_contain_text("lost")

        # Cured, first half: the node gets no action while the cause is sought.
        visit(page, f"/act/node/drain/?target={name}")
        picture(page, "drill-node-drain")
        page.get_by_label("Reason").fill("it fell silent")
        page.get_by_role("button", name="Drain", exact=True).click()
        expect(page.get_by_role("heading", name="Done")).to_be_visible()

    # Cured, second half: it shows life again and is taken back, by the undo of what was done.
    page.get_by_role("link", name="Undo: Resume").click()
    page.get_by_role("button", name="Resume").click()
    until(page, f"/actions/{waits}/", lambda p: "completed" in p.inner_text("main"))

    audited(page, f"node/{name}", "resume")
    audited(page, f"node/{name}", "drain")
    picture(page, "drill-node-audit")


@pytest.mark.long
def test_two_services_thrash(open_page: Any, tangram: Tangram) -> None:
    page = open_page("/configuration/edit/")
    apply(page, "---\n".join(SERVICE % name for name in ("drill-a", "drill-b")))

    def call(service: str, wait: str = "?wait=60") -> Any:
        return tangram.post(f"/api/v1/actions{wait}", {
            "task": "drill", "kind": "call", "cost": {"gpu": [2]},
            "call": {"target": f"service:{service}", "method": "GET", "path": "/"},
        })  # fmt: skip

    # Seen: the Overview says that a service is restored again and again.
    visit(page, "/")
    problem = page.locator('.problem[data-id^="service_thrashing:drill-"]').first
    for _ in range(40):
        assert [call(name)["outcome"] for name in ("drill-a", "drill-b")] == ["completed"] * 2
        if problem.is_visible():
            break
    expect(problem).to_contain_text("restores within a minute")

    # Understood: they evict each other, call after call.
    problem.locator(".evidence").click()
    log = page.locator("#log tbody")
    expect(log).to_contain_text("evicted")
    expect(log).to_contain_text("drill-b")
    picture(page, "drill-services-log")

    # What if each took more calls at once? Played before anything is saved; simulated.
    visit(page, "/configuration/edit/")
    wider = "---\n".join(
        f"{SERVICE % name}  max_concurrency: 4\n" for name in ("drill-a", "drill-b")
    )
    page.get_by_label("The configuration as YAML").fill(wider)
    page.get_by_role("button", name="Review").click()
    page.get_by_role("button", name="Simulate").click()
    expect(page.locator(".titled .chip")).to_have_text("finished")
    rows = page.locator("table.numbers tbody th")
    expect(rows).to_have_text(["as it is", "as it would be"])
    picture(page, "drill-what-if")

    # Cured: one of them waits in quarantine, the other keeps its chunk.
    visit(page, "/act/service/quarantine/?target=drill-b")
    page.get_by_label("to confirm").fill("drill-b")
    picture(page, "drill-services-quarantine")
    page.get_by_role("button", name="Quarantine").click()
    expect(page.get_by_role("heading", name="Done")).to_be_visible()
    held = call("drill-b", "")["id"]
    listed(page, held)
    assert [call("drill-a")["outcome"] for _ in range(2)] == ["completed"] * 2
    until(page, f"/actions/{held}/", lambda p: "quarantined" in p.inner_text("main"))

    # Undone when the rush is over: what waited is served.
    visit(page, "/act/service/release/?target=drill-b")
    page.get_by_role("button", name="Lift the quarantine").click()
    until(page, f"/actions/{held}/", lambda p: "completed" in p.inner_text("main"))
    audited(page, "service/drill-b", "release")
    audited(page, "service/drill-b", "quarantine")


@pytest.mark.long
def test_a_failing_task_and_a_forgotten_pause_are_one_click_from_their_verbs(
    open_page: Any, tangram: Tangram
) -> None:
    """What a first-time reader sees on the Overview, and whether its numbers agree with other pages."""
    page = open_page("/")
    fails = {"task": "broken", "kind": "exec", "cost": {"cpu": 0.1}, "exec": {"command": ["false"]}}
    tangram.post("/api/v1/actions/batch", {"actions": [fails] * 24})
    task = problem_on(page, "task_failing:default/broken")
    expect(task).to_contain_text("× exit code 1.")

    tangram.request("PATCH", "/api/v1/pools/default", {"paused": True})
    held = [tangram.post("/api/v1/actions", {**fails, "task": "held"})["id"] for _ in range(3)]
    pause = problem_on(page, "pool_paused:default")
    expect(pause.locator(".affected")).to_have_text("3 waiting")
    expect(page.locator("#all-waiting")).to_have_text("3 actions wait")
    expect(page.locator('#resources tr[data-id="pool/default"] .waits')).to_have_text("3")

    # An acknowledged problem stays listed and leaves the banner of other pages.
    pause.locator(".acknowledge").click()
    page.get_by_label("Note").fill("planned work")
    page.get_by_role("button", name="Acknowledge").click()
    expect(pause).to_have_attribute("data-state", "acknowledged")
    expect(pause).to_contain_text("planned work")
    audited(page, "problem/pool_paused:default", "acknowledge")
    expect(page.locator("#problem-banner")).not_to_contain_text("pool default paused")

    # The same three wait on Queues, Operate and in the list.
    visit(page, "/operate/")
    row = page.locator("tr", has_text="default").filter(has=page.get_by_role("link", name="Policy"))
    expect(row.locator("td").nth(2)).to_have_text("3")
    until(page, "/queues/", lambda p: p.locator("#rows tbody tr", has_text="held").count() == 1)
    expect(page.locator("#rows tbody tr", has_text="held")).to_contain_text("3")
    until(
        page, "/actions/?state=queued&task=held", lambda p: p.locator("#rows tbody tr").count() == 3
    )

    press(problem_on(page, "task_failing:default/broken"), "Pause task…")
    press(problem_on(page, "pool_paused:default"), "Resume pool…")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("heading", name="Done")).to_be_visible()
    until(page, f"/actions/{held[-1]}/", lambda p: "exit 1" in p.inner_text("main"))
    visit(page, "/")
    expect(page.locator("#all-waiting")).to_have_text("0 actions wait")
    expect(page.locator('.problem[data-id="pool_paused:default"]')).to_have_attribute(
        "data-state", "cleared"
    )
