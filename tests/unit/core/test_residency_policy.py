"""Another residency policy replaces that of GPU services without a change to the rest of the core."""

from __future__ import annotations

from domain.events import ActionSubmitted
from domain.ids import ResourceId
from domain.resources import MILLI
from scheduler.core.residency.policy import ResidencyPolicy
from scheduler.core.residency.registry import make_residency
from scheduler.core.residency.services import ServiceResidency
from scheduler.core.state.invariants import check
from tests.builders import START, a_machine, an_action, granted
from tests.unit.core.test_services_on_chunks import a_call, a_gpu_node, services


class NewestFirst(ResidencyPolicy):
    """Keeps a queue for each action, and serves the newest one first."""

    def needs(self, needs, action, policy):
        return needs._replace(resident=action.id)

    def rank(self, key, live):
        priority, arrival = live.order
        return priority, 0, -arrival


def submitted(machine, *actions):
    decisions = machine.handle(*(ActionSubmitted(action=each, at=START + 1) for each in actions))
    check(machine.state)
    return granted(decisions)


def test_units_are_granted_by_arrival_where_no_residents_are_known():
    machine = a_machine([a_gpu_node()], services("a", "b"))
    machine.state.residency = ResidencyPolicy(machine.state.supply)

    assert submitted(machine, a_call("1", "a"), a_call("2", "b")) == ["1"]


def test_a_policy_changes_which_queue_goes_first():
    machine = a_machine([a_gpu_node()], services("a"))
    machine.state.residency = NewestFirst(machine.state.supply)

    assert submitted(machine, a_call("1", "a"), a_call("2", "a")) == ["2"]


def test_each_kind_of_units_has_its_own_policy():
    machine = a_machine([a_gpu_node()], services("a", "b"))
    policies = {"gpu": ServiceResidency, "cpu": lambda state: NewestFirst(state.supply)}
    machine.state.residency = make_residency(machine.state, policies)
    most = int(machine.state.supply.ledgers[ResourceId("cpu:n1")].capacity / MILLI)

    actions = [an_action("3", cost={"cpu": most}), an_action("4", cost={"cpu": most})]

    assert submitted(machine, a_call("1", "a"), a_call("2", "b"), *actions) == ["4", "1"]
    assert {key.needs.resident for key in machine.state.queues.active} == {"3", "b"}
