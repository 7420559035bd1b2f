"""Actions that the loop sets aside end `infra_failed`, once, and a replay decides the same."""

from __future__ import annotations

import pytest

from domain import events
from domain.action import Outcome
from domain.decisions import Abort, Finish
from domain.ids import ActionId, ResourceId
from tests.builders import START, a_machine, a_node, an_action


def aside(name: str, at: float = START + 1) -> events.ActionSetAside:
    return events.ActionSetAside(action_id=ActionId(name), why="it cannot be granted", at=at)


def submitted(*names: str) -> list[events.ActionSubmitted]:
    return [events.ActionSubmitted(action=an_action(name), at=START) for name in names]


def test_a_waiting_action_ends_with_the_reason_and_the_next_one_is_granted():
    machine = a_machine([a_node("n1", cpus=1)])
    machine.handle(*submitted("runs", "bad", "next"))

    decisions = machine.handle(aside("bad"))

    (end,) = [each for each in decisions if isinstance(each, Finish)]
    assert (end.action_id, end.outcome, end.detail, end.reward) == (
        "bad", Outcome.INFRA_FAILED, "it cannot be granted", None,
    )  # fmt: skip
    assert sorted(machine.state.actions) == ["next", "runs"]


def test_one_that_runs_is_ended_by_its_node():
    machine = a_machine([a_node("n1", cpus=1)])
    machine.handle(*submitted("runs"))

    (abort,) = machine.handle(aside("runs"))

    assert isinstance(abort, Abort)
    assert abort.outcome is Outcome.INFRA_FAILED
    assert "runs" in machine.state.actions


def test_one_that_has_ended_stays_as_it_is():
    assert a_machine().handle(aside("gone")) == []


def test_after_an_exception_the_machine_names_the_action_at_work(monkeypatch):
    machine = a_machine([a_node("n1", cpus=4)])
    ledger = machine.state.supply.ledgers[ResourceId("cpu:n1")]
    whole = type(ledger).allocate

    def odd(self, holder, *rest, **more):
        if "bad" in holder:
            raise ArithmeticError(holder)
        return whole(self, holder, *rest, **more)

    monkeypatch.setattr(type(ledger), "allocate", odd)
    with pytest.raises(ArithmeticError):
        machine.handle(*submitted("well", "bad", "later"))

    assert machine.at_work.names == ("bad",)
    assert machine.at_work.event is None


def test_after_an_exception_of_a_handler_the_machine_names_the_event():
    machine = a_machine()
    machine.handle(*submitted("first"))
    late = events.TimeAdvanced(at=START - 1)

    with pytest.raises(Exception, match="backward"):
        machine.handle(late)

    assert machine.at_work.event is late
