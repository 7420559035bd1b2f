"""Estimates of when workers end agree with a step-by-step run, and do not depend on how they are asked for."""

from __future__ import annotations

import math
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from domain.engine_profiles import DegreeProfile, EngineProfile
from domain.errors import InvalidRequest
from placement.estimates import Work, assignment_seconds, drain_seconds, worthwhile
from placement.facts import WorkerFacts
from placement.profiles import ProfiledTimes
from placement.roofline import roofline
from tests.oracles.draining import alternating, drained


def an_engine(kv_tokens=10**9):
    """Return times of 10 ms a token for one sequence and 1 ms for each further one; twice as fast on two GPUs."""
    return ProfiledTimes(
        EngineProfile(
            degrees=tuple(
                DegreeProfile(
                    degree=degree,
                    batches=(1, 101),
                    contexts=(0,),
                    token_seconds=((0.01 / degree,), (0.11 / degree,)),
                    prefill=((1000, 0.1),),
                    kv_tokens=kv_tokens,
                )
                for degree in (1, 2)
            )
        )
    )


TIMES = an_engine()
NARROW, WIDE = WorkerFacts(1, slots=100), WorkerFacts(2, slots=100, degree=2)


def token_seconds(batch):
    return 0.009 + 0.001 * batch


def long_tailed(count, seed):
    drawn = random.Random(seed)
    return [drawn.lognormvariate(6, 1) for _ in range(count)]


def test_one_trajectory_takes_its_tokens_and_its_tools():
    work = Work([1000], [7.0], [0])

    assert drain_seconds(TIMES, NARROW, work) == pytest.approx(17.0)
    assert drain_seconds(TIMES, WIDE, work) == pytest.approx(12.0)


def test_trajectories_without_tokens_take_their_tools():
    assert drain_seconds(TIMES, NARROW, Work([0, 0], [7.0, 3.0], [0, 0])) == pytest.approx(7.0)
    assert drain_seconds(TIMES, NARROW, Work([], [], [])) == 0


def test_the_batch_thins_as_trajectories_end():
    # Two share 1,000 tokens at 11 ms; the longer then has 1,000 left at 10 ms.
    assert drain_seconds(TIMES, NARROW, Work([1000, 2000], [0, 0], [0, 0])) == pytest.approx(
        21.0, rel=0.002
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("count", "tool_seconds", "slots", "off"),
    [(12, 0.0, 100, 0.01), (60, 0.0, 100, 0.01), (12, 20.0, 100, 0.1), (30, 5.0, 100, 0.1),
     (30, 0.0, 8, 0.25), (30, 10.0, 8, 0.25)],
)  # fmt: skip
def test_an_estimate_agrees_with_a_run_step_by_step(count, tool_seconds, slots, off, seed):
    tokens = long_tailed(count, seed)
    stepped = drained(
        [alternating(each, tool_seconds, steps=5) for each in tokens], token_seconds, slots
    )

    found = drain_seconds(
        TIMES, WorkerFacts(1, slots), Work(tokens, [tool_seconds] * count, [0] * count)
    )

    assert found == pytest.approx(stepped, rel=off)


def test_many_trajectories_are_estimated_in_classes():
    tokens = long_tailed(400, 1)
    stepped = drained([alternating(each, 0, 1) for each in tokens], token_seconds, 1000)

    found = drain_seconds(TIMES, WorkerFacts(1, 1000), Work(tokens, [0] * 400, [0] * 400))

    assert found == pytest.approx(stepped, rel=0.02)


def test_caches_without_room_bound_the_batch():
    work = Work([1000] * 10, [0] * 10, [500] * 10)

    # Room for two of 1,000 tokens each: five turns of two.
    found = drain_seconds(an_engine(kv_tokens=2000), NARROW, work)

    assert found == pytest.approx(5 * 1000 * 0.011, rel=0.01)


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 100), st.floats(0, 1e4)), max_size=9),
    st.randoms(),
)
def test_the_order_of_trajectories_does_not_matter(some, shuffler):
    shuffled = list(some)
    shuffler.shuffle(shuffled)
    found = [
        drain_seconds(TIMES, NARROW, Work(*map(list, zip(*each, strict=True))))
        for each in (some, shuffled)
        if each
    ]

    assert found == pytest.approx(found[::-1], rel=1e-9)


def test_the_slowest_worker_ends_an_assignment():
    work = Work([100, 1000, 1000, 1000], [0, 0, 0, 0], [0, 0, 0, 0])

    found = assignment_seconds(TIMES, [NARROW, WIDE], [1, 0, 1, 1], work)

    assert found == pytest.approx(
        max(
            drain_seconds(TIMES, NARROW, Work([1000], [0], [0])),
            drain_seconds(TIMES, WIDE, Work([100, 1000, 1000], [0, 0, 0], [0, 0, 0])),
        )
    )


def test_a_worker_without_trajectories_takes_no_time():
    found = assignment_seconds(TIMES, [NARROW, WIDE, NARROW], [1], Work([1000], [0], [0]))

    assert found == pytest.approx(5.0)


def test_wrong_predictions_cost_a_full_group_of_short_ones_more_than_a_mixed_one():
    tokens = sorted(long_tailed(64, 3), reverse=True)
    work = Work(tokens, [0] * 64, [0] * 64)
    workers = [WorkerFacts(number, 100) for number in range(4)]
    runs = [0] * 2 + [1] * 6 + [2] * 16 + [3] * 40
    dealt = [number % 4 for number in range(64)]

    exact = [assignment_seconds(TIMES, workers, each, work) for each in (runs, dealt)]
    wrong = [assignment_seconds(TIMES, workers, each, work, sigma=1.5) for each in (runs, dealt)]

    assert exact[0] < exact[1]
    assert wrong[0] / wrong[1] > exact[0] / exact[1]


def test_an_estimate_is_repeatable():
    work = Work(long_tailed(50, 1), [1.0] * 50, [0] * 50)

    found = {
        assignment_seconds(TIMES, [NARROW, WIDE], [0, 1] * 25, work, sigma=0.5) for _ in range(3)
    }

    assert len(found) == 1


def test_an_arrangement_replaces_routing_from_five_percent_on():
    assert worthwhile(100.0, 94.9)
    assert not worthwhile(100.0, 95.1)
    assert not worthwhile(0.0, 0.0)
    assert worthwhile(100.0, 99.0, least_share=0.0)


@pytest.mark.parametrize("wrong", [math.nan, -1.0, math.inf])
@pytest.mark.parametrize("member", ["tokens", "tool_seconds", "contexts"])
def test_numbers_that_are_none_are_refused_by_place(member, wrong):
    fields = {"tokens": [1, 1], "tool_seconds": [1, 1], "contexts": [1, 1], member: [1, wrong]}

    with pytest.raises(InvalidRequest) as refused:
        Work(**fields)

    assert refused.value.pointer == f"/{member}/1"


def test_a_worker_is_given_for_every_trajectory():
    with pytest.raises(InvalidRequest, match="one for each"):
        assignment_seconds(TIMES, [NARROW], [0], Work([1, 1], [0, 0], [0, 0]))
    with pytest.raises(InvalidRequest, match="differ in number"):
        Work([1, 1], [0], [0, 0])
    with pytest.raises(InvalidRequest, match="log error"):
        assignment_seconds(TIMES, [NARROW], [0], Work([1], [0], [0]), sigma=math.nan)
    with pytest.raises(InvalidRequest, match="at least 1"):
        drain_seconds(TIMES, WorkerFacts(1, slots=0), Work([1], [0], [0]))


def test_a_wide_worker_ends_a_few_sooner_and_many_later():
    times = ProfiledTimes(roofline("14b"))
    narrow = [WorkerFacts(number, 100) for number in range(8)]
    wide = [WorkerFacts(9, 800, degree=8)]

    def seconds(count):
        work = Work([4000] * count, [0] * count, [0] * count)
        return (
            assignment_seconds(times, narrow, [number % 8 for number in range(count)], work),
            assignment_seconds(times, wide, [0] * count, work),
        )

    few, many = seconds(8), seconds(800)
    assert few[1] < few[0]
    assert many[1] > many[0]
