"""Effects of verbs: the last minutes of a pool, played with and without one verb."""

from __future__ import annotations

import msgspec
import pytest
from django.test import Client

from benchmarks.console_effects import VERBS
from simulator import effect
from simulator.effect_request import EffectRequest, EffectResult
from tangram_web.operations.effects import PROPOSALS, EffectView
from tangram_web.pools.models import ConfigRevision
from tangram_web.records.models import ActionRecord, TaskRecord
from tangram_web.simulations import effects
from tangram_web.simulations.models import Simulation
from tests.integration.web.test_what_if import NOW, admin, minutes

__all__ = ["admin", "minutes"]  # fixtures


@pytest.fixture
def known(admin: Client) -> None:
    """The rows of a task and of an action that waits."""
    TaskRecord.objects.create(key="default/task-1", project="default", name="task-1", opened_at=NOW)
    ActionRecord.objects.create(
        id="act_1", project="default", task="task-1", kind="exec", submitted_at=NOW,
        cost={"api:demo": [1]},
    )  # fmt: skip


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Effects are played in this process."""

    def played(request: EffectRequest, trace: bytes, _: float) -> EffectResult:
        sent = msgspec.json.decode(msgspec.json.encode(request), type=EffectRequest)
        return effect.play(sent, trace)

    monkeypatch.setattr(effects, "_played", played)


def effect_of(admin: Client, kind: str, verb: str, target: str, **given: str) -> EffectView:
    found: EffectView = admin.get(
        f"/act/{kind}/{verb}/effect/", {"target": target, **given}
    ).context["effect"]
    return found


@pytest.mark.usefixtures("minutes", "known", "in_process")
@pytest.mark.parametrize(
    ("verb", "given"),
    [
        (("pool", "policy", "default"), {"policy": "paper"}),
        (("pool", "share", "default"), {"resource": "cpu", "project": "default", "nominal_units": "3"}),
        (("resource", "limit", "api:demo"), {"limit_units": "1"}),
        (("node", "drain", "n2"), {"running": "goes on"}),
        (("pool", "resize", "default"), {"nodes": "1"}),
        (("task", "priority", "default/task-1"), {"priority": "3"}),
        (("action", "cancel", "act_1"), {}),
        (("actions", "cancel", "act_1,act_2"), {"reason": ""}),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_verb_shows_its_effect_on_the_last_minutes(
    admin: Client, verb: tuple[str, str, str], given: dict[str, str]
) -> None:
    found = effect_of(admin, *verb, **given)

    assert found.reason == ""
    assert found.played is not None
    assert found.played.result.then.never == 0
    assert found.finding == "No action of the last 5 minutes would have ended sooner or later."
    assert ConfigRevision.objects.count() == 1


@pytest.mark.usefixtures("minutes", "known", "in_process")
@pytest.mark.parametrize(
    "verb", [("pool", "pause", "default"), ("task", "pause", "default/task-1")]
)
def test_the_effect_of_a_pause_is_what_it_would_hold_up(
    admin: Client, verb: tuple[str, str, str]
) -> None:
    found = effect_of(admin, *verb)

    assert found.finding == "2 of 2 actions of the last 5 minutes would still wait for its end."


@pytest.mark.usefixtures("minutes")
def test_an_effect_is_simulated_in_a_process_of_its_own(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "MOST_SECONDS", 120.0)  # a busy machine starts it slowly
    page = admin.get("/act/pool/policy/effect/", {"target": "default", "policy": "minimum"})

    found = page.context["effect"]
    assert found.reason == ""
    assert found.played.result.measured_mean is not None
    assert "How far to trust it" in page.content.decode()


@pytest.mark.usefixtures("minutes", "known", "in_process")
def test_an_effect_leads_to_a_what_if_whose_result_is_kept(admin: Client) -> None:
    found = effect_of(admin, "resource", "limit", "api:demo", limit_units="2")

    answer = admin.post("/configuration/try/", {"text": found.text, "project": found.project})

    assert answer.status_code == 302
    assert Simulation.objects.get().request["changed"][0]["after"] == "2"


@pytest.mark.usefixtures("minutes")
def test_an_effect_that_takes_too_long_is_given_up(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "MOST_SECONDS", 0.0)

    found = effect_of(admin, "pool", "policy", "default", policy="minimum")

    assert found.reason == "The simulation took longer than 3 s."


@pytest.mark.usefixtures("minutes", "known")
def test_what_is_so_already_has_no_effect(admin: Client) -> None:
    found = effect_of(admin, "resource", "limit", "api:demo", limit_units="8")

    assert found.reason == "These are the present values: nothing would change."


def test_after_a_question_that_took_too_long_the_next_window_is_shorter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulator = effects._Simulator()
    monkeypatch.setattr(effects, "_exchange", lambda *_: b"")
    with pytest.raises(effects.TookTooLong):
        simulator.ask(b"{}", b"x" * 2**20, 0.05)
    assert simulator.most_bytes == 2**19

    monkeypatch.setattr(effects, "_exchange", lambda *_: b'{"problem": "none"}\n')
    assert simulator.ask(b"{}", b"", 60.0).problem == "none"
    assert simulator.most_bytes == 2**20
    simulator.stop()


def test_the_benchmark_of_effects_opens_every_simulated_verb() -> None:
    assert sorted((verb.kind, verb.name) for verb in VERBS) == sorted(PROPOSALS)
