"""Elastic grants of GPU chunks."""

from __future__ import annotations

import pytest

from domain.elasticity import Elasticity
from domain.inventory import PoolConfig
from tests.builders import a_config, a_node, an_action, granted

PERFECT = Elasticity(amdahl=1.0)


def on_gpus(name, counts, **fields):
    return an_action(name, cost={"gpu": counts}, duration_seconds=8.0, elasticity=PERFECT, **fields)


def with_policy(policy):
    return a_config(pools=[PoolConfig("default", policy)])


@pytest.mark.parametrize("policy", ["paper", "balanced", "malleable"])
def test_actions_get_chunks_that_fit_together(core, policy):
    scenario = core(a_node("n1", gpu=8), config=with_policy(policy))
    scenario.submit(on_gpus("a", [1]))
    scenario.submit(on_gpus("b", [2, 4]), on_gpus("c", [1, 2]))

    units = [set(scenario.the_grant(name).allocations[0].units) for name in "abc"]

    assert [len(each) for each in units] == [1, 4, 2]
    assert len(set.union(*units)) == 7


def test_a_chunk_that_is_free_in_pieces_only_is_waited_for(core):
    scenario = core(a_node("n1", gpu=4), config=with_policy("paper"))
    scenario.submit(*(on_gpus(name, [1]) for name in "abcd"))
    scenario.submit(on_gpus("wide", [2]))
    for name in "ac":
        assert granted(scenario.finish(name)) == []

    assert granted(scenario.finish("b")) == ["wide"]


def test_an_action_that_declares_itself_malleable_keeps_its_chunk(core):
    """A service stays on its chunk: it cannot move to another while it works."""
    scenario = core(a_node("n1", gpu=4), config=with_policy("malleable"))
    scenario.submit(on_gpus("a", [1, 2, 4], malleable=True))
    scenario.start("a")

    assert granted(scenario.submit(on_gpus("b", [1, 2], malleable=True))) == []
    assert granted(scenario.finish("a")) == ["b"]


@pytest.mark.parametrize("count", [0.5, 16], ids=str)
def test_a_count_that_is_no_chunk_is_refused_at_once(core, count):
    scenario = core(a_node("n1", gpu=16), config=with_policy("paper"))

    scenario.submit(on_gpus("a", [count]))

    assert "can never run" in scenario.the_finish("a").detail


def test_more_gpus_than_a_chunk_of_any_node_has_are_refused_at_once(core):
    """Six GPUs are a chunk of four and one of two: five can never be had."""
    scenario = core(a_node("n1", gpu=6), config=with_policy("paper"))

    scenario.submit(on_gpus("a", [5]))

    assert (
        "gpu: 8 asked, the largest node of pool 'default' has 6" in scenario.the_finish("a").detail
    )


def test_malleable_actions_share_free_chunks_by_their_shapes(core):
    """A sum of 8 GPUs is free, in pieces of 1 + 1 + 2 + 4: not every call can have 3."""
    scenario = core(a_node("n1", gpu=8), config=with_policy("malleable"))

    scenario.submit(*(on_gpus(name, [1, 3], malleable=True) for name in "abcd"))

    taken = [scenario.the_grant(name).allocations[0].amount for name in "abcd"]
    assert sum(taken) <= 8000
