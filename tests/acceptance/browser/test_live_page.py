"""The live page in Chromium, over a running stack, as the people who watch it see it."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import psutil
import pytest
from playwright.sync_api import Browser, Page, WebSocket, expect

from tests.acceptance.browser.conftest import DESK, PHONE, Open, entry_link, run
from tests.acceptance.browser.pages import PATIENCE_MS, go, hold
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def live(page: Page) -> Any:
    return page.locator("tg-live .word")


def test_a_stranger_is_asked_to_sign_in(browser: Browser, tangram: Tangram) -> None:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(tangram.access["url"])
    assert "/login/" in page.url
    page.close()


def test_the_link_signs_in_once(browser: Browser, tangram: Tangram, signed_in: Any) -> None:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    answer = page.goto(entry_link(tangram))
    assert answer is not None
    assert answer.status >= 400
    page.close()


def test_an_action_shows_up_while_one_watches(tangram: Tangram, open_page: Open) -> None:
    page = open_page("/")
    expect(live(page)).to_have_text("Live")
    done = run(tangram, "echo", "hello")
    row = page.locator("#finished").get_by_role("link", name=done["id"][-8:])
    expect(row).to_be_visible()
    expect(page.locator("#outcomes")).to_contain_text("Completed")
    expect(page.locator("#big-p50")).not_to_have_text("–")
    hold(page)
    row.click()
    expect(page.locator("main")).to_contain_text(done["id"])
    expect(page.locator("main")).to_contain_text("hello")


def test_cards_show_what_they_do_and_simulated_gpus_that_there_is_no_card(open_page: Open) -> None:
    page = open_page("/gpu/")
    hold(page)  # the stack has no GPUs: the next frame would empty the table
    expect(page.locator("#gpu-cards .empty")).to_have_text("No node offers GPUs.")
    none = dict.fromkeys(("busy_ratio", "used_bytes", "total_bytes", "measured_at"))
    card = {"node": "n1", "gpus": "3", "chunk": "2-3", "says": "", "busy_ratio": 0.35,
            "used_bytes": 20 * 2**30, "total_bytes": 80 * 2**30, "measured_at": 45_296.0}  # fmt: skip
    rows = [
        card,
        {**none, "node": "n2", "gpus": "0-7", "chunk": "", "says": "no card: simulated"},
        {**card, "gpus": "4", "busy_ratio": None, "total_bytes": None, "chunk": ""},
    ]

    page.evaluate("rows => document.getElementById('gpu-cards').show(rows)", rows)

    lines = page.locator("#gpu-cards tbody tr")
    expect(lines).to_have_count(3)
    assert [lines.nth(at).locator("td").all_inner_texts() for at in range(3)] == [
        ["n1", "3", "35 %", "20 GiB of 80 GiB", "2–3", "12:34:56"],
        ["n2", "0–7", "no card: simulated", "–", "–", "–"],
        ["n1", "4", "unknown", "20 GiB", "–", "12:34:56"],
    ]


def test_a_waiting_action_is_counted_and_held_cores_are_drawn(
    tangram: Tangram, open_page: Open
) -> None:
    page = open_page("/")
    all_cores = {"task": "seen", "cost": {"cpu": os.cpu_count()}}
    held = tangram.hold({**all_cores, "kind": "lease", "lease": {"ttl_seconds": 600}})
    waiting = tangram.post(
        "/api/v1/actions", {**all_cores, "kind": "exec", "exec": {"command": ["true"]}}
    )
    row = page.locator('#resources tr[data-id="pool/default"]')
    expect(row.locator(".free")).to_have_text("all held")
    expect(row.locator(".waits")).to_have_text("1")
    expect(row.locator(".tag")).to_have_text("short")
    expect(page.locator("#all-waiting")).to_have_text("1 action waits")
    expect(page.locator("#waiting")).to_contain_text(waiting["id"][-8:])
    tangram.post(f"/api/v1/leases/{held['id']}/release", {})
    expect(row.locator(".waits")).to_have_text("0")
    expect(page.locator("#all-waiting")).to_have_text("0 actions wait")


def test_a_thousand_actions_cost_the_page_a_few_frames(tangram: Tangram, open_page: Open) -> None:
    frames: list[float] = []
    sockets: list[WebSocket] = []

    def follow(socket: WebSocket) -> None:
        sockets.append(socket)
        socket.on("framereceived", lambda _: frames.append(time.monotonic()))

    page = open_page("/actions/")
    page.on("websocket", follow)
    page.goto(tangram.access["url"])
    expect(live(page)).to_have_text("Live")
    items = [{"task": "many", "kind": "noop"}] * 1000
    tangram.post("/api/v1/actions/batch", {"actions": items})
    last = run(tangram, "true")
    expect(page.locator("#finished")).to_contain_text(last["id"][-8:])
    seconds = frames[-1] - frames[0]
    assert len(sockets) == 1
    # Three topics, of which one changes 4 times a second and two once, and snapshots.
    assert len(frames) <= 2 * 4 * (seconds + 1) + 4


def test_markup_in_what_trainers_send_is_shown_as_text(tangram: Tangram, open_page: Open) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\">"
    script = "<script>document.title='owned'</script>"
    done = run(tangram, "echo", script + evil, metadata={"note": evil}, family=evil)
    page = open_page(f"/actions/{done['id']}/")
    expect(page.locator("main")).to_contain_text(script)
    expect(page.locator("main")).to_contain_text(evil)
    assert page.locator("main img").count() == 0
    assert page.title() != "owned"


def test_the_page_shows_a_lost_connection_and_its_return(
    tangram: Tangram, open_page: Open, complaints: list[str]
) -> None:
    page = open_page("/")
    expect(live(page)).to_have_text("Live")
    (web,) = [p for p in psutil.process_iter(["cmdline"]) if _serves(p, tangram)]
    web.send_signal(signal.SIGSTOP)
    try:
        expect(live(page)).to_have_text("Stale")
    finally:
        web.send_signal(signal.SIGCONT)
    expect(live(page)).to_have_text("Live")
    web.send_signal(signal.SIGKILL)
    expect(live(page)).not_to_have_text("Live")
    expect(live(page)).to_have_text("Live")
    done = run(tangram, "true")
    expect(page.locator("#finished")).to_contain_text(done["id"][-8:])
    # The browser reports each connection that was refused meanwhile; these were meant.
    meant = ("WebSocket", "ERR_CONNECTION_REFUSED")
    complaints[:] = [said for said in complaints if not any(word in said for word in meant)]


def _serves(process: psutil.Process, tangram: Tangram) -> bool:
    port = tangram.access["url"].rpartition(":")[2].rstrip("/")
    words = process.info["cmdline"] or []
    return "uvicorn" in words and port in words


@pytest.mark.parametrize("path", ["/", "/actions/"])
@pytest.mark.parametrize(
    ("scheme", "viewport"), [("light", PHONE), ("dark", DESK)], ids=["light-phone", "dark-desk"]
)
def test_a_page_fits_its_screen(open_page: Open, path: str, scheme: str, viewport: Any) -> None:
    page = open_page(path, viewport=viewport, color_scheme=scheme)
    expect(page.locator("main")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    lightness = sum(int(part) for part in re.findall(r"\d+", background)[:3])
    assert (lightness < 384) == (scheme == "dark")


def test_the_keyboard_reaches_help_and_pages(open_page: Open) -> None:
    page = open_page("/")
    expect(live(page)).to_have_text("Live")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("p")
    expect(live(page)).to_have_text("Paused")
    go(page, "a")
    expect(page).to_have_title(re.compile("Actions"))
