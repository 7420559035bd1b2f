"""Times of workers that compute prompts: means of generations, their share of a token, and what they change."""

from __future__ import annotations

import pytest

from placement.busy_times import BusyTimes, PromptLoad
from placement.facts import ArrangedGroup
from placement.policies.grouping import workers_of_longer
from tests.unit.placement.fleets import DeclaredTimes, a_fleet, step, tokens

TIMES = DeclaredTimes()


def test_each_sequence_of_a_batch_adds_its_prompts_to_a_token():
    busy = BusyTimes(TIMES, PromptLoad(1, 500.0, 100.0))

    for degree in (1, 4):
        stall = TIMES.prefill_seconds(degree, 500) / 100
        for batch in (1, 7):
            alone = TIMES.token_seconds(degree, batch, 0.0)
            assert busy.token_seconds(degree, batch, 0.0) == pytest.approx(alone + batch * stall)
    assert busy.prefill_seconds(2, 300) == TIMES.prefill_seconds(2, 300)
    assert busy.transfer_seconds(300) == TIMES.transfer_seconds(300)
    assert busy.kv_tokens(2) == TIMES.kv_tokens(2)


def test_the_load_is_the_mean_of_generations():
    load = PromptLoad().with_ended(100, 10).with_ended(300, 30).with_ended(-5, 20)

    assert load.generations == 3
    assert load.computed_tokens == pytest.approx(400 / 3)
    assert load.sampled_tokens == pytest.approx(20)


def test_before_a_generation_has_ended_prompts_add_nothing():
    fleet = a_fleet(4)
    fleet.request("a", 0.0)

    assert fleet.facts.busy_times.token_seconds(1, 3, 0.0) == TIMES.token_seconds(1, 3, 0.0)


def test_a_fleet_measures_what_its_generations_computed_and_a_recalled_one_knows_it():
    fleet, other = a_fleet(4), a_fleet(4)
    step(fleet, "a", 0.0, prompt=400, sampled=50)

    other.recall(fleet.remember())

    assert fleet.facts.prompts == other.facts.prompts == PromptLoad(1, 400.0, 50.0)
    busy = other.facts.busy_times
    assert busy.token_seconds(1, 2, 0.0) == pytest.approx(0.011 + 2 * 0.4 / 50)


def test_a_prediction_of_the_rest_after_a_tool_is_compared_with_the_rest_after_it():
    fleet = a_fleet(4)
    fleet.predict("a", tokens(150, tools=60.0), 0.0)
    step(fleet, "a", 0.0, sampled=50)
    fleet.predict("a", tokens(100, tools=0.0), 2.0)
    step(fleet, "a", 61.0, sampled=100)

    fleet.finish("a", 62.0)

    (pairs,) = fleet.facts.remember_correlation()
    assert [said for said, _ in pairs] == pytest.approx([true for _, true in pairs])


def test_workers_of_longer_groups_are_those_before_ones_own():
    groups = [ArrangedGroup(worker, 1, 1.0, 1.0) for worker in (3, 1, 2)]

    assert [workers_of_longer(groups, worker) for worker in (3, 1, 2, 9)] == [
        set(),
        {3},
        {3, 1},
        set(),
    ]
    assert workers_of_longer([], 1) == set()
