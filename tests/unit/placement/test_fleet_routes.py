"""Routes of a fleet: which worker a generation gets, once, and what happens when workers change."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from domain.errors import InvalidRequest
from placement.facts import WorkerFacts
from placement.policies.plain import PlainPolicy
from placement.profiles import ProfiledTimes
from placement.roofline import roofline
from tests.unit.placement.fleets import ScriptedPolicy, a_fleet, step, tokens, workers


def test_a_trajectory_returns_to_the_worker_with_its_cache():
    fleet = a_fleet()
    first = [step(fleet, key, 0.0).worker for key in ("a", "b")]

    assert first == [1, 2]
    assert [fleet.request(key, 5.0).worker for key in ("b", "a")] == [2, 1]
    assert fleet.why("a").code == "cached"


def test_a_request_without_identity_goes_to_the_least_filled_worker_and_is_forgotten_at_its_end():
    fleet = a_fleet(1, 4)
    first = fleet.request("", 0.0, generation="g1")
    second = fleet.request("", 0.0, generation="g2")
    third = fleet.request("", 0.0, generation="g3")

    assert [first.worker, second.worker, third.worker] == [1, 2, 2]
    assert first.reason == "no_identity"
    for name in ("g1", "g2", "g3"):
        fleet.end(name, 1.0, 10, 10)
    assert fleet.facts.trajectories == {}
    assert [load.generations for load in fleet.facts.loads] == [0, 0]


def test_a_request_needs_a_trajectory_or_a_name():
    with pytest.raises(InvalidRequest, match="key"):
        a_fleet().request("", 0.0)


def test_generations_of_a_trajectory_that_run_together_are_on_one_worker():
    fleet = a_fleet(policy=PlainPolicy("rr", "least"))
    routes = [fleet.request("a", 0.0, generation=f"a{n}") for n in range(3)]

    assert {route.worker for route in routes} == {1}
    assert [route.reason for route in routes] == ["least_loaded", "beside", "beside"]


def test_a_generation_that_is_requested_again_keeps_its_route_and_counts_once():
    fleet = a_fleet()
    route = fleet.request("a", 0.0)

    assert fleet.request("a", 1.0) is route
    assert sum(load.generations for load in fleet.facts.loads) == 1
    assert fleet.routed(1.0) == []


def test_seconds_between_answer_and_request_are_tool_seconds_once_for_parallel_steps():
    fleet = a_fleet()
    step(fleet, "a", 0.0, seconds=2.0)
    fleet.request("a", 5.0, generation="x")
    fleet.request("a", 6.0, generation="y")
    fleet.end("x", 7.0, 10, 10)

    assert fleet.facts.trajectories["a"].tool_seconds == 3.0
    assert fleet.facts.in_tools == {}
    fleet.end("y", 8.0, 10, 10)
    assert fleet.facts.in_tools == {"a": 8.0}


def test_a_generation_that_failed_counts_as_no_step():
    fleet = a_fleet()
    fleet.request("a", 0.0, prompt_tokens=100)
    fleet.end("a", 1.0)

    facts = fleet.facts.trajectories["a"]
    assert (facts.steps, facts.sampled_tokens, facts.worker) == (0, 0, 1)
    assert [load.generations for load in fleet.facts.loads] == [0, 0]


def test_without_a_usable_worker_a_request_waits_and_says_why():
    fleet = a_fleet()
    fleet.set_workers(workers(4, 4, usable=False), 0.0)

    assert fleet.request("a", 1.0) is None
    assert fleet.request("", 1.0, generation="g") is None
    assert fleet.why("a").code == "no_usable_worker"
    assert fleet.due() is None
    fleet.set_workers(workers(4, 4), 2.0)
    assert [name for name, _ in fleet.routed(2.0)] == ["a", "g"]
    assert fleet.routed(2.0) == []
    assert fleet.why("a").waits == ""


def test_a_generation_that_had_not_begun_on_a_lost_worker_is_routed_again():
    fleet = a_fleet()
    step(fleet, "a", 0.0)
    assert fleet.request("a", 2.0).worker == 1
    fleet.set_workers(workers(4, 4)[1:], 3.0)

    ((name, route),) = fleet.routed(3.0)
    assert (name, route.worker, route.reason) == ("a", 2, "worker_lost")
    assert [load.generations for load in fleet.facts.loads] == [1]


def test_a_generation_that_began_on_a_lost_worker_is_ended_by_its_report_and_the_next_one_goes_elsewhere():
    fleet = a_fleet()
    fleet.request("a", 0.0)
    fleet.begin("a", 0.0)
    fleet.set_workers(workers(4, 4)[1:], 1.0)

    assert fleet.routed(1.0) == []
    fleet.end("a", 1.0)
    route = fleet.request("a", 2.0)
    assert (route.worker, route.reason) == (2, "worker_lost")


def test_a_drained_worker_keeps_its_caches_and_gets_no_generation():
    fleet = a_fleet()
    step(fleet, "a", 0.0)
    first, second = workers(4, 4)
    fleet.set_workers([replace(first, usable=False), second], 2.0)
    assert fleet.facts.trajectories["a"].worker == 1
    fleet.set_workers([first, second], 3.0)
    assert fleet.request("a", 4.0).reason == "cached"


def test_new_weights_make_caches_void():
    fleet = a_fleet()
    step(fleet, "a", 0.0)
    fleet.request("b", 1.0)
    fleet.begin("b", 1.0)
    fleet.set_workers(workers(4, 4, weights_version=1), 2.0)
    fleet.end("b", 3.0, 10, 10)

    assert [each.worker for each in fleet.facts.trajectories.values()] == [None, None]
    assert [load.trajectories for load in fleet.facts.loads] == [0, 0]


def test_a_pinned_trajectory_goes_to_its_worker_until_that_is_unusable():
    fleet = a_fleet()
    step(fleet, "a", 0.0)
    assert fleet.pin("a", 2, 2.0)
    route = fleet.request("a", 3.0)
    assert (route.worker, route.reason) == (2, "pinned")
    fleet.end("a", 4.0, 10, 10)
    fleet.set_workers(workers(4), 5.0)
    assert fleet.request("a", 6.0).worker == 1
    assert not fleet.facts.trajectories["a"].pinned


def test_a_pin_to_an_unknown_worker_or_of_an_unknown_trajectory_is_refused():
    fleet = a_fleet()
    fleet.request("a", 0.0)

    assert not fleet.pin("a", 9, 0.0)
    assert not fleet.pin("b", 1, 0.0)
    assert not fleet.facts.trajectories["a"].pinned


def test_a_silent_trajectory_is_forgotten_and_a_working_one_is_not():
    fleet = a_fleet(silent_seconds=10.0)
    step(fleet, "a", 0.0)
    fleet.request("b", 0.0)
    fleet.routed(12.0)

    assert list(fleet.facts.trajectories) == ["b"]
    assert [load.trajectories for load in fleet.facts.loads] == [0, 1]


def test_what_is_finished_in_a_generation_leaves_no_count():
    fleet = a_fleet()
    fleet.request("a", 0.0)
    fleet.finish("a", 1.0)
    fleet.end("a", 2.0, 10, 10)
    fleet.begin("a", 2.0)

    assert fleet.facts.trajectories == {}
    assert [(load.generations, load.trajectories) for load in fleet.facts.loads] == [(0, 0)] * 2


def test_unusable_and_late_predictions_change_nothing_and_are_counted():
    fleet = a_fleet()
    step(fleet, "a", 0.0)
    fleet.predict("a", tokens(500), 1.0)
    for bad in (float("nan"), float("inf"), -1.0):
        fleet.predict("a", tokens(bad), 1.0)
    fleet.predict("a", tokens(7), 1.0, step=0)
    fleet.request("a", 2.0)
    fleet.predict("a", tokens(8), 2.0)

    assert fleet.facts.trajectories["a"].prediction.tokens == 500
    assert fleet.refused == {"unusable": 3, "late": 2}


def test_a_prediction_before_the_first_request_is_used():
    fleet = a_fleet()
    fleet.predict("a", tokens(500), 0.0)
    fleet.request("a", 1.0)

    assert fleet.facts.trajectories["a"].total_tokens == 500


def test_a_rank_that_is_not_finite_counts_as_zero():
    class Broken(PlainPolicy):
        def rank(self, trajectory, fleet):
            return float("nan")

    assert a_fleet(policy=Broken("rr", "cache")).request("a", 0.0).rank == 0.0


def test_a_policy_that_names_an_unusable_worker_gets_the_least_filled_one():
    class Broken(PlainPolicy):
        def choose(self, trajectory, fleet):
            return 9, "cached"

    route = a_fleet(policy=Broken("rr", "cache")).request("a", 0.0)
    assert (route.worker, route.reason) == (1, "least_loaded")


def test_members_of_a_batch_wait_until_all_are_there_and_are_arranged_together():
    policy = ScriptedPolicy(arranged={"a": 2, "b": 2, "c": 1})
    fleet = a_fleet(policy=policy)
    fleet.expect("s1", 3, 0.0)
    assert fleet.request("a", 0.0, batch="s1") is None
    assert fleet.request("b", 0.1, batch="s1") is None
    assert (fleet.why("a").code, fleet.due()) == ("batch_gathers", 0.5)

    last = fleet.request("c", 0.2, batch="s1")
    assert (last.worker, last.reason) == (1, "arranged")
    assert [(name, route.worker) for name, route in fleet.routed(0.2)] == [("a", 2), ("b", 2)]
    assert (fleet.due(), policy.batches) == (None, [["a", "b", "c"]])
    assert [(each.worker, each.size) for each in fleet.facts.groups("s1")] == [(1, 1), (2, 2)]


def test_a_batch_waits_half_a_second_for_members_that_do_not_come():
    policy = ScriptedPolicy(arranged={"a": 2, "b": 1})
    fleet = a_fleet(policy=policy)
    fleet.request("a", 1.0, batch="s1", batch_size=2)

    assert fleet.routed(1.49) == []
    ((name, route),) = fleet.routed(1.5)
    assert (name, route.worker) == ("a", 2)
    late = fleet.request("b", 1.6, batch="s1")
    assert late.reason == "least_loaded"
    assert policy.batches == [["a"]]


def test_more_members_than_announced_wait_for_none():
    fleet = a_fleet(policy=ScriptedPolicy(arranged={"a": 2, "b": 1}))
    routes = [fleet.request(key, 0.0, batch="s1", batch_size=1) for key in ("a", "b")]

    assert [route.reason for route in routes] == ["arranged", "least_loaded"]


def test_a_member_that_is_withdrawn_or_finished_while_its_batch_gathers_is_not_routed():
    policy = ScriptedPolicy(arranged={"a": 2, "b": 1, "c": 1})
    fleet = a_fleet(policy=policy)
    for key in ("a", "b", "c"):
        fleet.request(key, 0.0, batch="s1", batch_size=9)
    fleet.finish("a", 0.1)
    fleet.end("b", 0.2)

    assert [name for name, _ in fleet.routed(0.5)] == ["c"]
    assert policy.batches == [["b", "c"]]


def test_the_name_of_a_batch_may_return_after_its_last_member_left():
    policy = ScriptedPolicy(arranged={"a": 2, "b": 2})
    fleet = a_fleet(policy=policy)
    fleet.request("a", 0.0, batch="s1", batch_size=1)
    fleet.finish("a", 1.0)

    assert fleet.request("b", 2.0, batch="s1", batch_size=1).reason == "arranged"
    assert policy.batches == [["a"], ["b"]]


def test_a_batch_does_not_gather_for_a_policy_that_arranges_nothing():
    fleet = a_fleet()

    assert fleet.request("a", 0.0, batch="s1", batch_size=9) is not None


def test_a_plan_names_what_an_arrangement_of_now_would_change_and_changes_nothing():
    policy = ScriptedPolicy(arranged={"a": 2, "b": 2})
    fleet = a_fleet(policy=policy)
    for key in ("a", "b"):
        step(fleet, key, 0.0)
        fleet.predict(key, tokens(10), 1.0)
    before = fleet.remember()

    assert [(each.trajectory, each.worker, each.planned) for each in fleet.plan().changes] == [
        ("a", 1, 2)
    ]
    assert fleet.remember() == before


def test_workers_of_one_number_count_once():
    fleet = a_fleet()
    fleet.set_workers([WorkerFacts(1, 4), WorkerFacts(1, 8)], 0.0)

    assert [load.facts.slots for load in fleet.facts.loads] == [8]


def test_times_are_asked_of_the_degrees_that_workers_have():
    fleet = a_fleet(times=ProfiledTimes(roofline("8b", degrees=[2])))
    fleet.set_workers(workers(4, degree=2), 0.0)
    for at in (0.0, 10.0):
        step(fleet, "a", at)
        fleet.predict("a", tokens(100), at + 2.0)
    fleet.set_workers([WorkerFacts(2, 4, 2)], 20.0)
    assert fleet.facts.trajectories["a"].worker is None

    fleet.finish("a", 21.0)

    assert fleet.facts.trajectories == {}
