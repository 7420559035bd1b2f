"""Repeated calls: which ones are repeated, which quota they use, and their effect on other calls."""

from __future__ import annotations

import pytest

from domain import events
from domain.action import Outcome
from domain.apis import CallSpec, Feedback, Verdict
from domain.decisions import Requeue
from domain.ids import ActionId
from domain.limits import Breaker, Limits, Retries
from scheduler.core.state import snapshot
from tests.builders import a_config, a_lease, a_quota, an_action, granted, make_ledger, only
from tests.scenario import Scenario

OK = Feedback("api:search", Verdict.OK)
LIMITED = Feedback("api:search", Verdict.LIMITED, pause_seconds=4.0)
FAILING = Feedback("api:search", Verdict.FAILING)
UNREACHABLE = Feedback("api:search", Verdict.FAILING, sent=False)


def a_scenario(at_once: int = 2, **limits) -> Scenario:
    limits.setdefault("retries", Retries(attempts=3, burst=10))
    config = a_config(apis={"search": at_once}, limits={"api:search": Limits(**limits)})
    return Scenario(config=config)


def a_call(name: str, *, replay_safe: bool = True, **fields):
    call = CallSpec("api:search")
    fields = {"kind": "call", "cost": {"api:search": 1}, "call": call, **fields}
    return an_action(name, replay_safe=replay_safe, **fields)


def test_a_refused_call_waits_at_its_old_place_for_as_long_as_the_api_says() -> None:
    scenario = a_scenario()
    scenario.submit(*(a_call(f"c{n}") for n in range(4)))
    decisions = scenario.finish("c0", feedback=LIMITED)
    (requeue,) = only(Requeue, decisions)
    assert (requeue.action_id, granted(decisions)) == ("c0", [])
    assert "pause" in scenario.why("c0").reason
    assert granted(scenario.finish("c1", feedback=OK)) == []
    assert granted(scenario.advance(3.9)) == []
    assert granted(scenario.advance(0.1)) == ["c0", "c2"]
    assert scenario.live("c0").attempt == 2


def test_every_attempt_is_paid_from_the_quota() -> None:
    scenario = a_scenario(quotas=(a_quota(2, 10.0),))
    scenario.submit(a_call("c0"), a_call("c1"))
    scenario.finish("c0", feedback=FAILING)
    assert "2 per 10 s" in scenario.why("c0").reason
    assert granted(scenario.advance(10.0)) == ["c0"]


@pytest.mark.parametrize("feedback", [LIMITED, FAILING], ids=["refused", "failing"])
def test_a_sent_call_is_repeated_only_if_that_is_safe(feedback: Feedback) -> None:
    scenario = a_scenario()
    scenario.submit(a_call("c0", replay_safe=False))
    scenario.finish("c0", feedback=feedback)
    finish = scenario.the_finish("c0")
    assert (finish.outcome, finish.attempts) == (Outcome.COMPLETED, 1)
    assert "not made again: it is not replay_safe" in (finish.detail or "")


def test_an_unsent_call_is_always_repeated() -> None:
    scenario = a_scenario()
    scenario.submit(a_call("c0", replay_safe=False))
    scenario.finish(
        "c0",
        outcome=Outcome.INFRA_FAILED,
        feedback=UNREACHABLE,
        never_started=True,
        detail="no route",
    )
    assert granted(scenario.advance(0.2)) == ["c0"]


def test_attempts_come_to_an_end() -> None:
    scenario = a_scenario()
    scenario.submit(a_call("c0"))
    for _ in range(3):
        scenario.finish("c0", outcome=Outcome.TIMEOUT, feedback=FAILING, detail="too slow")
    assert scenario.outcomes == {"c0": Outcome.TIMEOUT}
    assert "too slow; not made again: 3 of 3" in (scenario.the_finish("c0").detail or "")


def test_the_budget_is_the_resource_s_not_the_caller_s() -> None:
    scenario = a_scenario(
        at_once=100,
        retries=Retries(attempts=9, ratio=0.0, burst=5),
        breaker=Breaker(failures=10**6),
    )
    names = [f"c{n}" for n in range(50)]
    scenario.submit(*(a_call(name) for name in names))
    decisions = scenario.finish(*names, feedback=FAILING)
    assert len(only(Requeue, decisions)) == 5
    assert len(scenario.outcomes) == 45
    assert "retry budget" in (scenario.the_finish("c49").detail or "")


def test_an_infrastructure_failure_is_no_way_around_the_budget() -> None:
    scenario = a_scenario(retries=Retries(attempts=9, burst=0))
    scenario.submit(a_call("c0"))
    scenario.finish("c0", outcome=Outcome.UNKNOWN, feedback=FAILING)
    assert scenario.outcomes == {"c0": Outcome.UNKNOWN}


def test_a_cancelled_call_is_not_made_again() -> None:
    scenario = a_scenario()
    scenario.submit(a_call("c0"))
    scenario.cancel("c0")
    scenario.finish("c0", outcome=Outcome.UNKNOWN, feedback=FAILING)
    assert scenario.outcomes == {"c0": Outcome.UNKNOWN}


def test_an_open_circuit_keeps_all_calls_waiting_and_one_probes() -> None:
    scenario = a_scenario(at_once=4, breaker=Breaker(failures=2, cooldown_seconds=5.0))
    scenario.submit(*(a_call(f"c{n}") for n in range(4)))
    scenario.submit(*(a_call(f"d{n}") for n in range(4)))
    assert granted(scenario.finish("c0", "c1", feedback=FAILING)) == []
    assert "circuit is open" in scenario.why("c0").reason
    assert granted(scenario.finish("c2", "c3", feedback=OK)) == []  # they were under way before
    assert granted(scenario.advance(5.0)) == ["c0"]
    assert granted(scenario.finish("c0", feedback=OK)) == ["c1", "d0", "d1", "d2"]


def test_a_lost_probe_is_followed_by_another() -> None:
    scenario = a_scenario(breaker=Breaker(failures=1, cooldown_seconds=5.0))
    scenario.submit(a_call("c0"), a_call("c1"))
    scenario.finish("c0", feedback=FAILING)
    scenario.finish("c1", feedback=OK)
    assert granted(scenario.advance(5.0)) == ["c0"]
    scenario.submit(a_call("c2"))
    scenario.cancel("c0")
    assert granted(scenario.finish("c0", outcome=Outcome.CANCELLED)) == ["c2"]


def test_a_restored_machine_knows_of_pauses_and_circuits() -> None:
    scenario = a_scenario()
    scenario.submit(*(a_call(f"c{n}") for n in range(3)))
    scenario.finish("c0", feedback=LIMITED)
    scenario.machine = snapshot.load(snapshot.dump(scenario.machine), make_ledger)
    assert granted(scenario.advance(3.9)) == []
    assert granted(scenario.advance(0.1)) == ["c0"]


def test_feedback_on_a_resource_that_is_gone_ends_the_call() -> None:
    scenario = a_scenario()
    scenario.submit(a_call("c0"))
    scenario.finish("c0", feedback=Feedback("api:gone", Verdict.FAILING))
    assert "not declared" in (scenario.the_finish("c0").detail or "")


def test_a_refusal_to_the_holder_of_a_lease_slows_all_calls() -> None:
    scenario = a_scenario()
    scenario.submit(a_lease("mine", cost={"api:search": 1}), a_call("c0"), a_call("c1"))
    said = Feedback("", Verdict.LIMITED, pause_seconds=4.0)
    decisions = scenario.handle(
        events.LeaseReleased(action_id=ActionId("mine"), project="default", feedback=said)
    )
    assert granted(decisions) == []
    assert scenario.outcomes["mine"] is Outcome.COMPLETED
    assert granted(scenario.advance(4.0)) == ["c1"]


def test_feedback_on_a_resource_that_is_not_held_is_ignored() -> None:
    scenario = a_scenario()
    scenario.submit(a_lease("mine", cost={"api:search": 1}), a_call("c0"), a_call("c1"))
    said = Feedback("api:other", Verdict.LIMITED, pause_seconds=4.0)
    assert granted(
        scenario.handle(
            events.LeaseReleased(action_id=ActionId("mine"), project="default", feedback=said)
        )
    ) == ["c1"]
