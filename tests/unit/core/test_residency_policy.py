"""Another residency policy replaces that of GPU services without a change to the rest of the core."""

from __future__ import annotations

from domain.events import ActionSubmitted
from scheduler.core.residency.policy import ResidencyPolicy
from scheduler.core.state.invariants import check
from tests.builders import START, a_machine, granted
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
    machine.state.residency = ResidencyPolicy(machine.state.fleet)

    assert submitted(machine, a_call("1", "a"), a_call("2", "b")) == ["1"]


def test_a_policy_changes_which_queue_goes_first():
    machine = a_machine([a_gpu_node()], services("a"))
    machine.state.residency = NewestFirst(machine.state.fleet)

    assert submitted(machine, a_call("1", "a"), a_call("2", "a")) == ["2"]
