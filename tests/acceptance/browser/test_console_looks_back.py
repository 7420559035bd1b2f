"""Pages of the past: traces in place, charts as pictures, the GPU map, tabs that were left open."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import expect

from domain.redis_keys import Keys
from scheduler.runtime.redis.clients import connect
from tangram_web.lib.env import embedded_redis_url
from tangram_web.live.gpu_history import STEP_SECONDS, GpuHistoryStore, GpuSnapshot
from tests.acceptance.browser.conftest import DESK, PHONE, Open, run
from tests.acceptance.browser.test_console_is_accessible import MARKUP, violations
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_trace_opens_in_place_and_is_walked_by_keys(open_page: Open, tangram: Tangram) -> None:
    done = [run(tangram, "true", trajectory="traced", step=n, family=MARKUP) for n in range(2)]
    page = open_page("/trajectories/default/traced/")
    page.get_by_role("link", name="Open trace").click()
    viewer = page.locator("tg-trace")
    expect(viewer.get_by_role("status")).to_contain_text("2 actions")
    viewer.locator("canvas").focus()
    for key in ("n", "n", "+", "ArrowRight", "-", "0"):
        page.keyboard.press(key)
    expect(viewer.locator(".facts-list")).to_contain_text(done[1]["id"])
    expect(viewer.locator(".facts-list")).to_contain_text("<script>alert(2)</script>")
    viewer.get_by_text("As a table").click()
    for one in done:
        expect(viewer.locator("table")).to_contain_text(one["id"])
    assert page.locator('img[src="x"]').count() == 0
    viewer.locator("canvas").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#action-id")).to_have_text(done[1]["id"])


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_traces_and_flames_are_accessible(open_page: Open, tangram: Tangram, size: object) -> None:
    # Its own for each size: phases shorter than 0.05 % of a trajectory are not drawn.
    name = f"flamed-{'phone' if size == PHONE else 'desk'}"
    run(tangram, "true", trajectory=name, step=1)
    for path in (f"/trace/?trajectory=default/{name}", "/trace/?range=300"):
        page = open_page(path, viewport=size, color_scheme="dark")
        expect(page.locator("tg-trace").get_by_role("status")).to_contain_text("action")
        assert violations(page) == []
    page = open_page(f"/trajectories/default/{name}/", viewport=size)
    expect(page.locator("#flame rect.execution")).not_to_have_count(0)
    expect(page.locator("#critical")).to_contain_text("Share of the makespan")
    page.locator("#critical summary").click()
    page.locator("#flame summary").click()
    assert violations(page) == []


@pytest.mark.parametrize(
    ("path", "place"),
    [("/", "#throughput"), ("/trajectories/default/drawn-1/", "#flame"), ("/cpu/", ".card")],
)
def test_a_chart_is_saved_as_a_picture(
    open_page: Open, tangram: Tangram, path: str, place: str
) -> None:
    run(tangram, "true", trajectory="drawn-1", step=1)
    page = open_page(path)
    panel = page.locator(f".panel:has({place}), .panel{place}, {place}.card").last
    with page.expect_download() as begun:
        panel.get_by_role("button", name="as PNG").first.click()
    picture = begun.value.path().read_bytes()
    assert picture.startswith(PNG)
    assert len(picture) > 1000


def test_the_gpu_map_goes_back_and_a_link_to_it_is_frozen(
    open_page: Open, tangram: Tangram
) -> None:
    # Hours ago: the oldest that there is, for however long this stack has been running.
    then = int(time.time()) // STEP_SECONDS * STEP_SECONDS - 720 * STEP_SECONDS
    gpus = {"groups": ["0-3"], "unhealthy": [], "memory_bytes": 0, "oversubscribed": False}
    holder = {"id": "act_gone", "project": "p", "task": MARKUP, "trajectory": None, "kind": "gpu",
              "units": "0-1", "amount": 2, "shared": False, "since": then - 5}  # fmt: skip
    node = {
        "name": "was-here",
        "pool": "default",
        "state": "ready",
        "gpus": gpus,
        "holders": [holder],
    }
    url = embedded_redis_url(tangram.home / "redis")
    with connect(url) as client:
        GpuHistoryStore(client, Keys()).save([GpuSnapshot(then, [node], [], [])])

    page = open_page(f"/gpu/?at={then}")

    expect(page.locator(".card .name")).to_have_text("was-here")
    expect(page.locator("#holders")).to_contain_text("<script>alert(2)</script>")
    expect(page.locator(".card .counts")).to_contain_text("2 held, 2 free")
    assert violations(page) == []
    page.get_by_role("link", name="Back to live").click()
    expect(page.locator("tg-live .word")).to_have_text("Live")
    expect(page.locator(".card .name")).not_to_have_text("was-here")
    page.wait_for_load_state("load")  # before that its scripts hear no keys
    page.locator("#scrub").focus()
    page.keyboard.press("Home")
    expect(page.locator("#scrub-note")).to_contain_text("as it was")
    assert f"at={then}" in page.url


def test_a_tab_whose_login_expired_says_so(open_page: Open, complaints: list[str]) -> None:
    page = open_page("/queues/")
    page.context.clear_cookies()
    expect(page.get_by_role("alert")).to_contain_text("You are signed out")
    page.get_by_role("link", name="Sign in again").click()
    expect(page.get_by_label("Name")).to_be_visible()


def test_a_search_of_ten_thousand_letters_is_answered(open_page: Open) -> None:
    page = open_page("/actions/")
    page.locator("#filter").fill("x" * 10_000)
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("more than 4000 characters")
    page.wait_for_load_state("load")  # before that its scripts hear no keys
    page.keyboard.press("Control+k")
    page.locator("#palette-input").fill("y" * 10_000)
    expect(page.locator("#palette-status")).to_contain_text("Nothing begins with “yyy")
