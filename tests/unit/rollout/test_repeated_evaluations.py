"""Evaluations that are lost: EVAL begins again from what RUN stored, at most twice, and RUN is not repeated."""

from __future__ import annotations

import asyncio
from typing import Any

from domain.rollouts import RolloutOutcome
from tests.unit.rollout.conftest import kinds


def places_of(bench, rollout):
    """Return the trajectories of the actions of a rollout, in order."""
    return [action.members["trajectory"] for action in bench.port.actions(rollout.id)]


def ends_in(bench, suffix, outcome):
    """Let the actions of trajectories with this end in their names end so, others complete."""

    async def program(members: Any) -> Any:
        ends = members["trajectory"].endswith(suffix)
        return (outcome, {}) if ends else ("completed", {"exit_code": 0})

    bench.port.program = program


async def test_an_eval_that_ends_unknown_is_repeated_alone_from_what_run_stored(bench):
    ends_in(bench, "-eval", "unknown")
    await bench.start()
    rollout = bench.submit("Tools")

    result = await bench.result(rollout)

    assert (result.outcome, result.reward, result.turns) == (RolloutOutcome.COMPLETED, 1.0, 3)
    assert places_of(bench, rollout) == ["rol_1", *["rol_1-run"] * 3, "rol_1-eval", "rol_1-eval2"]
    stored = kinds(bench.port.log(rollout.id))
    assert [stored.count(each) for each in ("prepared", "stage", "eval_again")] == [1, 1, 1]
    assert "rol_1-eval" in bench.port.finished_trajectories


async def test_an_eval_that_stays_unknown_is_repeated_twice_then_infra_failed(bench):
    async def program(members: Any) -> Any:
        is_eval = "-eval" in members["trajectory"]
        return ("unknown", {}) if is_eval else ("completed", {"exit_code": 0})

    bench.port.program = program
    await bench.start()
    rollout = bench.submit("Tools")

    result = await bench.result(rollout)

    assert (result.outcome, result.reward) == (RolloutOutcome.INFRA_FAILED, None)
    assert result.reason.startswith("EVAL began 3 times without an end, at last: action act_7")
    assert places_of(bench, rollout)[4:] == ["rol_1-eval", "rol_1-eval2", "rol_1-eval3"]


async def test_an_environment_that_is_lost_in_eval_is_prepared_again_without_another_run(bench):
    ends_in(bench, "-eval", "infra_failed")
    await bench.start()
    rollout = bench.submit("Tools")

    result = await bench.result(rollout)

    assert (result.outcome, result.reward, result.turns) == (RolloutOutcome.COMPLETED, 1.0, 3)
    assert places_of(bench, rollout)[4:] == [
        "rol_1-eval",
        "rol_1-again1",
        "rol_1-again1-eval2",
    ]
    stored = kinds(bench.port.log(rollout.id))
    assert [stored.count(each) for each in ("prepared", "stage", "lost")] == [2, 1, 0]


async def test_a_worker_that_ends_while_eval_is_repeated_has_a_successor_that_goes_on_there(bench):
    going = asyncio.Event()

    async def program(members: Any) -> Any:
        if members["trajectory"].endswith("-eval"):
            return "unknown", {}
        if members["trajectory"].endswith("-eval2"):
            await going.wait()
        return "completed", {"exit_code": 0}

    bench.port.program = program
    await bench.start()
    rollout = bench.submit("Tools")
    await bench.port.has_action(rollout.id, 6)

    bench.port.lose_worker()
    await bench.start()
    await bench.port.reads(rollout.id, 2)
    going.set()

    assert (await bench.result(rollout)).reward == 1.0
    assert places_of(bench, rollout)[4:] == ["rol_1-eval", "rol_1-eval2"]
