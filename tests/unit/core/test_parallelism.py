"""The degree of a stage follows what was measured: never out of memory, never to and fro, close to what an oracle does."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import InvalidRequest, NeverFits
from domain.selectors import (
    Parallelism,
    ParallelismProfile,
    ProfileCell,
    ProfileIdentity,
    SelectorSpec,
    SelectorStage,
    StageLoad,
    SwitchCost,
)
from scheduler.core.residency.parallelism import (
    FASTER,
    FASTEST,
    FIRST,
    FORCED,
    HYSTERESIS,
    MEMORY,
    NONE_SURVIVES,
    PINNED,
    TOO_DEAR,
    UNMEASURED,
    ParallelismStanding,
    Pin,
    ProfileTable,
    check_pin,
    choose,
    reach_of,
)
from tests.oracles.parallelism import best_seconds, replay

TP4, TP8 = Parallelism(4), Parallelism(8)
CONTEXTS = (2048, 4096, 8192, 16_384, 32_768)
RESPONSES = (32, 128)
SPEC = SelectorSpec((TP4, TP8), contexts=CONTEXTS, responses=RESPONSES, context_limit=32_768)
IDENTITY = ProfileIdentity("h100", "72b", "vllm")


def profile(
    speedups: tuple[float, ...],
    *,
    switch: float = 5.0,
    dies: tuple[tuple[int, int], ...] = ((32_768, 128),),
) -> ParallelismProfile:
    """Return a profile on which TP8 is faster than TP4 by ``speedups``, by context; TP4 dies at ``dies``."""
    cells = []
    for count in RESPONSES:
        for context, more in zip(CONTEXTS, speedups, strict=True):
            base = 4_000_000.0 / (context + 4000)
            oom = (context, count) in dies
            cells.append(
                ProfileCell(TP4, context, count, oom=True)
                if oom
                else ProfileCell(TP4, context, count, tokens_per_gpu_second=base)
            )
            cells.append(ProfileCell(TP8, context, count, tokens_per_gpu_second=base * (1 + more)))
    costs = (SwitchCost(TP4, switch), SwitchCost(TP8, switch))
    return ParallelismProfile(IDENTITY, tuple(cells), costs, revision=1)


def table_for(found: ParallelismProfile) -> ProfileTable:
    return ProfileTable(found, SelectorStage.ROLLOUT)


#: As Fig. 3 of EARL: TP4 is 31 % faster at short contexts, TP8 5 % from 16K.
FIG3 = table_for(profile((-0.24, -0.2, -0.1, 0.05, 0.05)))


def test_contexts_that_grow_change_the_degree_before_memory_runs_out() -> None:
    first = choose(SPEC, FIG3, StageLoad(3000, responses=128), ParallelismStanding())
    grown = choose(SPEC, FIG3, StageLoad(9000, responses=128), first.standing)
    late = choose(SPEC, FIG3, StageLoad(12_000, responses=128), grown.standing)

    assert (first.parallelism, first.code, first.switch_seconds) == (TP4, FIRST, 0.0)
    assert (grown.parallelism, grown.code) == (TP4, FASTEST)
    assert (late.parallelism, late.code) == (TP8, MEMORY)
    assert late.reach == 18_000
    assert "tp4 is not known to survive 18,000 tokens × 128 responses" in late.why
    assert late.switch_seconds == 5.0


def test_a_faster_degree_is_taken_beyond_the_hysteresis_once_it_pays() -> None:
    table = table_for(profile((-0.24, -0.2, -0.1, 0.3, 0.3), switch=4.0))
    standing = ParallelismStanding(TP4, 10_000)

    near = choose(SPEC, table, StageLoad(10_500, responses=32), standing)
    beyond = choose(SPEC, table, StageLoad(15_000, responses=32), standing)
    dear = choose(SPEC, table, StageLoad(15_000, responses=32, tokens=20_000), standing)
    later = choose(SPEC, table, StageLoad(15_000, responses=32, tokens=20_000), dear.standing)

    assert (near.parallelism, near.code) == (TP4, HYSTERESIS)
    assert (beyond.parallelism, beyond.code) == (TP8, FASTER)
    assert beyond.gain == pytest.approx(0.22, abs=0.01)
    assert beyond.gain_seconds > beyond.switch_seconds == 4.0
    assert (dear.parallelism, dear.code) == (TP4, TOO_DEAR)
    assert later.code in (TOO_DEAR, FASTER)
    assert later.standing.lost_seconds > dear.standing.lost_seconds or later.switched


def test_a_small_gain_that_lasts_pays_for_the_switch_in_the_end() -> None:
    table = table_for(profile((-0.24, -0.2, -0.1, 0.05, 0.05), switch=30.0))
    load = StageLoad(20_000, responses=32, tokens=50_000)
    standing, steps = ParallelismStanding(TP4, 20_000), 0

    while not (choice := choose(SPEC, table, load, standing)).switched:
        standing, steps = choice.standing, steps + 1

    assert choice.code == FASTER
    assert 1 < steps < 1000
    assert "lost so far" in choice.why


def test_what_is_not_measured_does_not_survive() -> None:
    assert FIG3.survives(TP4, 16_384, 128)
    assert FIG3.survives(TP4, 32_768, 32)
    assert not FIG3.survives(TP4, 16_385, 128)
    assert not FIG3.survives(TP4, 20_000, 33)  # no cell with at least as many ran
    assert not FIG3.survives(TP8, 32_769, 32)
    assert not FIG3.survives(Parallelism(2), 1, 1)


def test_rates_between_cells_are_on_lines_and_outside_the_nearest() -> None:
    at = FIG3.rate
    low, high = at(TP4, 4096, 32), at(TP4, 8192, 32)
    assert low is not None
    assert high is not None

    assert at(TP4, 4096 * 2**0.5, 32) == pytest.approx((low + high) / 2)
    assert at(TP4, 1, 32) == at(TP4, 2048, 32)
    assert at(TP4, 4096, 1) == low
    assert at(TP4, 4096, 64) == pytest.approx(low)


def test_without_a_survivor_the_present_degree_stays_and_the_choice_says_why() -> None:
    far = StageLoad(40_000, responses=128)

    kept = choose(SPEC, FIG3, far, ParallelismStanding(TP8, 40_000))
    nothing = choose(SPEC, FIG3, far, ParallelismStanding())
    empty = ProfileTable(ParallelismProfile(IDENTITY), SelectorStage.ROLLOUT)
    unknown = choose(SPEC, empty, StageLoad(10), ParallelismStanding(TP4))

    assert (kept.parallelism, kept.code, kept.switched) == (TP8, NONE_SURVIVES, False)
    assert "40,000 tokens × 128 responses" in kept.why
    assert (nothing.parallelism, nothing.code) == (None, NONE_SURVIVES)
    assert (unknown.parallelism, unknown.code) == (TP4, UNMEASURED)


def test_a_pin_holds_while_it_survives_and_beyond_if_it_is_forced() -> None:
    standing = ParallelismStanding(TP8, 4000)
    short, long = StageLoad(4000, responses=128), StageLoad(20_000, responses=128)

    pinned = choose(SPEC, FIG3, short, standing, pin=Pin(TP4))
    aside = choose(SPEC, FIG3, long, pinned.standing, pin=Pin(TP4))
    forced = choose(SPEC, FIG3, long, pinned.standing, pin=Pin(TP4, forced=True))

    assert (pinned.parallelism, pinned.code) == (TP4, PINNED)
    assert (aside.parallelism, aside.code) == (TP8, MEMORY)
    assert "the pinned tp4 would run out of memory" in aside.why
    assert (forced.parallelism, forced.code) == (TP4, FORCED)
    with pytest.raises(NeverFits, match="give force"):
        check_pin(SPEC, FIG3, long, 20_000, Pin(TP4))
    with pytest.raises(InvalidRequest, match="not among its degrees"):
        check_pin(SPEC, FIG3, long, 20_000, Pin(Parallelism(2)))
    check_pin(SPEC, FIG3, long, 20_000, Pin(TP4, forced=True))


def test_the_reach_is_bounded_by_the_limit_but_not_below_what_was_seen() -> None:
    assert reach_of(SPEC, StageLoad(10_000), 0) == 15_000
    assert reach_of(SPEC, StageLoad(10_000), 28_000) == 32_768
    assert reach_of(SPEC, StageLoad(10_000, context_longest=40_000), 0) == 40_000


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.floats(2048, 20_000),
    st.sampled_from(RESPONSES),
    st.lists(st.floats(-0.5, 0.5), min_size=5, max_size=5),
)
def test_noise_of_ten_percent_over_1000_steps_does_not_flap(
    seed: int, mean: float, responses: int, speedups: list[float]
) -> None:
    source = random.Random(seed)
    table = table_for(profile(tuple(sorted(speedups)), switch=0.0))
    spec = SelectorSpec((TP4, TP8), contexts=CONTEXTS, responses=RESPONSES)
    loads = [StageLoad(mean * source.uniform(0.9, 1.1), responses=responses) for _ in range(1000)]

    run = replay(spec, table, loads, 0.0)

    assert run.switches <= 2  # one for speed, one for memory
    assert run.out_of_memory == 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(1.0, 1.45), st.floats(0.7, 1.0)), min_size=1, max_size=40),
    st.sets(st.tuples(st.sampled_from(CONTEXTS), st.sampled_from(RESPONSES)), max_size=4),
    st.sampled_from((1, 32, 100, 128)),
)
def test_no_step_runs_out_of_memory_where_a_degree_survives(
    growth: list[tuple[float, float]], dies: set[tuple[int, int]], responses: int
) -> None:
    table = table_for(profile((-0.24, -0.2, -0.1, 0.05, 0.05), dies=tuple(dies)))
    longest, loads = 1500.0, []
    for more, mean in growth:
        longest = min(SPEC.context_limit or 0, longest * more)
        loads.append(StageLoad(longest * mean, context_longest=longest, responses=responses))

    run = replay(SPEC, table, loads, 5.0)

    assert run.out_of_memory == 0


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(100, 400),
    st.floats(0.0, 0.4),
    st.floats(0.0, 0.4),
    st.integers(1, 3),
    st.floats(0.0, 20.0),
)
def test_contexts_that_grow_cost_at_most_five_percent_more_than_with_foresight(
    seed: int, steps: int, slower: float, faster: float, border: int, switch: float
) -> None:
    """The degree that is slower when long runs out of memory only two doublings after the border, as in the measured tables."""
    source = random.Random(seed)
    speedups = [-slower if place < border else faster for place in range(len(CONTEXTS))]
    dies = ((32_768, 128),) if border <= 2 else ()
    table = table_for(profile(tuple(speedups), switch=switch, dies=dies))
    loads = [
        StageLoad(1800 * 15 ** (step / steps) * source.uniform(0.95, 1.05), responses=128)
        for step in range(steps)
    ]

    run, best = replay(SPEC, table, loads, switch), best_seconds(SPEC, table, loads, switch)

    assert run.out_of_memory == 0
    assert run.seconds <= 1.05 * best
