"""Pages of selectors: the map of speeds, contexts, switches and why, pins; and what a fresh installation shows."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from contract.selector_status import (
    LoadView,
    ProfileSummary,
    SelectorsStatus,
    SelectorStageView,
    SelectorView,
    SwitchView,
)
from domain.selector_events import SelectorPinned
from domain.selectors import (
    Parallelism,
    ParallelismProfile,
    ProfileCell,
    ProfileIdentity,
    SelectorStage,
    StageLoad,
)
from tangram_web.lib import scheduler_client
from tangram_web.operations import audited_events
from tangram_web.parallelism.drawings import context_plot, heat_map
from tangram_web.parallelism.views import SAMPLE
from tangram_web.pools.manifests import parse
from tangram_web.pools.models import SelectorRow

pytestmark = pytest.mark.django_db
TP4, TP8 = Parallelism(4), Parallelism(8)
ROLLOUT = SelectorStage.ROLLOUT
IDENTITY = ProfileIdentity("h100", "72b", "vllm")
PROFILE = ParallelismProfile(
    IDENTITY,
    (
        ProfileCell(TP4, 4096, 32, tokens_per_gpu_second=131.0),
        ProfileCell(TP8, 4096, 32, tokens_per_gpu_second=100.0),
        ProfileCell(TP4, 32_768, 32, tokens_per_gpu_second=60.0),
        ProfileCell(TP8, 32_768, 32, tokens_per_gpu_second=63.0, peak_memory_bytes=2**36),
        ProfileCell(TP4, 32_768, 128, oom=True),
        ProfileCell(TP8, 32_768, 128, tokens_per_gpu_second=70.0),
    ),
    source="modelled",
    revision=3,
)
LOAD = StageLoad(20_000.0, 24_000.0, 26_000.0, 32)
SELECTOR = SelectorView(
    "long", "service:policy", (TP4, TP8), (4096, 32_768), (32, 128), 32_768, 1.5, 0.15,
    [SelectorStageView(ROLLOUT, TP8, "faster", "tp8 is 5.0% faster than tp4", LOAD, 7, 26_000.0, 32_768.0, 0.0)],
    ROLLOUT, None, False,
    ProfileSummary(IDENTITY, "modelled", 3, 6, 1), [],
    [LoadView("2026-01-02T03:04:05Z", ROLLOUT, StageLoad(3000.0), TP4, "first", 1),
     LoadView("2026-01-02T03:05:05Z", ROLLOUT, LOAD, TP8, "faster", 2)],
    [SwitchView("2026-01-02T03:05:05Z", ROLLOUT, TP4, TP8, "faster", "tp8 is 5.0% faster than tp4", 0.05, 12.0, 3)],
)  # fmt: skip


@pytest.fixture
def asked(defaults: None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Answer for the scheduler; return what it was asked."""
    questions: list[Any] = []

    def selectors(selector: str = "", **about: Any) -> SelectorsStatus:
        questions.append((selector, about))
        refused = "never_fits" if about.get("pin") == TP4 and not about.get("forced") else ""
        return SelectorsStatus([SELECTOR], PROFILE, problem=refused, detail=refused and "no memory")

    monkeypatch.setattr(scheduler_client, "selectors", selectors)
    SelectorRow.objects.create(name="long", spec={"degrees": [{"tp": 4, "pp": 1, "dp": 1}]})
    return questions


@pytest.fixture
def root(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("root"))
    return client


def shown(client: Client, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200
    return unescape(response.content.decode())


def test_the_page_has_the_map_the_contexts_the_switches_and_why(
    root: Client, asked: list[Any]
) -> None:
    page = shown(root, "/parallelism/long/")

    assert '<td data-level="worse-2" title="tp4: 131 tokens per GPU and second' in page
    assert 'data-level="better-1" data-now' in page  # 20,000 tokens are within the cell of 32,768
    assert "OOM tp4" in page
    assert "tp8 is 5.0% faster than tp4" in page
    assert "20,000 tokens on average, 24,000 at p95, 32 responses" in page
    assert "/act/selector/pin/?target=long" in page
    assert asked == [("long", {"cells": True, "history": True})]
    assert "tp8 is 5.0% faster" in shown(root, "/parallelism/")


def test_a_fresh_installation_gets_a_declaration_that_is_taken(
    root: Client, defaults: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_client, "selectors", lambda *_, **__: SelectorsStatus())

    page = shown(root, "/parallelism/")

    assert SAMPLE in page
    assert ("Selector", "policy") in parse(SAMPLE)
    assert "No such selector" in root.get("/parallelism/nothing/").content.decode()


def test_a_degree_is_pinned_from_the_page_unless_it_would_run_out_of_memory(
    root: Client, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(audited_events, "send_commands", lambda *events: sent.extend(events))
    address = "/act/selector/pin/?target=long"

    asking = shown(root, address)
    refused = root.post(address, {"target": "long", "degree": "tp4"})
    done = root.post(address, {"target": "long", "degree": "tp8"})

    assert "tangram selector pin long tp8" in asking
    assert (refused.status_code, "no memory" in refused.content.decode()) == (409, True)
    assert done.status_code == 302
    assert sent == [SelectorPinned(selector="long", parallelism=TP8)]


def test_the_map_compares_two_degrees_and_marks_the_present_cell() -> None:
    found = heat_map(PROFILE, ROLLOUT, TP4, TP8, LOAD)

    assert found is not None
    assert found.contexts == [4096, 32_768]
    assert [(row.responses, [cell.text for cell in row.cells]) for row in found.rows] == [
        (128, ["–", "OOM tp4"]),
        (32, ["-24%", "+5%"]),
    ]
    assert [cell.now for row in found.rows for cell in row.cells] == [False, False, False, True]
    assert "64.0 GiB" in found.rows[1].cells[1].title
    assert heat_map(PROFILE, SelectorStage.TRAINING, TP4, TP8, None) is None


def test_contexts_are_plotted_below_a_round_number_with_their_switches() -> None:
    plot = context_plot(SELECTOR.loads, 32_768)

    assert plot is not None
    assert plot.ticks[-1] == (0.0, 32_768)
    assert plot.limit == 0.0
    assert plot.switches == [(450.0, "tp8")]
    assert context_plot([], None) is None
