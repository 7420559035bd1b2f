"""Small cases whose every moment can be computed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain import events
from domain.action import Outcome
from domain.allocation import Allocation
from domain.ids import ActionId, ResourceId
from simulator.engine import Stalled
from simulator.overheads import Overheads
from simulator.result import fairness, jain_index
from simulator.work import ActionWork
from simulator.workloads.program import Act, Think
from tests.builders import an_action
from tests.unit.simulator.scripts import Script, a_simulation, act, keep, played, script


def parts(workload: Script, name: str) -> tuple[float, float, float]:
    timing = workload.answers[name].timing
    return timing.queue_seconds, timing.overhead_seconds, timing.execution_seconds


def test_one_action_takes_its_time_alone():
    workload = script([Think(2.0), act("a", 3.0)])

    simulation = played(workload)

    assert parts(workload, "a") == (0.0, 0.0, 3.0)
    assert simulation.trainers.step_seconds == [5.0]


def test_the_third_action_waits_for_a_core():
    workload = script([act("a", 3.0)], [act("b", 2.0)], [act("c", 4.0)])

    simulation = played(workload, cores=2)

    assert parts(workload, "c") == (2.0, 0.0, 4.0)
    assert simulation.trainers.step_seconds == [6.0]


def test_granted_cores_are_counted_over_time():
    workload = script([act("a", 3.0)], [act("b", 2.0)], [act("c", 4.0)])

    tally = played(workload, cores=2).tally

    assert tally.held_core_seconds == 9.0
    assert tally.useful_core_seconds == 9.0


def test_more_units_shorten_what_is_elastic():
    workload = script([act("a", 8.0, amdahl=0.5, cost={"cpu": 4}, key="cpu")])

    played(workload)

    # 4 · E(4) = 4 / (4 · 0.5 + 0.5) = 1.6
    assert parts(workload, "a") == (0.0, 0.0, 5.0)


def test_more_units_do_nothing_for_what_is_not_elastic():
    workload = script([act("a", 8.0, cost={"cpu": 4})])

    played(workload)

    assert parts(workload, "a") == (0.0, 0.0, 8.0)


def test_every_hop_is_counted_where_it_belongs():
    overheads = Overheads(
        submit_seconds=1.0, pass_seconds=0.25, start_seconds=0.5, report_seconds=2.0,
        answer_seconds=4.0, environment_seconds=8.0, remove_seconds=0.0,
    )  # fmt: skip
    workload = script([act("a", 3.0, trajectory="s0-t0"), act("b", 3.0, trajectory="s0-t0")])

    simulation = played(workload, overheads=overheads)

    assert parts(workload, "a") == (1.0, 0.25 + 0.5 + 8.0 + 2.0, 3.0)
    assert parts(workload, "b") == (1.0, 0.25 + 0.5 + 2.0, 3.0)
    # The answer to each travels for the rest of the pass and its own hop.
    assert simulation.trainers.step_seconds == [14.75 + 6.75 + 2 * 4.25]


def test_events_during_a_pass_are_taken_by_the_next():
    overheads = Overheads(0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    workload = script([act("a", 9.0)], [Think(0.25), act("b", 9.0)], [Think(0.5), act("c", 9.0)])

    played(workload, overheads=overheads)

    assert parts(workload, "a") == (0.0, 1.0, 9.0)
    assert parts(workload, "b") == (0.75, 1.0, 9.0)
    assert parts(workload, "c") == (0.5, 1.0, 9.0)


def test_steps_follow_each_other_with_training_between():
    workload = Script([[[act("a", 3.0)], [act("b", 5.0)]], [[act("c", 2.0)]]], train_seconds=10.0)

    simulation = played(workload)

    assert simulation.trainers.step_seconds == [5.0, 2.0]
    assert simulation.trainers.ended_at == 5.0 + 10.0 + 2.0


def test_execution_is_limited_by_its_time_out_alone():
    slow = act("slow", 9.0, timeout_seconds=4.0)
    waits = act("waits", 3.0, timeout_seconds=4.0)
    workload = script([slow], [Think(1.0), waits])

    played(workload, cores=1)

    assert workload.answers["slow"].outcome is Outcome.TIMEOUT
    assert parts(workload, "slow") == (0.0, 0.0, 4.0)
    assert workload.answers["waits"].outcome is Outcome.COMPLETED
    assert parts(workload, "waits") == (3.0, 0.0, 3.0)


def test_the_machine_is_woken_when_it_asked_to_be():
    workload = script([act("a", 9.0)], [act("b", 1.0, queue_timeout_seconds=2.5)])

    simulation = played(workload, cores=1)

    assert workload.answers["b"].outcome is Outcome.EXPIRED
    assert parts(workload, "b") == (2.5, 0.0, 0.0)
    assert simulation.trainers.step_seconds == [9.0]


def test_a_lease_is_renewed_for_as_long_as_it_is_kept():
    workload = script([keep("a", 25.0, ttl_seconds=10.0)])

    played(workload)

    assert workload.answers["a"].outcome is Outcome.COMPLETED
    assert parts(workload, "a") == (0.0, 0.0, 25.0)


def test_a_lease_without_renewal_expires():
    workload = script([keep("a", 25.0, ttl_seconds=10.0, renews=False)])

    played(workload)

    assert workload.answers["a"].outcome is Outcome.TIMEOUT
    assert parts(workload, "a") == (0.0, 0.0, 10.0)


def test_a_cancelled_run_is_stopped():
    workload = script([act("a", 25.0)])
    simulation = a_simulation(workload)
    simulation.inject(7.0, events.ActionCancelRequested(action_id=ActionId("a"), project="default"))

    simulation.run()

    assert workload.answers["a"].outcome is Outcome.CANCELLED
    assert parts(workload, "a") == (0.0, 0.0, 7.0)
    assert simulation.nodes.running == 0


def test_a_run_cancelled_before_its_start_has_not_executed():
    workload = script([act("a", 25.0, trajectory="s0-t0")])
    overheads = Overheads(0.0, 0.0, 3.0, 0.0, 0.0, 8.0, 0.0)
    simulation = a_simulation(workload, overheads=overheads)
    cancel = events.ActionCancelRequested(action_id=ActionId("a"), project="default")
    simulation.inject(1.0, cancel)

    simulation.run()

    assert workload.answers["a"].outcome is Outcome.CANCELLED
    # The order to stop arrives at 4, before the environment is there.
    assert parts(workload, "a") == (0.0, 4.0, 0.0)


def test_an_action_that_never_started_is_granted_again():
    workload = script([act("a", 2.0)])

    simulation = played(workload, failure_ratio=0.999, seed=3)

    assert workload.answers["a"].outcome is Outcome.INFRA_FAILED
    assert workload.answers["a"].attempts == 3
    assert simulation.tally.requeued == 2


def test_a_replay_safe_action_moves_when_its_node_is_lost():
    workload = script([act("a", 100.0, replay_safe=True)])
    simulation = a_simulation(workload, nodes=2)
    simulation.inject(10.0, events.NodeLost(node="n000", incarnation=1))

    simulation.run()

    assert workload.answers["a"].outcome is Outcome.COMPLETED
    # Lost at 10, given up after the grace of 60, and run again elsewhere.
    assert parts(workload, "a")[0] == 70.0
    assert workload.answers["a"].node == "n001"


def test_a_run_goes_on_at_the_rate_of_its_new_units():
    workload = script([act("a", 30.0, amdahl=1.0, cost={"cpu": 2}, key="cpu")])
    simulation = a_simulation(workload)
    resize = simulation.nodes.resize
    simulation.agenda.at(5.0, lambda _: resize(ActionId("a"), 1, 4000))
    simulation.agenda.at(8.0, lambda _: resize(ActionId("a"), 1, 1000))

    simulation.run()

    # 5 s at rate 2, 3 s at rate 4, and the last 8 of 30 at rate 1.
    assert parts(workload, "a") == (0.0, 0.0, 16.0)


def test_a_resize_reaches_its_node_as_a_grant_does_and_is_counted_at_once():
    workload = script([act("a", 30.0, amdahl=1.0, cost={"cpu": 2}, key="cpu")])
    overheads = Overheads(0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    simulation = a_simulation(workload, overheads=overheads, watch=None)
    wider = Allocation(ResourceId("cpu:n000"), 4000)
    simulation.agenda.at(5.0, lambda _: simulation.resize(ActionId("a"), 1, wider))

    tally = simulation.run()

    # Begun at 1, at rate 2 until 6, and the last 20 of 30 at rate 4.
    assert parts(workload, "a") == (0.0, 1.0, 10.0)
    assert tally.held_core_seconds == 5.0 * 2 + 6.0 * 4
    assert tally.resized == 1


def test_a_run_resized_before_its_start_uses_the_new_units_alone():
    workload = script([act("a", 30.0, amdahl=1.0, cost={"cpu": 1}, key="cpu")])
    overheads = Overheads(0.0, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0)
    simulation = a_simulation(workload, overheads=overheads)
    simulation.agenda.at(1.0, lambda _: simulation.nodes.resize(ActionId("a"), 1, 3000))

    simulation.run()

    assert parts(workload, "a") == (0.0, 4.0, 10.0)


def test_resizing_what_has_ended_or_was_stopped_changes_nothing():
    workload = script([act("a", 6.0, amdahl=1.0, key="cpu")], [act("b", 90.0, amdahl=1.0)])
    overheads = Overheads(0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0)
    simulation = a_simulation(workload, overheads=overheads)
    resize = simulation.nodes.resize
    cancel = events.ActionCancelRequested(action_id=ActionId("b"), project="default")
    simulation.inject(6.5, cancel)
    for name in ("a", "b", "unknown"):
        simulation.agenda.at(7.0, lambda each: resize(ActionId(each), 1, 3000), name)

    simulation.run()

    assert parts(workload, "a") == (0.0, 4.0, 6.0)
    assert parts(workload, "b") == (0.0, 4.0, 6.5)


def test_a_workload_that_can_never_end_is_reported():
    waits = Act(an_action("a", pool="empty"), ActionWork(1.0))

    with pytest.raises(Stalled, match="1 wait"):
        played(script([waits]))


def test_the_slowest_trajectory_thinks_acts_and_waits():
    workload = script([Think(1.0), act("a", 3.0)], [Think(2.0), act("b", 2.0)])

    simulation = played(workload, cores=1)

    assert [list(each) for each in simulation.trainers.trajectory_seconds] == [[4.0, 6.0]]


def test_fairness_compares_the_stretch_of_tasks():
    alike = script([act("a", 3.0, task="one")], [act("b", 9.0, task="two")])
    waits = script([act("a", 3.0, task="one")], [act("b", 1.0, task="two")])
    alone = script([act("a", 3.0)], [act("b", 1.0)])

    assert fairness(played(alike, cores=2).tally) == 1.0
    # On one core the second waits 3 s for its 1 s: stretches 1 and 4.
    assert fairness(played(waits, cores=1).tally) == pytest.approx(25 / 34)
    assert fairness(played(alone).tally) is None


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=8))
def test_jains_index_lies_between_one_over_n_and_1_whatever_the_unit(values: list[float]):
    found = jain_index(values)

    assert 1 / len(values) - 1e-9 <= found <= 1 + 1e-9
    assert jain_index([3.0 * value for value in values]) == pytest.approx(found)
