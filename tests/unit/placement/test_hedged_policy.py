"""The default policy: seconds, caches with a bound on load, arrangements and moves only where they are estimated to pay."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from placement.facts import Prediction, WorkerFacts
from placement.fold import WideSite
from placement.moves import SoonerRule
from placement.policies.hedged import HedgedPolicy, HedgedSettings, expected_sigma
from placement.policies.registry import make_policy
from tests.unit.placement.fleets import DeclaredTimes, a_fleet, step, tokens, workers

QUIET = HedgedSettings(arrange_share=math.inf, moves=None, patience=math.inf)


def hedged(*slots, **changes):
    """Return a fleet of the policy with one part on."""
    times = changes.pop("times", None)
    return a_fleet(*slots, policy=HedgedPolicy(replace(QUIET, **changes)), times=times)


def begun(fleet, lengths, **fields):
    """Begin a batch with predicted lengths; return the worker of each."""
    for key, length in lengths.items():
        fleet.predict(key, Prediction(float(length), **fields), 0.0)
        fleet.request(key, 0.0, batch="s1", batch_size=len(lengths))
    fleet.routed(0.5)
    return {key: fleet.facts.trajectories[key].worker for key in lengths}


def test_the_default_policy_is_hedged():
    assert isinstance(make_policy(), HedgedPolicy)


def test_tools_count_in_the_order():
    fleet = hedged(9)
    fleet.predict("tokens", Prediction(1000.0), 0.0)
    fleet.predict("tools", Prediction(10.0, tool_seconds=300.0), 0.0)

    assert fleet.request("tools", 0.0).rank > fleet.request("tokens", 0.0).rank


def test_a_queue_does_not_weigh_tokens_more_than_tools():
    ranks = []
    for others in (0, 60):
        fleet = hedged(2)
        for number in range(others):
            fleet.request(f"other{number}", 0.0)
        fleet.predict("tokens", Prediction(2000.0), 0.0)
        fleet.predict("tools", Prediction(10.0, tool_seconds=300.0), 0.0)
        routes = [fleet.request(key, 0.0) for key in ("tools", "tokens")]
        ranks.append([route.rank for route in routes if route is not None])

    assert all(tools > tokens for tools, tokens in ranks)


def test_with_a_predictor_that_is_wrong_the_order_is_least_attained_service():
    fleet = hedged(99)
    for number in range(40):  # the more is predicted, the less is true
        key = f"old{number}"
        fleet.request(key, 0.0)
        fleet.predict(key, tokens(1000 - 20 * number), 0.0, step=0)
        fleet.end(key, 1.0, 10, 10 + 20 * number)
        fleet.finish(key, 1.0)
    assert fleet.facts.correlation() < 0
    step(fleet, "much", 2.0, sampled=5000)
    step(fleet, "little", 2.0, sampled=50)
    fleet.predict("much", tokens(9000), 3.0)
    fleet.predict("little", tokens(1), 3.0)

    assert fleet.request("little", 4.0).rank > fleet.request("much", 4.0).rank


def test_without_predictions_it_routes_by_caches_and_evens_out_new_trajectories():
    fleet = a_fleet(9, 9, policy=HedgedPolicy())
    for key in "abcd":
        fleet.request(key, 0.0, batch="s1", batch_size=4)
    assert sorted(route.worker for _, route in fleet.routed(0.5)) == [1, 1, 2]
    fleet.end("a", 1.0, 10, 10)
    assert fleet.request("a", 2.0).reason == "cached"


def test_a_new_trajectory_goes_where_it_is_fastest():
    fleet = hedged(9, 9)
    fleet.set_workers([WorkerFacts(1, 9), WorkerFacts(2, 9, degree=4)], 0.0)

    # Twice as fast: 10 ms alone on the narrow one, 5 ms + 0.5 ms for each further one on the wide one.
    assert [fleet.request(f"t{n}", 0.0).worker for n in range(8)] == [2] * 8


def test_a_trajectory_leaves_a_full_worker_when_the_wait_is_much_longer_than_a_prefill():
    fleet = hedged(1, 1, patience=3.0)
    for key in ("a", "b", "c"):
        step(fleet, key, 0.0, seconds=4.0, prompt=1000, sampled=0)
        fleet.pin(key, 1, 5.0)
        step(fleet, key, 5.0, seconds=4.0, prompt=1000, sampled=0)
        fleet.pin(key, None, 9.0)
    assert fleet.request("a", 10.0).worker == 1
    route = fleet.request("b", 10.0)  # 4 s in the queue, or 1 s of prefill on the free worker

    assert (route.worker, route.reason) == (2, "overloaded")
    assert fleet.request("c", 10.0).reason == "cached"  # no worker has a free slot


def test_a_trajectory_stays_on_a_full_worker_when_its_cache_is_worth_more():
    fleet = hedged(1, 1, patience=5.0)
    for key in ("a", "b"):
        step(fleet, key, 0.0, seconds=4.0, prompt=1000, sampled=0)
        fleet.pin(key, 1, 5.0)
        step(fleet, key, 5.0, seconds=4.0, prompt=1000, sampled=0)
        fleet.pin(key, None, 9.0)
    fleet.request("a", 10.0)

    assert fleet.request("b", 10.0).reason == "cached"


class Contended(DeclaredTimes):
    """The time of a token grows with the batch, so a crowd slows each of its members."""

    def token_seconds(self, degree, batch, context_tokens):
        return 0.01 * (1 + batch)


LONG_TAIL = {f"t{n}": 1000 for n in range(60)} | {"long": 6000}


def test_a_batch_with_a_sure_long_tail_is_arranged():
    fleet = hedged(99, 99, arrange_share=0.05)
    places = begun(fleet, LONG_TAIL)

    assert fleet.why("long").code == "arranged"
    assert list(places.values()).count(places["long"]) < 10


def test_a_batch_that_an_arrangement_does_not_shorten_is_routed_one_by_one():
    fleet = hedged(99, 99, arrange_share=0.05)
    places = begun(fleet, {f"t{n}": 100 for n in range(20)})

    assert fleet.facts.groups("s1") == ()
    assert sorted(places.values()).count(1) == 10


def test_a_batch_whose_predictions_are_mostly_error_is_routed_one_by_one():
    fleet = hedged(99, 99, arrange_share=0.05)
    begun(fleet, LONG_TAIL, sigma=2.0)

    assert fleet.facts.groups("s1") == ()


def test_a_batch_of_which_less_than_half_is_predicted_is_routed_one_by_one():
    fleet = hedged(99, 99, arrange_share=0.05)
    for key, length in LONG_TAIL.items():
        if key == "long" or int(key[1:]) < 29:
            fleet.predict(key, tokens(length), 0.0)
        fleet.request(key, 0.0, batch="s1", batch_size=len(LONG_TAIL))

    assert fleet.facts.groups("s1") == ()


def test_an_error_is_expected_as_declared_or_as_the_correlation_implies():
    spread = [Prediction(float(each), sigma=0.3) for each in (10, 100, 1000, 10000)]

    assert expected_sigma(spread, 1.0) == pytest.approx(0.3)
    assert expected_sigma(spread, 0.5) > 1.0
    assert expected_sigma(spread, -1.0) == 3.0


def waiting(fleet, key, worker, left, at=0.0):
    """Put a trajectory with so much left into a tool, with its cache on a worker."""
    fleet.request(key, at)
    fleet.pin(key, worker, at)
    fleet.end(key, at)
    step(fleet, key, at, prompt=500, sampled=500)
    fleet.pin(key, None, at + 1)
    fleet.predict(key, tokens(left), at + 1)


def crowded(crowd=9, left=1000, **options):
    """Return a fleet with a crowd on worker 1 and nothing on worker 2."""
    fleet = hedged(99, 99, moves=SoonerRule(**options), times=Contended())
    for number in range(crowd):
        waiting(fleet, f"t{number}", 1, 800)
    waiting(fleet, "long", 1, left)
    return fleet


def test_a_trajectory_moves_from_a_crowd_to_an_idle_worker():
    fleet = crowded()
    fleet.predict("long", tokens(1000), 2.0)

    (move,) = fleet.moves(2.0)
    assert (move.trajectory, move.source, move.target) == ("long", 1, 2)
    assert move.gain_seconds > 0.2 * move.length


def test_a_move_that_ends_less_than_a_fifth_sooner_is_not_worth_it():
    fleet = hedged(99, 99, moves=SoonerRule())  # 10 ms a token, 1 ms more for each beside it
    waiting(fleet, "a", 1, 800)
    waiting(fleet, "long", 1, 1000)

    assert fleet.moves(2.0) == []


def test_the_transfer_counts():
    fleet = hedged(99, 99, moves=SoonerRule(), times=Contended(transfers=10.0))
    for number in range(9):
        waiting(fleet, f"t{number}", 1, 800)
    waiting(fleet, "long", 1, 100)

    assert fleet.moves(2.0) == []


def test_trajectories_that_end_soon_are_no_crowd():
    fleet = hedged(99, 99, moves=SoonerRule(), times=Contended())
    for number in range(9):
        waiting(fleet, f"t{number}", 1, 10)
    waiting(fleet, "long", 1, 1000)

    assert fleet.moves(2.0) == []


def test_a_move_does_not_delay_a_longer_trajectory_beyond_what_it_shortens():
    fleet = crowded(crowd=3)
    waiting(fleet, "longer", 2, 5000, at=2.0)
    fleet.predict("long", tokens(1000), 4.0)

    assert [move.trajectory for move in fleet.moves(4.0) if move.target == 2] == []


def test_no_prediction_no_move():
    fleet = hedged(99, 99, moves=SoonerRule(), times=Contended())
    for number in range(9):
        waiting(fleet, f"t{number}", 1, 800)
    step(fleet, "x", 3.0)

    assert all(move.trajectory != "x" for move in fleet.moves(5.0))


def test_weights_of_another_version_are_no_target():
    fleet = crowded()
    first, second = workers(99, 99)
    fleet.set_workers([first, replace(second, weights_version=3)], 2.0)
    fleet.predict("long", tokens(1000), 2.0)

    assert fleet.moves(2.0) == []


def test_a_recalled_fleet_estimates_as_the_former_one():
    fleet = crowded(left=3000)
    twin = hedged(1, moves=SoonerRule(), times=Contended())
    twin.recall(fleet.remember())

    assert twin.moves(2.0) == fleet.moves(2.0) != []


def test_a_batch_of_alike_predictions_with_errors_is_routed_one_by_one():
    """An estimate of it is the chance of which group has the longest; in the arrangement all of one prompt are together."""
    fleet = hedged(99, 99, arrange_share=-1.0)  # an arrangement need not be better
    begun(fleet, {f"t{n}": 100 for n in range(20)}, sigma=0.5)

    assert fleet.facts.groups("s1") == ()


def test_the_correlation_is_measured_after_each_of_the_first_trajectories_and_then_after_some():
    fleet = hedged(99)
    measured = []
    for number in range(40):
        key = f"t{number}"
        fleet.request(key, 0.0)
        fleet.predict(key, tokens(10 + number), 0.0, step=0)
        fleet.end(key, 1.0, 10, 500 - number)
        fleet.finish(key, 1.0)
        measured.append(fleet.facts.correlation())

    assert len(set(measured[2:15])) == 13
    assert len(set(measured[14:30])) == 1
    assert measured[30] != measured[29] < 0
    twin = hedged(99)
    twin.recall(fleet.remember())
    assert twin.facts.correlation() == measured[-1]


def test_a_fold_is_asked_of_a_policy_that_folds_and_changes_nothing():
    site = WideSite(WorkerFacts(9, 99, degree=8, usable=False), tuple(workers(99, 99)), 0.5)
    fleet = hedged(99, 99)
    for number, worker in enumerate((1, 2)):
        waiting(fleet, f"t{number}", worker, 4000)
    plain = a_fleet(99, 99)
    before = fleet.remember()

    assert fleet.folds([site]) == []  # two GPUs are no room for a degree of 8
    wide = replace(site, worker=replace(site.worker, degree=2))
    (fold,) = fleet.folds([wide])
    assert (fold.wide, fold.sleeping, fold.trajectories) == (9, (1, 2), ("t0", "t1"))
    assert fleet.remember() == before
    assert plain.folds([wide]) == []


def test_a_running_generation_delays_a_fold_by_what_is_expected_of_it():
    site = WideSite(WorkerFacts(9, 99, degree=2, usable=False), tuple(workers(99, 99)), 0.5)
    fleet = hedged(99, 99)
    for number, worker in enumerate((1, 2)):
        waiting(fleet, f"t{number}", worker, 4000)
    (idle,) = fleet.folds([site])
    fleet.request("t0", 2.0)
    fleet.begin("t0", 2.0)
    (busy,) = fleet.folds([site])

    assert busy.fold_seconds > idle.fold_seconds
