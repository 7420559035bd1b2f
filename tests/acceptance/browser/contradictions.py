"""Numbers that pages of the console show of the same thing, read while nothing changes."""

from __future__ import annotations

import re
from collections import defaultdict

from playwright.sync_api import Page

from tests.acceptance.browser.pages import visit

#: Fact → page that shows it → number.
Shown = dict[str, dict[str, int]]


def numbers_of(page: Page, *, pool: str, task: str) -> Shown:
    """Return what Operate, Queues, the lists and the pages of verbs say of a pool whose only task is ``task``."""
    shown: defaultdict[str, dict[str, int]] = defaultdict(dict)
    visit(page, "/operate/")
    row = page.locator("tr", has=page.get_by_role("cell", name=pool, exact=True))
    cells = row.filter(has=page.get_by_role("link", name="Pause")).locator("td")
    for place, fact in ((2, "waiting"), (3, "granted"), (4, "running")):
        shown[fact]["operate"] = int(cells.nth(place).inner_text())
    visit(page, "/queues/")
    waits = re.search(r"(\d+) actions? waits?", page.inner_text("main"))
    shown["waiting"]["queues"] = int(waits[1]) if waits else 0
    visit(page, "/tasks/")
    row = page.locator("#rows tbody tr", has_text=task)
    for fact in ("actions", "finished"):
        shown[fact]["tasks"] = int(row.locator(f'[data-column="{fact}"]').inner_text())
    for state, fact in (("queued", "waiting"), ("running", "running"), ("finished", "finished")):
        visit(page, f"/actions/?task={task}&state={state}")
        shown[fact]["list of actions"] = page.locator("#rows tbody tr").count()
    visit(page, f"/actions/?task={task}")
    shown["actions"]["list of actions"] = page.locator("#rows tbody tr").count()
    for kind, name in (("pool", pool), ("task", f"default/{task}")):
        visit(page, f"/act/{kind}/pause/?target={name}")
        counted = page.locator(".panel", has_text="counted now").locator("dd").all_inner_texts()
        for fact, text in zip(("waiting", "granted", "running"), counted, strict=True):
            shown[fact][f"pause of the {kind}"] = int(text)
    return dict(shown)


def contradictions(shown: Shown) -> Shown:
    """Return the facts of which pages show different numbers."""
    return {fact: places for fact, places in shown.items() if len(set(places.values())) > 1}
