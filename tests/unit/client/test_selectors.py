"""`client.selectors`, and `tangram selector`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tangram_client import Client
from tangram_client.aio import AsyncClient
from tangram_client.testing import FakeServer
from tests.unit.client.cli_runner import tangram
from tests.unit.client.test_rollouts import answers

TP8 = {"tp": 8, "pp": 1, "dp": 1}
DECISION = {
    **TP8, "stage": "rollout", "switched": True, "code": "faster", "why": "tp8 is faster", "gain": 0.05,
    "gain_seconds": 9.0, "switch_cost_seconds": 4.0, "reach": 24576.0, "revision": 3,
}  # fmt: skip
STAGE = {
    "stage": "rollout", "parallelism": TP8, "code": "faster", "why": "tp8 is faster", "step": 7, "longest": 16000.0,
    "reach": 24000.0, "lost_seconds": 0.0,
    "load": {"context": 12000.0, "responses": 32},
}  # fmt: skip
SELECTOR: dict[str, Any] = {
    "name": "policy", "target": "service:policy", "stages": [STAGE], "pin": None, "forced": False,
    "profile": {"identity": {"hardware": "h100", "model": "72b", "engine": "vllm"}, "source": "modelled",
                "revision": 3, "cells": 36, "out_of_memory": 1},
    "switches": [{"at": "2026-01-02T03:04:05Z", "stage": "rollout", "former": {"tp": 4, "pp": 1, "dp": 2},
                  "parallelism": TP8, "code": "faster", "why": "tp8 is faster", "gain": 0.05,
                  "switch_cost_seconds": 4.0, "revision": 3}],
}  # fmt: skip


async def test_a_decision_is_asked_with_what_is_known_of_the_load(server: FakeServer) -> None:
    answers(server, DECISION)
    async with AsyncClient("http://fake", "t", transport=server.transport) as client:
        found = await client.selectors.decision("policy", context=12000, responses=32, step=7)

    assert (found.degree, found.switched, found.gain, found.switch_cost_seconds) == (
        "tp8", True, 0.05, 4.0,
    )  # fmt: skip
    (sent,) = server.sent
    assert (sent.path, dict(sent.params)) == (
        "/api/v1/selectors/policy/decision",
        {"stage": "rollout", "context": "12000", "responses": "32", "step": "7"},
    )


def test_loads_profiles_and_pins_are_sent_as_the_api_takes_them(server: FakeServer) -> None:
    answers(server, *[{"selector": "policy"}] * 4)
    with Client("http://fake", "t", transport=server.transport) as client:
        client.selectors.observe("policy", context=900.5, responses=8, context_longest=2000)
        client.selectors.put_profile("policy", {"identity": {}, "cells": []})
        client.selectors.pin("policy", "tp4dp2", force=True)
        client.selectors.unpin("policy")

    sent = [
        (each.method, each.path.rpartition("/")[2], json.loads(each.body)) for each in server.sent
    ]
    assert sent == [
        ("POST", "observations",
         {"stage": "rollout", "context": 900.5, "responses": 8, "context_longest": 2000}),
        ("PUT", "profile", {"identity": {}, "cells": []}),
        ("POST", "pin", {"parallelism": {"tp": 4, "pp": 1, "dp": 2}, "force": True}),
        ("POST", "unpin", {}),
    ]  # fmt: skip


def test_a_degree_is_written_as_its_factors(client: Client) -> None:
    with pytest.raises(ValueError, match="write tp4"):
        client.selectors.pin("policy", "8")


def test_the_command_line_shows_degrees_reasons_and_switches(server: FakeServer) -> None:
    answers(server, {"selectors": [SELECTOR]}, SELECTOR, DECISION)
    listed = tangram(server, "selector", "list").stdout.splitlines()[-1]
    shown = tangram(server, "selector", "show", "policy")
    asked = tangram(server, "selector", "decision", "policy", "--context", "12000")

    assert listed.split() == "policy service:policy rollout tp8 12,000 16,000 32 –".split()
    assert "rollout: tp8 is faster" in shown.stderr
    assert "36 cells, 1 of them out of memory (modelled)" in shown.stderr
    assert "tp4dp2 tp8 +5.0% 4.0 s tp8 is faster" in " ".join(shown.stdout.split())
    assert (asked.stdout, server.sent[-1].params["dry_run"]) == ("tp8\n", "true")


def test_the_command_line_pins_and_ends_pins(server: FakeServer) -> None:
    answers(server, *[{"selector": "policy"}] * 2)

    assert tangram(server, "selector", "pin", "policy", "tp8").exit_code == 0
    assert tangram(server, "selector", "unpin", "policy").exit_code == 0
    assert json.loads(server.sent[0].body)["parallelism"] == TP8
    assert "write tp4" in tangram(server, "selector", "pin", "policy", "eight").stderr
