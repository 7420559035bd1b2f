"""Guards of the console, in Chromium over a running stack.

Forged and framed requests, planted sessions, links that lead elsewhere, stored markup; and people
in each other's way: two who edit one revision, a target that is gone, work that would be stranded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect

from tests.acceptance.browser.pages import PATIENCE_MS, apply, until, visit
from tests.acceptance.browser.people import sign_in, signed_in_people
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
RESOURCE = """apiVersion: tangram/v1
kind: Resource
metadata: {name: "api:guards"}
spec: {limit_units: %s, quotas: [{units: %s, window_seconds: 86400}]}
"""


@pytest.fixture(scope="module")
def admins(browser: Browser, tangram: Tangram) -> Iterator[tuple[Page, Page]]:
    with signed_in_people(browser, tangram, ("guards-admin", "other-admin")) as pages:
        yield pages["guards-admin"], pages["other-admin"]


@pytest.fixture(scope="module")
def admin(admins: tuple[Page, Page]) -> Page:
    return admins[0]


@pytest.fixture(scope="module")
def used_up(admin: Page, tangram: Tangram) -> None:
    """A resource with nothing left of its quota, for a day."""
    apply(admin, RESOURCE % (4, 4))
    body = {"task": "guards", "kind": "noop", "cost": {"api:guards": 4}}
    assert tangram.post("/api/v1/actions?wait=60", body)["state"] == "finished"


@pytest.fixture
def waiting(tangram: Tangram, admin: Page, used_up: None) -> Any:
    """Make an action that waits for so many units of it."""

    def make(units: int = 1) -> str:
        apply(admin, RESOURCE % (4, 4))
        body = {"task": "guards", "kind": "noop", "cost": {"api:guards": units}}
        waits: str = tangram.post("/api/v1/actions", body)["id"]
        until(admin, "/actions/?task=guards", lambda page: waits in page.content())
        return waits

    yield make
    name = "default/guards"
    visit(admin, f"/act/task/cancel/?target={name}")
    if admin.get_by_label("to confirm").count():
        admin.get_by_label("to confirm").fill(name)
        admin.get_by_role("button", name="Cancel all actions").click()
        expect(admin.get_by_role("heading", name="Done")).to_be_visible()


def press(page: Page, name: str) -> int:
    """Press a button that sends a form; return the status of what comes back."""
    with page.expect_response(lambda answer: answer.request.method == "POST") as got:
        page.get_by_role("button", name=name, exact=True).click()
    page.wait_for_load_state()
    return int(got.value.status)


# Forged, framed, planted, led away, and stored


def test_a_form_sent_from_elsewhere_does_nothing(admin: Page, tangram: Tangram) -> None:
    url = tangram.access["url"]
    forged: dict[str, Any] = {"target": "default", "typed": "default"}
    send = admin.context.request.post
    cookie = next(c["value"] for c in admin.context.cookies() if c["name"] == "csrftoken")

    # With the session's cookie, but no token; with the token, but from another site.
    assert send(f"{url}/act/pool/pause/", form=forged).status == 403
    with_token = {**forged, "csrfmiddlewaretoken": cookie}
    elsewhere = {"Origin": "https://evil.example"}
    assert send(f"{url}/act/pool/pause/", form=with_token, headers=elsewhere).status == 403

    # As a browser sends it: from a page of another site, in the same browser.
    page = admin.context.new_page()
    page.set_content(
        f"<form method=post action='{url}/act/pool/pause/'><input name=target value=default>"
        "<input name=typed value=default><button>Win a prize</button></form>"
    )
    assert press(page, "Win a prize") == 403
    page.close()
    visit(admin, "/audit/?target=pool/default&actor=guards-admin")
    assert admin.locator("#rows tbody tr").count() == 0


def test_no_page_shows_in_a_frame(admin: Page, tangram: Tangram) -> None:
    url = tangram.access["url"]
    for path in ("/", "/operate/", "/act/pool/pause/?target=default", "/login/", "/webhooks/",
                 "/configuration/edit/", "/people/tokens/", "/no/such/page/"):  # fmt: skip
        headers = admin.context.request.get(url + path).headers
        assert headers["x-frame-options"] == "DENY", path
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path

    page = admin.context.new_page()
    page.set_content(f"<iframe src='{url}/operate/'></iframe>")
    page.wait_for_function("document.querySelector('iframe').contentDocument === null")
    frame = page.frames[-1]
    assert frame.url == "chrome-error://chromewebdata/"
    page.close()


def test_a_planted_session_opens_nothing(browser: Browser, admin: Page, tangram: Tangram) -> None:
    planted = {"name": "sessionid", "value": uuid4().hex, "url": tangram.access["url"]}
    victim, thief = browser.new_context(), browser.new_context()
    victim.add_cookies([planted])  # type: ignore[list-item]
    sign_in(victim, tangram, "other-admin")

    now = next(cookie for cookie in victim.cookies() if cookie["name"] == "sessionid")
    assert now["value"] != planted["value"]
    assert now["httpOnly"]
    thief.add_cookies([planted])  # type: ignore[list-item]
    thief.set_default_timeout(PATIENCE_MS)
    page = thief.new_page()
    page.goto(tangram.access["url"] + "/operate/")
    expect(page).to_have_title("Sign in · Tangram")
    for context in (victim, thief):
        context.close()


def test_signing_in_leads_nowhere_else(browser: Browser, admin: Page, tangram: Tangram) -> None:
    for next_ in ("https://evil.example/", "//evil.example/", "javascript:alert(1)"):
        context = browser.new_context()
        page = sign_in(context, tangram, "guards-admin", f"/login/?next={next_}")
        assert page.url == tangram.access["url"] + "/"
        context.close()


def test_markup_that_is_stored_stays_text(admin: Page, tangram: Tangram) -> None:
    ran: list[str] = []

    def heard(dialog: Dialog) -> None:
        ran.append(dialog.message)
        dialog.dismiss()

    admin.on("dialog", heard)
    name = tangram.get("/api/v1/nodes")["results"][0]["name"]
    visit(admin, f"/act/node/drain/?target={name}")
    admin.get_by_label("Reason").fill(MARKUP)
    press(admin, "Drain")
    back = admin.get_by_role("link", name="Undo:").get_attribute("href") or ""
    visit(admin, "/people/tokens/")
    admin.get_by_label("Name").fill(MARKUP)
    press(admin, "Create")

    for path in ("/operate/", f"/audit/?target=node/{name}", "/people/tokens/", "/configuration/"):
        visit(admin, path)
        if path != "/configuration/":
            expect(admin.locator("main")).to_contain_text(MARKUP)
        assert admin.locator("main img[src=x]").count() == 0
    assert ran == []
    visit(admin, back)
    press(admin, "Resume")


# In each other's way


def test_two_admins_who_edit_one_revision_merge(admins: tuple[Page, Page]) -> None:
    first, second = admins
    apply(first, RESOURCE % (4, 9))
    for page in admins:
        visit(page, "/configuration/edit/?kind=Resource&name=api:guards")
    first.get_by_label("Limit units").fill("6")
    second.get_by_label("Quotas (YAML)").fill("[{units: 5, window_seconds: 86400}]")
    for page in admins:
        page.get_by_role("button", name="Review").first.click()
        expect(page.get_by_role("heading", name="Review")).to_be_visible()

    press(first, "Save")
    expect(first.get_by_text("it is in force")).to_be_visible()
    assert press(second, "Save") == 412

    expect(second.get_by_role("heading", name="Merge")).to_be_visible()
    expect(second.get_by_text("The configuration was saved while you edited")).to_be_visible()
    merged = second.get_by_label("The configuration as YAML").input_value()
    assert "limit_units: 6" in merged
    assert "units: 5.0" in merged
    second.get_by_role("button", name="Review").click()
    press(second, "Save")
    expect(second.get_by_text("it is in force")).to_be_visible()


def test_an_operation_on_a_vanishing_action_is_refused_with_the_reason(
    admin: Page, tangram: Tangram, waiting: Any
) -> None:
    gone = waiting()
    visit(admin, f"/act/action/cancel/?target={gone}")
    tangram.post(f"/api/v1/actions/{gone}/cancel", {})
    watching = admin.context.new_page()
    watching.goto(admin.url)
    until(watching, f"/actions/{gone}/", lambda page: "cancelled" in page.inner_text("main"))
    watching.close()

    assert press(admin, "Cancel") == 409
    expect(admin.get_by_text("has finished: cancelled. Nothing was changed.")).to_be_visible()
    visit(admin, f"/audit/?target=action/{gone}&actor=guards-admin")
    assert admin.locator("#rows tbody tr").count() == 0


def test_stranded_actions_are_previewed_refused_or_cancelled(
    admin: Page, tangram: Tangram, waiting: Any
) -> None:
    waits = waiting(3)
    visit(admin, "/configuration/edit/")
    admin.get_by_label("The configuration as YAML").fill(RESOURCE % (2, 4))
    admin.get_by_role("button", name="Review").click()

    expect(admin.get_by_text("could not run any more")).to_be_visible()
    expect(admin.get_by_role("cell", name=waits)).to_be_visible()
    assert press(admin, "Save") == 409
    assert tangram.get(f"/api/v1/actions/{waits}")["state"] == "queued"
    admin.get_by_label("For these actions").select_option("cancel")
    press(admin, "Save")
    expect(admin.get_by_text("it is in force")).to_be_visible()
    until(admin, f"/actions/{waits}/", lambda page: "cancelled" in page.inner_text("main"))


#: Presses a form's button twice, as far as the page can tell; which of both may be sent.
PRESSED_TWICE = """form => [1, 2].map(() =>
    form.dispatchEvent(new SubmitEvent("submit", { bubbles: true, cancelable: true })))"""


def test_a_button_that_is_pressed_twice_does_it_once(admin: Page) -> None:
    visit(admin, "/people/tokens/")
    assert admin.locator("form.ask").evaluate(PRESSED_TWICE) == [True, False]

    # What only asks may be asked as often as one likes.
    visit(admin, "/actions/")
    assert admin.locator("form[method=get]").first.evaluate(PRESSED_TWICE) == [True, True]
