"""Incidents with short thresholds, each solved from the Overview with at most three clicks within half a minute.

They have a Tangram of their own: its thresholds are seconds where they are minutes.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.browser.conftest import Open
from tests.acceptance.browser.pages import PATIENCE_MS, audited, press, problem_on, visit
from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT
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


@pytest.mark.long
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


@contextmanager
def second_web_process(tangram: Tangram) -> Iterator[subprocess.Popen[bytes]]:
    """Another web process of this Tangram, with the environment of the first, once it answers."""
    first = next(
        place for place in Path("/proc").iterdir()
        if place.name.isdecimal() and is_web_process_of(place, tangram)
    )  # fmt: skip
    variables = [
        each.split(b"=", 1) for each in (first / "environ").read_bytes().split(b"\0") if each
    ]
    command = (first / "cmdline").read_bytes().split(b"\0")[:-1]
    port = free_port()
    command[command.index(b"--port") + 1] = str(port).encode()
    with subprocess.Popen(
        command, cwd=ROOT, env=dict(variables), stderr=subprocess.DEVNULL
    ) as process:
        try:
            until = monotonic() + PATIENCE_MS / 1000
            while not is_listening(port):
                assert process.poll() is None
                assert monotonic() < until
            yield process
        finally:
            process.kill()


def is_web_process_of(place: Path, tangram: Tangram) -> bool:
    """Whether a process, by its folder in /proc, is the web process that `tangram up` started."""
    try:
        parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
        return parent == str(tangram.process.pid) and b"uvicorn" in (place / "cmdline").read_bytes()
    except OSError:
        return False


def is_listening(port: int) -> bool:
    """Whether a process of this machine accepts connections at a port."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_a_web_process_dies(open_page: Open, tangram: Tangram) -> None:
    page = overview(open_page)
    with second_web_process(tangram) as process:
        visit(page, "/workers/")
        expect(page.get_by_role("cell", name="web", exact=True)).to_have_count(2)
        process.kill()

    problem = problem_on(page, f"web_dead:{socket.gethostname()}")
    expect(problem.locator(".title")).to_contain_text("Web process on")
    expect(problem).to_contain_text(f"Process {process.pid} showed no life after")
    expect(problem).to_contain_text("1 other answers.")
    with solved(page):
        problem.locator(".evidence").click()
        said = page.locator(f'[data-problem="web_dead:{socket.gethostname()}"]')
        expect(said).to_contain_text(f"Process {process.pid} showed no life after")

    # Another one replaces it, and ends in order.
    with second_web_process(tangram) as successor:
        visit(page, "/")
        dead = page.locator(f'.problem[data-id="web_dead:{socket.gethostname()}"]')
        expect(dead).to_have_attribute("data-state", "cleared")
        successor.terminate()
        successor.wait(30)
    expect(dead).to_have_attribute("data-state", "cleared")


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
