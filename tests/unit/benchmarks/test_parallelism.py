"""The modelled profile has the anchors of EARL's Figure 3, and the replay compares what it says it does."""

from __future__ import annotations

import math
from random import Random

import pytest

from benchmarks.parallelism.context_limit import play, thought, winner
from benchmarks.parallelism.growing import Step, World, growing, noisy
from benchmarks.parallelism.modelled import modelled_cell, modelled_profile
from benchmarks.parallelism.real import RealRun
from domain.selectors import Parallelism, SelectorSpec, check_profile_change

TP4, TP8 = Parallelism(4), Parallelism(8)


@pytest.fixture
def world() -> World:
    profile = modelled_profile()
    check_profile_change(profile)
    return World(SelectorSpec((TP4, TP8), context_limit=32_768), profile)


def speedup(context: int, responses: int) -> float:
    four, eight = (
        modelled_cell(each, context, responses).tokens_per_gpu_second for each in (TP4, TP8)
    )
    assert four is not None
    assert eight is not None
    return eight / four - 1


def test_the_modelled_profile_meets_what_the_paper_says_of_its_figure() -> None:
    assert 1 / (1 + speedup(2048, 32)) == pytest.approx(1.31, abs=0.005)
    assert speedup(16_384, 32) == pytest.approx(0.05, abs=0.005)
    assert speedup(32_768, 32) == pytest.approx(0.47, abs=0.005), "as docs/selectors.md says"
    lacking = {
        (cell.parallelism, cell.context, cell.responses)
        for cell in modelled_profile().cells
        if cell.oom
    }
    assert lacking == {(TP4, 32_768, 128)}


def test_the_modelled_profile_is_called_modelled_wherever_it_names_itself() -> None:
    profile = modelled_profile()
    named = [
        profile.source,
        profile.identity.hardware,
        profile.identity.model,
        profile.identity.engine,
    ]
    assert all("modelled" in each for each in named)


def test_the_selector_is_near_the_oracle_and_above_every_fixed_degree_on_the_model(
    world: World,
) -> None:
    steps = growing(2048, 32_768, 200, 32, seed=1)
    oracle, selected = world.oracle(steps), world.selected(steps)
    assert oracle.seconds <= selected.seconds <= 1.05 * oracle.seconds
    assert selected.lacked_memory_at is None
    for degree in (TP4, TP8):
        assert world.fixed(degree, steps).seconds > selected.seconds
    assert selected.switches == 1


def test_a_fixed_degree_ends_at_the_step_for_which_it_has_no_memory(world: World) -> None:
    steps = growing(2048, 32_768, 50, 128, seed=1)
    run = world.fixed(TP4, steps)
    assert run.lacked_memory_at is not None
    assert math.isinf(world.seconds(TP4, steps[run.lacked_memory_at]))
    assert world.fixed(TP8, steps).lacked_memory_at is None
    assert world.selected(steps).lacked_memory_at is None


def test_the_oracle_takes_no_switch_that_costs_more_than_it_brings(world: World) -> None:
    short = [Step(2048.0, 2048.0, 32, 1.0)] * 10 + [Step(32_000.0, 32_000.0, 32, 1.0)]
    assert world.oracle(short).switches == 0


def test_noise_about_a_border_does_not_make_the_degree_flap(world: World) -> None:
    for context in (8192.0, 12_000.0, 15_000.0, 16_384.0):
        assert world.selected(noisy(context, 32, 1000, seed=3)).switches <= 1


def test_more_thinking_wins_more_games_of_tic_tac_toe() -> None:
    returns = []
    for length in (0.0, 5.0):
        chance = Random(5)
        games = [play(length, 10**6, chance) for _ in range(60)]
        returns.append(sum(game.reward for game in games) / 60)
    assert returns[1] > returns[0] + 0.05


def test_a_turn_beyond_the_limit_is_truncated_and_its_game_lost() -> None:
    games = [play(6.0, 1500, Random(seed)) for seed in range(8)]
    assert any(game.truncated for game in games)
    assert all(game.context <= 1500 for game in games)
    assert all(game.reward == 0.0 for game in games if game.truncated)


def test_thinking_finds_the_move_that_wins_now() -> None:
    board = [1, 1, 0, -1, -1, 0, 0, 0, 0]
    assert thought(board, 1, 400, Random(1)) == 2
    assert winner([1, 1, 1, -1, -1, 0, 0, 0, 0]) == 1


def test_runs_are_compared_with_the_fixed_degree_that_survived() -> None:
    from benchmarks.parallelism.__main__ import compared

    runs = {
        "selector": [RealRun(10.0, (), (), ""), RealRun(11.0, (), (), "")],
        "tp1dp2": [RealRun(3.0, (), (), "status 77")] * 2,
        "tp2": [RealRun(12.0, (), (), ""), RealRun(11.0, (), (), "")],
    }
    found = compared(runs)
    assert found["best_fixed"] == "tp2"
    assert found["selector_lacked_memory"] == 0
    assert found["interval"] == [0.8333, 1.0]
