"""Every verb in Chromium over a running stack: previewed, confirmed, audited, undone, refused.

One table says of each verb which target it is done to and what is typed. The lowest role that may
do it does it; the one below is refused, at the page and behind it. What has an undo is undone by
it, so that the stack is afterwards as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect
from redis import Redis

from domain.codec import encode
from domain.events import NodeJoined
from domain.inventory import NodeInventory, ResourceInventory
from domain.redis_keys import Keys
from tangram_web.lib.env import embedded_redis_url
from tangram_web.operations.verbs import VERBS
from tests.acceptance.browser.fleets import generate, modelled_fleet
from tests.acceptance.browser.pages import apply, until, visit
from tests.acceptance.browser.people import ROLES, signed_in_people
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CONFIGURATION = """apiVersion: tangram/v1
kind: Resource
metadata: {name: "api:verbs"}
spec:
  limit_units: 4
  quotas: [{units: 1, window_seconds: 86400}]
---
apiVersion: tangram/v1
kind: GpuService
metadata: {name: verbs}
spec:
  engine: process
  degrees: [{gpus: 1, memory_bytes: 1073741824}]
  command: [python3, -m, http.server, "{port}", --bind, 127.0.0.1]
  warm_up: {path: /}
---
apiVersion: tangram/v1
kind: Selector
metadata: {name: verbs}
spec: {degrees: [{tp: 1}, {tp: 2}]}
"""
WAITS = {"task": "verbs", "kind": "noop", "cost": {"api:verbs": 1}}
#: Its RUN waits for a seat: the pool has no backend.
WAITING_ROLLOUT = {
    "task": "verbs",
    "handler": "noop",
    "instances": [{"id": "a"}],
    "llm": "verbs-none",
}
BACKEND = "verbs-llm/b1"


class Case(NamedTuple):
    """How a verb is done."""

    #: What it is done to; ``ACTION``, ``ROLLOUT`` and ``NODE`` stand for those that the stack has.
    target: str
    #: Label of a field → what is typed or chosen there.
    fields: dict[str, str] = {}
    #: What the preview says of it.
    effect: str = ""
    #: How the line for a shell begins.
    line: str = "echo '{"
    #: What the page of operating shows once it is done.
    shows: str = ""
    #: Must be done first, for there to be something to do.
    after: str = ""
    #: What the audit calls it.
    written: str = ""


CASES: dict[tuple[str, str], Case] = {
    ("action", "cancel"): Case(
        "ACTION", {"Reason": "not needed"}, "ends as cancelled", "tangram cancel act_"
    ),
    ("task", "pause"): Case("default/verbs", {}, "no waiting or new action", "tangram task pause verbs",
                            "default/verbs"),
    ("task", "resume"): Case("default/verbs", {}, "granted again", "tangram task resume verbs",
                             after="pause"),
    ("task", "priority"): Case("default/verbs", {"Priority": "7"}, "another place",
                               "tangram task priority verbs", "default/verbs",
                               written="prioritise"),
    ("task", "cancel"): Case("default/verbs", {"Reason": "all wrong"}, "All these actions end",
                             "tangram task cancel verbs"),
    ("rollout", "cancel"): Case("ROLLOUT", {"Reason": "not needed"}, "ends as cancelled",
                                "tangram rollout cancel rol_"),
    ("rollout", "park"): Case("ROLLOUT", {"Reason": "later"}, "Its leases end", "tangram rollout park rol_"),
    ("rollout", "resume"): Case("ROLLOUT", {}, "continues at its last turn", "tangram rollout resume rol_",
                                after="park"),
    ("backend", "drain"): Case(BACKEND, {}, "gets no new rollouts", "tangram backend drain b1"),
    ("backend", "resume"): Case(BACKEND, {}, "takes new rollouts again", "tangram backend resume b1",
                                after="drain"),
    ("backend", "remove"): Case(BACKEND, {}, "sample elsewhere", "tangram backend rm b1"),
    ("backends", "add"): Case("verbs-llm", {"Address": "http://127.0.0.1:9/v1"}, "take seats on it",
                              "tangram backend add http://127.0.0.1:9"),
    ("backends", "clear"): Case("verbs-llm", {}, "are removed", "tangram backend clear"),
    ("worker", "drain"): Case("verbs-8B/w1", {}, "gets no further generation", "tangram fleet drain verbs-8B w1"),
    ("worker", "undrain"): Case("verbs-8B/w1", {}, "gets generations again", "tangram fleet undrain verbs-8B w1",
                                after="drain"),
    ("trajectory", "pin"): Case("default/verbs-1", {"Worker": "w1 of verbs-8B"}, "stays on the worker",
                                "tangram fleet pin verbs-8B verbs-1 w1"),
    ("trajectory", "unpin"): Case("default/verbs-1", {}, "places it again", "tangram fleet unpin verbs-8B verbs-1",
                                  after="pin"),
    ("node", "drain"): Case("NODE", {"Reason": "a new disk"}, "takes no new actions",
                            "tangram node drain", ": a new disk"),
    ("node", "resume"): Case("NODE", {}, "takes new actions again", "tangram node resume",
                             after="drain"),
    ("node", "retire"): Case("NODE", {"Running actions": "are cancelled now"}, "takes no new actions",
                             "tangram node drain", ": retired"),
    ("node", "forget"): Case("GONE", {}, "joins as a new node", "tangram node forget"),
    ("pool", "resize"): Case("default", {"Nodes in service": "0"}, "No node remains",
                             "tangram node drain", "the pool was made smaller"),
    ("pool", "pause"): Case("default", {}, "no waiting or new action", shows="paused", written="update"),
    ("pool", "resume"): Case("default", {}, "granted again", after="pause", written="update"),
    ("pool", "policy"): Case("default", {"Policy": "fixed(k): grants each action k units, or its nearest smaller count",
                                         "Units (k)": "2"}, "keep their units", shows="fixed(2)",
                             written="update"),
    ("pool", "share"): Case("default", {"Nominal units": "1"}, "nominal share", written="update"),
    ("resource", "limit"): Case("api:verbs", {"Units": "3"}, "Grants are kept", written="set"),
    ("resource", "quota"): Case("api:verbs", {"Units": "0.5"}, "still count",
                                written="set"),
    ("resource", "share"): Case("api:verbs", {"Nominal units": "9"}, "add up to 9 of 4",
                                written="set"),
    ("selector", "pin"): Case("verbs", {"Degree": "tp2"}, "All stages get this degree",
                              "tangram selector pin verbs tp2"),
    ("selector", "unpin"): Case("verbs", {}, "selected by the load again", "tangram selector unpin verbs",
                                after="pin"),
    ("service", "quarantine"): Case("verbs", {}, "other calls wait", shows="quarantined"),
    ("service", "release"): Case("verbs", {}, "granted again", after="quarantine"),
    ("service", "restore"): Case("verbs", {}, "warm-up call"),
    ("service", "evict"): Case("verbs", {}, "removed from its idle chunks", "tangram service evict"),
}  # fmt: skip


@pytest.fixture(scope="module")
def people(browser: Browser, tangram: Tangram, admin_token: str) -> Iterator[dict[str, Page]]:
    """A page for each role, and something to do verbs to."""
    with (
        signed_in_people(browser, tangram, [f"verbs-{role}" for role in ROLES]) as found,
        modelled_fleet(tangram, admin_token, "verbs-8B", engines=1),
    ):
        generate(tangram, "verbs-8B", "verbs-1")
        pages = dict(zip(ROLES, found.values(), strict=True))
        apply(pages["admin"], CONFIGURATION)
        tangram.post("/api/v1/actions?wait=60", WAITS)
        yield pages


@pytest.fixture(scope="module")
def node(people: Any, tangram: Tangram) -> str:
    name: str = tangram.get("/api/v1/nodes")["results"][0]["name"]
    return name


@pytest.fixture
def aim(tangram: Tangram, people: dict[str, Page], node: str) -> Any:
    """The target of a case: the quota is used up, so the action waits."""

    def find(case: Case) -> str:
        if case.target == "NODE":
            return node
        if case.target == "GONE":
            return a_node_that_fell_silent(tangram, people["admin"])
        if case.target == "ROLLOUT":
            made: str = tangram.post("/api/v1/rollouts", WAITING_ROLLOUT)["rollouts"][0]["id"]
            until(people["admin"], "/rollouts/?task=verbs", lambda page: made in page.content())
            return made
        if case.target.startswith("verbs-llm"):
            backend = {"pool": "verbs-llm", "name": "b1", "address": "http://127.0.0.1:9"}
            tangram.post("/api/v1/backends", backend)
            return case.target
        if case.target not in ("ACTION", "default/verbs"):
            return case.target
        waits = tangram.post("/api/v1/actions", WAITS)["id"]
        until(people["admin"], "/actions/?task=verbs", lambda page: waits in page.content())
        return waits if case.target == "ACTION" else case.target

    return find


def a_node_that_fell_silent(tangram: Tangram, admin: Page) -> str:
    """Return a node that has joined and then sent no sign of life."""
    with Redis.from_url(embedded_redis_url(tangram.home / "redis")) as client:
        cpu = {"cpu": ResourceInventory(1000, ((0,),))}
        gone = NodeInventory("gone", "a disk", 1, "away", cpu)
        client.xadd(Keys().inbox, {"0": encode(NodeJoined(node=gone))})
    until(admin, "/operate/", lambda page: "/act/node/forget/?target=gone" in page.content())
    return gone.name


def test_every_verb_is_done_here() -> None:
    """But for verbs on what is selected, which begin in a list: test_console_pages.py."""
    assert CASES.keys() | {("actions", "cancel"), ("tasks", "priority")} == VERBS.keys()


def look(page: Page, kind: str, name: str, target: str) -> None:
    visit(page, f"/act/{kind}/{name}/?target={target}")


def confirm(page: Page, kind: str, name: str, target: str) -> None:
    """Confirm as the weight of the verb asks for."""
    verb = VERBS[kind, name]
    if verb.heavy:
        page.get_by_label("to confirm").fill(target)
    page.get_by_role("button", name=verb.title, exact=True).click()
    expect(page.get_by_role("heading", name="Done")).to_be_visible()


@pytest.mark.parametrize("verb", CASES, ids="-".join)
def test_a_verb_is_previewed_confirmed_audited_undone_and_refused_below_its_role(
    people: dict[str, Page], aim: Any, verb: tuple[str, str]
) -> None:
    (kind, name), case, role = verb, CASES[verb], VERBS[verb].role
    target, admin, page = aim(case), people["admin"], people[str(role)]
    refused(people[ROLES[ROLES.index(str(role)) - 1]], admin, kind, name, target)
    if case.after:
        look(admin, kind, case.after, target)
        confirm(admin, kind, case.after, target)

    # Previewed: counted by the server, with the line that does the same in a shell.
    look(page, kind, name, target)
    for label, value in case.fields.items():
        field = page.get_by_label(label, exact=False).first
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(label=value)
        else:
            field.fill(value)
    if case.fields:
        page.get_by_role("button", name="Preview").click()
    expect(page.locator("main")).to_contain_text(case.effect)
    expect(page.locator("pre.command")).to_contain_text(case.line)

    # Confirmed: not by one button where it is heavy.
    if VERBS[verb].heavy:
        page.get_by_role("button", name=VERBS[verb].title, exact=True).click()
        expect(page.get_by_role("alert").filter(has_text=f"Type {target}")).to_be_visible()
    confirm(page, kind, name, target)
    undo = page.get_by_role("link", name="Undo:")
    undo_address = undo.get_attribute("href") if undo.count() else None
    if case.shows:
        until(admin, "/operate/", lambda p: case.shows in p.inner_text("main"))

    # Audited.
    reported(admin, f"verbs-{role}", case.written or name, f"{kind}/{target}")

    # Undone, where that can be.
    assert bool(VERBS[verb].undo) is bool(undo_address)
    if undo_address:
        back = undo_address.split("/")[3]
        visit(admin, undo_address)
        confirm(admin, kind, back, target)
    if case.after:  # its undo left things as they had to be first
        look(admin, kind, name, target)
        confirm(admin, kind, name, target)


def refused(page: Page, admin: Page, kind: str, name: str, target: str) -> None:
    """Check that a role is refused, at the page and behind it, and that the audit has no entry."""
    look(page, kind, name, target)
    expect(page.get_by_role("heading", name="Not permitted")).to_be_visible()
    cookie = next(c["value"] for c in page.context.cookies() if c["name"] == "csrftoken")
    form: dict[str, Any] = {"target": target, "typed": target, "csrfmiddlewaretoken": cookie}
    address = page.url.partition("?")[0]
    assert page.context.request.post(address, form=form).status == 403
    who = f"verbs-{ROLES[ROLES.index(str(VERBS[kind, name].role)) - 1]}"
    visit(admin, f"/audit/?actor={who}&target={kind}/{target}")
    assert admin.locator("#rows tbody tr", has_text=name).count() == 0


def reported(page: Page, who: str, verb: str, target: str) -> None:
    visit(page, f"/audit/?actor={who}&target={target}")
    row = page.locator("#rows tbody tr").first
    for cell in (who, "web", verb, target, "req_"):
        expect(row).to_contain_text(cell)
