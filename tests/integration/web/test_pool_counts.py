"""Numbers that several pages show are counted in one way, and the markup names them so that they can be compared."""

from __future__ import annotations

from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from benchmarks.figures import Fact, Shown, add, shared
from tangram_web.lib import scheduler_client
from tangram_web.records.models import ActionRecord, TaskRecord

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(defaults: None, redis_bus: Any, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A browser of an admin; rows of actions name no pool, since their requests did not."""
    monkeypatch.setattr(scheduler_client, "ANSWER_SECONDS", 0.01)
    ActionRecord.objects.create(
        id="act_1", project="default", task="swe", kind="exec", submitted_at=datetime.now(UTC)
    )
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("admin"))
    return client


@pytest.mark.parametrize("verb", ["pause", "resume", "policy", "share"])
def test_a_verb_on_a_pool_counts_what_the_page_of_pools_counts(
    admin: Client, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"queued": 29, "granted": 3, "running": 2}
    monkeypatch.setattr(scheduler_client, "status", lambda: {"pools": {"default": counts}})

    effect = admin.get(f"/act/pool/{verb}/", {"target": "default"}).context["effect"]
    (pool,) = admin.get("/operate/").context["pools"]

    assert effect.counts == pool["counts"] == {"waiting": 29, "granted": 3, "running": 2}


class Figures(HTMLParser):
    """Figures of a page as the browser reads them: name, nearest scope, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[dict[str, str]] = []
        #: Tag, scope and figure of the open elements.
        self._open: list[tuple[str, str, dict[str, str] | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open an element."""
        given = {name: value or "" for name, value in attrs}
        scope = given.get("data-scope", self._open[-1][1] if self._open else "")
        figure = None
        if "data-figure" in given:
            figure = {"figure": given["data-figure"], "scope": scope, "text": ""}
            figure["link"] = given.get("href", "")
            if "data-value" in given:
                figure["value"] = figure["text"] = given["data-value"]
            self.found.append(figure)
        if tag not in {"input", "link", "meta", "br", "img", "hr"}:
            self._open.append((tag, scope, figure))

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element of the tag."""
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        """Add text to the figures around it that have no value of their own."""
        for _, _, figure in self._open:
            if figure is not None and "value" not in figure:
                figure["text"] += data


def shown_on(client: Client, **pages: str) -> Shown:
    """Return the figures of pages by name."""
    shown: Shown = {}
    for name, address in pages.items():
        add(shown, name, Figures(client.get(address).content.decode()).found)
    return shown


def test_figures_of_a_pool_and_of_a_task_are_named_alike_on_every_page(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"queued": 29, "granted": 3, "running": 2}
    monkeypatch.setattr(scheduler_client, "status", lambda: {"pools": {"default": counts}})
    TaskRecord.objects.create(
        key="default/swe", project="default", name="swe", opened_at=datetime.now(UTC),
        actions=7, finished=4,
    )  # fmt: skip

    shown = shown_on(
        admin, operate="/operate/", pause="/act/pool/pause/?target=default",
        tasks="/tasks/", task="/tasks/default/swe/", report="/tasks/default/swe/report/",
    )  # fmt: skip

    pool, task = "pool/default", "task/default/swe"
    assert shared(shown) == {
        Fact("waiting", pool): {"operate": 29, "pause": 29},
        Fact("granted", pool): {"operate": 3, "pause": 3},
        Fact("running", pool): {"operate": 2, "pause": 2},
        Fact("actions", task): {"tasks": 7, "task": 7, "report": 7},
        Fact("finished", task): {"tasks": 4, "task": 4, "report": 4},
        Fact("failing", task): {"tasks": 0, "task": 0},
    }


def test_a_verb_on_a_pool_says_that_its_actions_cannot_be_counted(admin: Client) -> None:
    effect = admin.get("/act/pool/pause/", {"target": "default"}).context["effect"]

    assert effect.counts == {}
    assert "cannot be counted now: the scheduler does not answer" in effect.warning
