"""Rollouts are assigned to one worker at a time, and end once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from domain.action import Outcome
from domain.decisions import (
    FinishRollout,
    ForkEnvironment,
    RemoveEnvironment,
    ResumeRollout,
    WithdrawRollout,
)
from domain.events import TaskCancelRequested
from domain.rollout_events import RolloutsSubmitted
from domain.rollouts import RolloutOutcome, RolloutState
from scheduler.core.state import snapshot
from tests.builders import GIB, a_config, a_lease, a_node, an_action, granted, make_ledger, only
from tests.unit.core.rollout_scenario import (
    RolloutScenario,
    a_rollout,
    assigned,
    rollout_id,
)


@pytest.fixture
def core() -> Iterator[RolloutScenario]:
    """A core with one node, whose invariants are checked after each step."""
    scenario = RolloutScenario(
        a_node("n1", cpus=4, memory_bytes=8 * GIB), config=a_config(apis={"search": 1})
    )
    yield scenario
    scenario.check()


def test_a_rollout_waits_for_a_worker_and_is_assigned_when_one_joins(core):
    assert assigned(core.submit_rollouts(a_rollout(1))) == []
    assert core.rollout_state(1) is RolloutState.WAITING

    assert assigned(core.join_worker("w1")) == [(1, "w1", 1)]
    assert core.rollout_state(1) is RolloutState.ASSIGNED


def test_the_worker_with_most_free_slots_gets_the_next_rollout(core):
    core.join_worker("w1", slots=2)
    core.join_worker("w2", slots=4)

    decisions = core.submit_rollouts(*(a_rollout(n) for n in range(1, 8)))

    workers = [worker for _, worker, _ in assigned(decisions)]
    assert workers == ["w2", "w2", "w1", "w2", "w1", "w2"]
    assert core.rollout_state(7) is RolloutState.WAITING


def test_higher_priorities_are_assigned_first_and_equal_ones_in_order_of_arrival(core):
    core.submit_rollouts(
        a_rollout(1), a_rollout(2, priority=1), a_rollout(3), a_rollout(4, priority=1)
    )

    order = [number for number, _, _ in assigned(core.join_worker(slots=3))]

    assert order == [2, 4, 1]


def test_the_priority_of_a_task_orders_its_rollouts(core):
    core.submit_rollouts(a_rollout(1, task="other"), a_rollout(2))
    core.prioritise(5)
    core.submit_rollouts(a_rollout(3, task="other", priority=1), a_rollout(4))

    order = [number for number, _, _ in assigned(core.join_worker(slots=4))]

    assert order == [2, 4, 3, 1]


def test_an_end_frees_the_slot_for_the_next_rollout(core):
    core.join_worker(slots=1)
    core.submit_rollouts(a_rollout(1), a_rollout(2))

    assert assigned(core.report_end(1, reward=0.5)) == [(2, "w1", 1)]
    assert core.end_of(1).result.reward == 0.5


def test_a_submission_that_arrives_twice_is_one_rollout(core):
    core.join_worker()
    core.submit_rollouts(a_rollout(1))

    assert core.submit_rollouts(a_rollout(1)) == []
    core.report_end(1)
    assert core.submit_rollouts(a_rollout(1)) == []


def test_the_end_has_the_times_of_waiting_and_of_the_whole(core):
    core.submit_rollouts(a_rollout(1), lag_seconds=1.0)
    core.advance(4.0)
    core.join_worker()
    core.advance(10.0)
    core.report_end(1)

    end = core.end_of(1)
    assert (end.queue_seconds, end.total_seconds, end.attempts) == (5.0, 15.0, 1)


def test_a_report_of_an_earlier_attempt_or_of_another_worker_changes_nothing(core):
    core.join_worker("w1")
    core.submit_rollouts(a_rollout(1))
    core.lose_worker("w1")
    core.join_worker("w2")
    assert core.the_rollout(1).attempt == 2

    assert core.report_end(1, worker="w1", attempt=1) == []
    assert core.report_end(1, worker="w1", attempt=2) == []
    assert core.report_end(1, worker="w2", attempt=1) == []
    assert only(FinishRollout, core.report_end(1, worker="w2", attempt=2))


def test_the_rollouts_of_a_lost_worker_are_assigned_again_with_the_next_attempt(core):
    core.join_worker("w1", slots=2)
    core.submit_rollouts(a_rollout(1), a_rollout(2))
    core.join_worker("w2", slots=1)

    decisions = core.lose_worker("w1")

    assert assigned(decisions) == [(1, "w2", 2)]
    assert [each.rollout_id for each in only(ResumeRollout, decisions)] == [
        rollout_id(1),
        rollout_id(2),
    ]
    assert core.rollout_state(2) is RolloutState.WAITING


def test_a_worker_that_was_restarted_gets_its_rollouts_with_another_attempt(core):
    core.join_worker("w1")
    core.submit_rollouts(a_rollout(1))

    assert assigned(core.join_worker("w1", incarnation=2)) == [(1, "w1", 2)]
    assert core.lose_worker("w1", incarnation=1) == []  # the former one, noticed late
    assert core.join_worker("w1", incarnation=1) == []


def test_a_worker_without_slots_finishes_what_it_has(core):
    core.join_worker("w1")
    core.submit_rollouts(a_rollout(1))
    core.join_worker("w1", slots=0)

    core.submit_rollouts(a_rollout(2))

    assert core.rollout_state(1) is RolloutState.ASSIGNED
    assert core.rollout_state(2) is RolloutState.WAITING


def test_a_rollout_ends_when_it_has_lost_ten_workers(core):
    core.submit_rollouts(a_rollout(1))
    for incarnation in range(1, 11):
        assert core.rollout_state(1) is RolloutState.WAITING
        core.join_worker("w1", incarnation=incarnation)
        core.lose_worker("w1", incarnation=incarnation)

    end = core.end_of(1)
    assert (end.result.outcome, end.attempts) == (RolloutOutcome.INFRA_FAILED, 10)
    assert "10 workers were lost" in end.result.reason


def test_resuming_counts_no_loss(core):
    core.join_worker()
    core.submit_rollouts(a_rollout(1))
    for _ in range(12):
        core.park(1)
        core.resume(1)

    assert (core.the_rollout(1).attempt, core.the_rollout(1).losses) == (13, 0)


# Cancel


def test_a_cancelled_rollout_ends_at_once_and_is_withdrawn_from_its_worker(core):
    core.join_worker()
    core.submit_rollouts(a_rollout(1))

    decisions = core.cancel_rollout(1)

    (withdrawn,) = only(WithdrawRollout, decisions)
    assert (withdrawn.worker, withdrawn.attempt, withdrawn.parked) == ("w1", 1, False)
    assert core.end_of(1).result.outcome is RolloutOutcome.CANCELLED
    assert core.cancel_rollout(1) == []


def test_a_cancel_before_the_submission_ends_the_rollout_when_it_arrives(core):
    core.join_worker()
    core.cancel_rollout(1)

    assert assigned(core.submit_rollouts(a_rollout(1))) == []
    assert core.end_of(1).result.outcome is RolloutOutcome.CANCELLED


def test_a_cancel_before_the_submission_is_remembered_for_five_minutes(core):
    core.join_worker()
    core.cancel_rollout(1)
    core.advance(301.0)

    assert assigned(core.submit_rollouts(a_rollout(1))) == [(1, "w1", 1)]


def test_a_cancel_of_another_project_changes_nothing(core):
    core.join_worker()
    core.submit_rollouts(a_rollout(1))

    core.cancel_rollout(1, project="other")

    assert core.rollout_state(1) is RolloutState.ASSIGNED


def test_the_cancel_of_a_task_ends_its_rollouts(core):
    core.join_worker()
    core.submit_rollouts(a_rollout(1), a_rollout(2, task="other"))

    core.handle(TaskCancelRequested(project="default", task="task"))

    assert core.end_of(1).result.outcome is RolloutOutcome.CANCELLED
    assert core.rollout_state(2) is RolloutState.ASSIGNED


def test_the_end_of_a_rollout_ends_its_actions_and_environments_without_its_worker(core):
    core.join_worker()
    core.submit_rollouts(a_rollout(1))
    name = rollout_id(1)
    core.submit(
        an_action("tool", trajectory=name),
        an_action("waiting", trajectory=name),
        a_lease("stage", cost={"api:search": 1}, trajectory=f"{name}-run"),
    )
    core.submit(an_action("other", trajectory="t1"))
    core.start("tool")

    decisions = core.cancel_rollout(1)

    assert core.outcomes == {"waiting": Outcome.CANCELLED, "stage": Outcome.CANCELLED}
    assert core.free("api:search") == 1
    decisions = core.finish("tool", outcome=Outcome.CANCELLED)
    assert [each.trajectory for each in only(RemoveEnvironment, decisions)] == [core.key(name)]
    assert core.is_live("other")


def test_forks_of_a_rollouts_trajectory_end_with_it(core):
    core.join_worker()
    core.submit_rollouts(a_rollout(1))
    name = rollout_id(1)
    core.submit(an_action("prepare", trajectory=name))
    core.finish("prepare")
    (order,) = only(ForkEnvironment, core.fork(name, f"{name}-run"))
    core.forked(order)

    decisions = core.report_end(1)

    removed = {each.trajectory for each in only(RemoveEnvironment, decisions)}
    assert removed == {core.key(name), core.key(f"{name}-run")}


def test_what_a_worker_sends_after_the_end_of_its_rollout_is_refused(core):
    core.join_worker()
    core.submit_rollouts(a_rollout(1))
    core.cancel_rollout(1)

    core.open_trajectory(f"{rollout_id(1)}-eval")
    core.submit(an_action("late", trajectory=f"{rollout_id(1)}.2-run"))

    assert not core.has_trajectory(f"{rollout_id(1)}-eval")
    assert core.outcomes == {"late": Outcome.CANCELLED}
    assert core.the_finish("late").detail == "the rollout is over: cancelled"


# Parking


def test_a_parked_rollout_gives_back_its_leases_and_keeps_its_environment(core):
    core.join_worker()
    core.submit_rollouts(a_rollout(1))
    name = rollout_id(1)
    core.submit(an_action("prepare", trajectory=name))
    core.submit(a_lease("stage", cost={"api:search": 1}, trajectory=name))

    decisions = core.park(1)

    (withdrawn,) = only(WithdrawRollout, decisions)
    assert withdrawn.parked
    assert core.outcomes == {"stage": Outcome.CANCELLED}
    assert core.is_live("prepare")
    assert core.rollout_state(1) is RolloutState.PARKED


def test_a_resumed_rollout_goes_before_later_arrivals(core):
    core.join_worker(slots=1)
    core.submit_rollouts(a_rollout(1), a_rollout(2), a_rollout(3))
    core.park(1)
    core.resume(1)

    order = [number for number, _, _ in assigned(core.report_end(2))]

    assert order == [1]
    assert core.the_rollout(1).attempt == 2


def test_a_waiting_rollout_is_parked_too_and_a_parked_one_is_cancelled(core):
    core.submit_rollouts(a_rollout(1))
    core.park(1)

    assert assigned(core.join_worker()) == []
    core.cancel_rollout(1)
    assert core.end_of(1).result.outcome is RolloutOutcome.CANCELLED


# Rewards, progress, snapshots


@pytest.mark.parametrize(
    ("outcome", "reward"),
    [
        (RolloutOutcome.FAILED, 1.0),
        (RolloutOutcome.TIMEOUT, 0.0),
        (RolloutOutcome.COMPLETED, float("nan")),
        (RolloutOutcome.COMPLETED, float("inf")),
    ],
)
def test_only_a_completed_rollout_has_a_reward_and_it_is_finite(core, outcome, reward):
    core.join_worker()
    core.submit_rollouts(a_rollout(1))

    core.report_end(1, outcome, reward=reward)

    assert core.end_of(1).result.reward is None
    assert core.end_of(1).result.outcome is outcome


def test_progress_counts_for_the_present_attempt_alone(core):
    core.join_worker()
    core.submit_rollouts(a_rollout(1))
    core.progress(1, turns=3)
    assert core.the_rollout(1).progress.turns == 3

    core.join_worker(incarnation=2)
    assert core.the_rollout(1).progress.stage is None


def test_a_submission_that_was_set_aside_ends_as_infra_failed(core):
    core.join_worker()

    core.handle(RolloutsSubmitted(rollouts=(a_rollout(1),), set_aside="the core raised"))

    end = core.end_of(1)
    assert (end.result.outcome, end.result.reason) == (
        RolloutOutcome.INFRA_FAILED,
        "the core raised",
    )


def test_a_restored_machine_goes_on_with_the_same_rollouts(core):
    core.join_worker("w1", slots=2)
    core.submit_rollouts(*(a_rollout(n, llm="policy") for n in range(1, 6)))
    core.cancel_rollout(9)
    core.park(2)
    core.submit(an_action("tool", trajectory=f"{rollout_id(1)}-run"))
    core.progress(1, turns=2)
    before = snapshot.dump(core.machine)

    core.machine = snapshot.load(before, make_ledger)

    assert snapshot.dump(core.machine) == before
    assert [number for number, _, _ in assigned(core.join_worker("w2", slots=9))] == [4, 5]
    assert [number for number, _, _ in assigned(core.resume(2))] == [2]
    core.submit_rollouts(a_rollout(9))
    assert core.end_of(9).result.outcome is RolloutOutcome.CANCELLED
    core.cancel_rollout(1)
    assert core.machine.state.trajectories[core.key(f"{rollout_id(1)}-run")].closing


def test_actions_are_granted_as_without_rollouts(core):
    core.join_worker()
    core.submit_rollouts(a_rollout(1))

    assert granted(core.submit(an_action("a"))) == ["a"]


def test_a_worker_gets_rollouts_whose_handler_it_has_alone(core):
    core.join_worker("w1", slots=8, handlers=("math",))
    core.join_worker("w2", slots=2, handlers=("math", "swe"))

    decisions = core.submit_rollouts(*(a_rollout(n, handler="swe") for n in (1, 2, 3)))
    decisions += core.submit_rollouts(a_rollout(4, handler="math"), a_rollout(5, handler="stem"))

    # The third and the fifth hold up no other.
    assert assigned(decisions) == [(1, "w2", 1), (2, "w2", 1), (4, "w1", 1)]
    assert assigned(core.join_worker("w3", handlers=("stem",))) == [(5, "w3", 1)]
    assert assigned(core.report_end(1)) == [(3, "w2", 1)]


def test_a_worker_that_names_no_handlers_gets_all(core):
    """One of an earlier version: its journals replay equal."""
    core.join_worker("w1", slots=3)

    decisions = core.submit_rollouts(a_rollout(1, handler="swe"), a_rollout(2, handler="stem"))

    assert assigned(decisions) == [(1, "w1", 1), (2, "w1", 1)]


def test_a_worker_that_gets_a_package_takes_the_rollouts_that_wait_for_it(core):
    core.join_worker("w1", handlers=("math",))
    core.submit_rollouts(a_rollout(1, handler="swe"))
    core.machine = snapshot.load(snapshot.dump(core.machine), make_ledger)

    assert assigned(core.join_worker("w1", handlers=("math", "swe"))) == [(1, "w1", 1)]


def test_rollouts_of_a_project_are_counted_until_they_end(core):
    count = core.machine.state.rollouts.count_of
    core.submit_rollouts(a_rollout(1), a_rollout(2, llm="policy"), a_rollout(3, project="other"))
    assert (count("default"), count("other"), count("unknown")) == (2, 1, 0)

    core.park(1)
    core.cancel_rollout(2)

    assert (count("default"), count("other")) == (1, 1)
