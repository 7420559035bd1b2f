"""Ranks by remaining seconds, their fade to least attained service, and the integers that engines take."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import InvalidRequest
from placement.facts import Prediction
from placement.priorities import (
    BUCKETS,
    MOST_RANK,
    PAIRS,
    SGLANG,
    SGLANG_GREATER_FIRST,
    VLLM,
    Fade,
    RankCorrelation,
    bucket,
    rank_by_seconds,
    rank_by_tokens,
    remaining_seconds,
    spearman,
)

SECONDS = st.floats(0, 1e9)
WEIGHTS = st.floats(0, 1)


def by_seconds(prediction: Prediction, token_seconds: float = 0.01) -> float:
    return rank_by_seconds(remaining_seconds(prediction, token_seconds), 0.0, 1.0)


def test_tool_seconds_count_where_the_paper_ranks_tokens_alone():
    few_tokens_long_tools = Prediction(100, tool_seconds=300)
    many_tokens = Prediction(1000)

    assert rank_by_tokens(many_tokens) > rank_by_tokens(few_tokens_long_tools)
    assert by_seconds(few_tokens_long_tools) > by_seconds(many_tokens)


def test_a_token_counts_as_long_as_it_takes():
    tools, tokens = Prediction(0, tool_seconds=60), Prediction(3000)

    assert by_seconds(tools, 0.01) > by_seconds(tokens, 0.01)
    assert by_seconds(tools, 0.05) < by_seconds(tokens, 0.05)


def test_without_trust_the_least_attained_service_is_first():
    """Autellix's order, whatever is predicted."""
    attained = [0.0, 1.0, 30.0, 4000.0]
    predicted = [5.0, 900.0, None, 3.0]

    ranks = [rank_by_seconds(*each, 0.0) for each in zip(predicted, attained, strict=True)]

    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == 4


def test_with_full_trust_the_longest_remaining_is_first_whatever_it_attained():
    ranks = [
        rank_by_seconds(left, attained, 1.0) for left, attained in [(9, 0), (90, 1e4), (1e4, 5)]
    ]

    assert ranks == sorted(ranks)


def test_a_trajectory_without_a_prediction_is_typical():
    known = [rank_by_seconds(left, 10.0, 0.8) for left in (5.0, 50.0, 500.0)]

    unknown = rank_by_seconds(None, 10.0, 0.8, typical_seconds=50.0)

    assert known[0] < unknown == known[1] < known[2]


def test_the_predicted_order_loses_its_weight_as_the_correlation_falls():
    fade = Fade(unsure=0.2, sure=0.6)

    assert [fade.weight(each) for each in (1.0, 0.6, 0.2, 0.0, -1.0, math.nan)] == [
        1,
        1,
        0,
        0,
        0,
        0,
    ]
    assert fade.weight(0.4) == pytest.approx(0.5)


@pytest.mark.parametrize("bounds", [(0.5, 0.5), (0.6, 0.2), (-2, 0.5), (0.1, 1.5), (math.nan, 0.5)])
def test_a_fade_has_growing_bounds(bounds):
    with pytest.raises(InvalidRequest, match="growing numbers from -1 to 1"):
        Fade(*bounds)


@given(SECONDS, SECONDS, SECONDS, WEIGHTS)
def test_a_longer_rest_never_ranks_lower(first, second, attained, weight):
    short, long = sorted((first, second))

    low, high = (rank_by_seconds(left, attained, weight) for left in (short, long))

    assert 0 <= low <= high <= MOST_RANK * (1 + 1e-12)


@given(SECONDS, SECONDS, SECONDS, WEIGHTS)
def test_more_attained_service_never_ranks_higher(left, first, second, weight):
    little, much = sorted((first, second))

    assert rank_by_seconds(left, much, weight) <= rank_by_seconds(left, little, weight)


def test_buckets_are_thirty_two_of_equal_width_and_the_first_is_0():
    middles = [(number + 0.5) * MOST_RANK / BUCKETS for number in range(BUCKETS)]

    assert [bucket(each) for each in middles] == list(range(BUCKETS - 1, -1, -1))
    assert [bucket(each) for each in (-1.0, 0.0, MOST_RANK, 2 * MOST_RANK)] == [31, 31, 0, 0]


@pytest.mark.parametrize("wire", [VLLM, SGLANG], ids=lambda wire: wire.engine)
def test_a_longer_rest_gets_a_lower_integer(wire):
    """Both engines serve the lower integer first; inverted, the longest trajectory waits for all others."""
    lengths = [1.0, 10.0, 100.0, 1000.0, 10_000.0]

    integers = [wire.integer(rank_by_seconds(each, 0.0, 1.0)) for each in lengths]

    assert wire.lower_first
    assert all(later < earlier for earlier, later in pairwise(integers))


def test_a_server_that_takes_the_greater_one_first_gets_greater_ones():
    lengths = [1.0, 10.0, 100.0, 1000.0]

    integers = [SGLANG_GREATER_FIRST.integer(rank_by_seconds(each, 0.0, 1.0)) for each in lengths]

    assert integers == sorted(integers)
    assert "--schedule-low-priority-values-first" not in SGLANG_GREATER_FIRST.flags
    assert "--schedule-low-priority-values-first" in SGLANG.flags


@given(SECONDS, SECONDS, st.integers(-1000, 1000), st.integers(1, 1000))
def test_the_callers_priority_ranks_before_the_predicted_rest(first, second, priority, more):
    ranks = [rank_by_seconds(each, 0.0, 1.0) for each in (first, second)]

    assert VLLM.integer(ranks[0], priority + more) < VLLM.integer(ranks[1], priority)
    assert SGLANG_GREATER_FIRST.integer(ranks[0], priority + more) > SGLANG_GREATER_FIRST.integer(
        ranks[1], priority
    )


@pytest.mark.parametrize("wire", [VLLM, SGLANG, SGLANG_GREATER_FIRST])
def test_integers_fit_into_32_bits(wire):
    for priority in (10**12, -(10**12)):
        assert abs(wire.integer(3.0, priority)) <= 2**31 - 1


@pytest.mark.parametrize(("wire", "last"), [(SGLANG, 2**31 - 1), (SGLANG_GREATER_FIRST, 1 - 2**31)])
def test_requests_without_a_priority_are_served_last_by_sglang(wire, last):
    assert wire.flags[wire.flags.index("--default-priority-value") + 1] == str(last)


def test_the_measured_correlation_starts_at_what_is_assumed():
    assert RankCorrelation().value == 1.0
    assert RankCorrelation(prior=0.3).value == 0.3
    assert RankCorrelation().typical_seconds == 0.0


def test_a_right_order_measures_1_and_an_inverted_one_nearly_minus_1():
    right, wrong = RankCorrelation(), RankCorrelation()
    for number in range(200):
        right.add([(number**2, number)])
        wrong.add([(1000 - number, number)])

    assert right.value == pytest.approx(1.0)
    assert wrong.value == pytest.approx((200 * -1 + 4) / 204)
    assert right.typical_seconds == 99.5


def test_few_trajectories_change_little():
    measured = RankCorrelation()
    measured.add([(1.0, 9.0), (2.0, 5.0)])

    assert 0.5 < measured.value < 1.0


def test_only_the_last_trajectories_count():
    measured = RankCorrelation(window=50)
    for number in range(50):
        measured.add([(-number + 50, number)])
    assert measured.value < 0

    for number in range(50):
        measured.add([(number, number)])

    assert len(measured) == 50
    assert measured.value == pytest.approx(1.0)


def test_a_long_trajectory_counts_with_few_of_its_steps():
    measured = RankCorrelation()
    measured.add([(float(step), float(step)) for step in range(1000)])

    (pairs,) = measured.remember()
    assert len(pairs) == PAIRS
    assert pairs[0] == (0.0, 0.0)
    assert pairs[-1] == (999.0, 999.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_pairs_with_unusable_numbers_are_left_out(bad):
    measured = RankCorrelation()
    measured.add([(bad, 1.0), (1.0, bad)])
    assert len(measured) == 0

    measured.add([(bad, 1.0), (2.0, 2.0)])
    assert measured.remember() == [[(2.0, 2.0)]]


def test_what_was_measured_survives_a_restart():
    measured, restarted = RankCorrelation(), RankCorrelation()
    for number in range(20):
        measured.add([(number % 7, number), (number % 3, number)])

    restarted.recall(measured.remember())

    assert restarted.value == measured.value
    assert restarted.remember() == measured.remember()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=30))
def test_rank_correlation_is_that_of_mean_ranks(pairs):
    """Against its definition: Pearson's correlation of ranks, where equal numbers share the mean of theirs."""
    first, second = (np.array(each, dtype=float) for each in zip(*pairs, strict=True))

    def ranks(values: np.ndarray) -> list[float]:
        return [
            sum(other < value for other in values)
            + (sum(other == value for other in values) - 1) / 2
            for value in values
        ]

    a, b = np.array(ranks(first)), np.array(ranks(second))
    expected = 0.0 if a.std() == 0 or b.std() == 0 else float(np.corrcoef(a, b)[0, 1])

    assert spearman(first, second) == pytest.approx(expected, abs=1e-9)
