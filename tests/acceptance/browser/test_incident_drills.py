"""Three incidents, each seen, understood, cured and reviewed without leaving the browser.

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

from tests.acceptance.browser.pages import apply, audited, until, visit
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

    # Seen: an action waits. Understood: for what, and until when.
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
        # Seen: the node is lost. Understood: why the action waits.
        until(page, "/operate/", lambda p: "lost" in p.inner_text("main"))
        picture(page, "drill-node-lost")
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


def test_two_services_thrash(open_page: Any, tangram: Tangram) -> None:
    page = open_page("/configuration/edit/")
    apply(page, "---\n".join(SERVICE % name for name in ("drill-a", "drill-b")))

    def call(service: str, wait: str = "?wait=60") -> Any:
        return tangram.post(f"/api/v1/actions{wait}", {
            "task": "drill", "kind": "call", "cost": {"gpu": [2]},
            "call": {"target": f"service:{service}", "method": "GET", "path": "/"},
        })  # fmt: skip

    for _ in range(2):
        assert [call(name)["outcome"] for name in ("drill-a", "drill-b")] == ["completed"] * 2

    # Seen and understood: they evict each other, call after call.
    visit(page, "/gpu/")
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
