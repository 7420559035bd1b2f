"""Generations are admitted from the router of a fleet alone, which has the connection that the answer goes to."""

from __future__ import annotations

from typing import Any

import pytest

from contract.requests import ActionRequest, CallRequest
from domain.action import Action, ExecSpec, Kind
from domain.decisions import Abort, Grant
from domain.errors import InvalidRequest
from domain.fleets import GenerationSpec
from domain.ids import ActionId
from domain.principals import Principal, Scope
from domain.redis_keys import Keys
from scheduler.runtime.action_views import granted_units, live_view, placement
from scheduler.runtime.capacity import capacity_of
from scheduler.runtime.gateway.admission import Admission
from scheduler.runtime.loop.node_commands import node_commands
from tests.builders import a_config, a_fleet, a_generation, only
from tests.scenario import Scenario

TRAINER = Principal("trainer", None, frozenset({Scope.SUBMIT}))

ASKED = GenerationSpec("b", 8, 100)


@pytest.fixture
def scenario() -> Scenario:
    return Scenario(config=a_config(fleets={"m": a_fleet((1,))}))


def admit(scenario: Scenario, generation: GenerationSpec | None = ASKED, **call: Any) -> Action:
    admission = Admission()
    admission.view = capacity_of(scenario.machine.state)
    asked = {"target": "fleet:m", "method": "POST", "path": "/v1/chat/completions", **call}
    payload = ActionRequest(
        task="t", kind=Kind.CALL, trajectory="a", cost={"cpu": 1}, call=CallRequest(**asked)
    )
    return admission.action(payload, TRAINER, generation=generation)


def test_a_generation_costs_a_slot_of_its_fleet_and_nothing_else(scenario: Scenario):
    action = admit(scenario)

    assert (action.cost, action.generation) == ({"fleet:m": (1000,)}, ASKED)
    scenario.submit(action)
    assert scenario.why(action.id).code == "batch_gathers"
    scenario.advance(0.5)
    assert scenario.holding() == {action.id}


@pytest.mark.parametrize(
    ("generation", "call", "words"),
    [
        (None, {}, "name the fleet as model"),
        (GenerationSpec(), {"target": "fleet:x"}, "there are: m"),
        (GenerationSpec(), {"path": "/sleep"}, "takes the paths"),
    ],
)
def test_what_no_worker_can_answer_is_refused(
    scenario: Scenario, generation: GenerationSpec | None, call: dict[str, str], words: str
):
    with pytest.raises(InvalidRequest, match=words) as refused:
        admit(scenario, generation, **call)

    assert (refused.value.pointer or "").startswith("/call/")


def test_the_capacity_has_the_addresses_of_workers_for_routers(scenario: Scenario):
    (worker,) = capacity_of(scenario.machine.state).fleets["m"].workers

    assert (worker.number, worker.name, worker.url) == (1, "w1", "http://w1:8000")


def test_no_node_gets_a_command_about_a_generation(scenario: Scenario):
    decisions = scenario.submit(a_generation("a", "t")) + scenario.cancel("a")

    assert len(only(Grant, decisions)) == len(only(Abort, decisions)) == 1
    assert node_commands(scenario.machine, Keys("tangram"), 1, decisions) == []


def test_a_view_names_the_worker_and_the_cost_as_it_was_asked(scenario: Scenario):
    scenario.submit(a_generation("a", "t"))
    status = scenario.machine.explain(ActionId("a"))
    assert status is not None

    view = live_view(status, 0.0)

    assert (view.units, view.result) == ({"fleet:m": 1}, None)
    assert view.placement is not None
    assert view.placement.units == {"fleet:m#1": (1,)}
    held = scenario.the_grant("a").allocations
    assert granted_units(None, held) == view.units
    assert placement(None, held) == view.placement


def test_the_declared_number_of_remaining_actions_reaches_the_core(scenario: Scenario):
    admission = Admission()
    admission.view = capacity_of(scenario.machine.state)
    command = ExecSpec(command=("true",))
    asked = ActionRequest(
        task="t", kind=Kind.EXEC, trajectory="a", cost={"cpu": 1}, exec=command, remaining_actions=7
    )

    assert admission.action(asked, TRAINER).remaining_actions == 7
