"""Fleets in virtual time: moments that can be computed by hand, folds, moves, and predictors of a declared quality."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from domain.errors import InvalidRequest
from managers.llm.fake.engine_spec import EngineSpec
from placement.facts import Move, TrajectoryFacts
from placement.fleet import LlmFleet
from placement.policies.plain import PlainPolicy
from placement.policies.protocol import FleetView
from simulator.fleets.modelled_predictors import CORRELATIONS, ModelledPredictor
from simulator.fleets.policies import policy_of
from simulator.fleets.rollout import FleetRollout, roll_out
from simulator.fleets.setting import FleetResult, FleetSetting, FoldRule
from simulator.traces import make_recordings
from simulator.workloads.trajectories import (
    DECLARED,
    AgentTrajectory,
    DeclaredAgents,
    ModelTurn,
    RecordedAgents,
)

#: 10 ms a token on one GPU and 2.5 ms on four; prompts and caches take nothing.
SPEC = EngineSpec("plain", 5e9, 1.0, memory_bytes=1e10 + 1e6, bandwidth=1e12, flops=1e30, prefill_rate=1e12,
                  tensor_exponent=1.0, all_reduce_seconds=0.0, host_bandwidth=1e12)  # fmt: skip


def trajectory(key: str, *turns: tuple[int, float]) -> AgentTrajectory:
    return AgentTrajectory(key, "g", 10, tuple(ModelTurn(n, tool, 5) for n, tool in turns))


def rolled(
    batch: Sequence[AgentTrajectory], policy: str = "rr+cache", **fields: object
) -> FleetResult:
    given = {"degrees": (1,), "slots": 2, "spec": SPEC, **fields}
    return roll_out(FleetSetting(policy, **given), batch)  # type: ignore[arg-type]


def test_a_trajectory_takes_its_turns_and_its_tools():
    found = rolled([trajectory("a", (100, 3.0), (200, 0.0))])

    assert found.makespan == pytest.approx(1.0 + 3.0 + 2.0, rel=1e-3)
    assert found.tokens == 300
    assert (found.queue, found.preempted, found.moves) == (0.0, 0, 0)
    assert found.cached_tokens == 110


def test_the_longest_remaining_is_first_where_slots_bind():
    batch = [trajectory(f"t{n}", (100, 0.0), (100, 0.0)) for n in range(4)]
    batch.append(trajectory("long", (100, 20.0), (400, 0.0)))

    ours = rolled(batch, "seconds+cache", predictor="oracle", slots=1)
    theirs = rolled(batch, "rr+cache", slots=1)

    assert ours.makespan == pytest.approx(1.0 + 20.0 + 4.0, rel=1e-3)
    assert theirs.makespan == pytest.approx(5.0 + 20.0 + 4.0, rel=1e-3)
    assert ours.longest_queue == pytest.approx(0.0)


def test_thirty_two_buckets_order_as_ranks_do_where_lengths_are_far_apart():
    batch = [trajectory(f"t{n}", (100 * 4**n, 0.0)) for n in range(4)]

    ranks = rolled(batch, "seconds+cache", predictor="oracle", slots=1)
    buckets = rolled(batch, "seconds+cache", predictor="oracle", slots=1, buckets=True)

    assert ranks.ends == buckets.ends


@pytest.mark.parametrize("cuts", [True, False])
def test_a_fold_ends_the_rest_on_a_wide_worker_and_loses_no_token(cuts: bool):
    batch = [trajectory(f"t{n}", (100, 0.0)) for n in range(7)]
    batch.append(trajectory("long", (300, 0.0), (4000, 1.0), (1000, 0.0)))
    fold = FoldRule(left=0.2, degree=4, wake_seconds=2.0, cuts=cuts)

    narrow = rolled(batch, degrees=(1, 1, 1, 1), slots=8)
    folded = rolled(batch, degrees=(1, 1, 1, 1), slots=8, fold=fold)

    assert folded.folded_at == pytest.approx(1.0, rel=1e-2)
    assert folded.tokens == narrow.tokens == 700 + 5300
    assert narrow.makespan == pytest.approx(54.0, rel=1e-2)
    cut = 1.0 + 2.0 + (200 + 4000) / 400 + 1.0 + 1000 / 400
    ended = 3.0 + 2.0 + 4000 / 400 + 1.0 + 1000 / 400
    assert folded.makespan == pytest.approx(cut if cuts else ended, rel=1e-2)


def test_what_waits_for_a_slot_is_folded_as_well():
    batch = [trajectory(f"t{n}", (400, 0.0)) for n in range(6)]
    found = rolled(batch, degrees=(1, 1), slots=1, fold=FoldRule(left=0.7, degree=2))

    assert len(found.ends) == 6
    assert found.tokens == 2400


class Mover(PlainPolicy):
    """Moves every trajectory that is in a tool to the other of two workers, once."""

    def __init__(self) -> None:
        super().__init__("rr", "cache")

    def move(self, trajectory: TrajectoryFacts, fleet: FleetView) -> Move | None:
        if trajectory.worker is None or trajectory.steps > 1:
            return None
        return Move(
            trajectory.key,
            trajectory.worker,
            1 - trajectory.worker,
            trajectory.context_tokens,
            1.0,
            1.0,
        )


def test_a_move_in_a_tool_takes_the_cache_along():
    batch = [trajectory("a", (100, 3.0), (200, 0.0))]
    setting = FleetSetting("rr+cache", (1, 1), "oracle", 2, SPEC)

    found = FleetRollout(setting, batch, LlmFleet(Mover(), SPEC)).run()

    assert (found.moves, found.moved_tokens, found.cached_tokens) == (1, 110, 110)
    assert found.makespan == pytest.approx(6.0, rel=1e-3)


def test_equal_settings_give_equal_results():
    batch = DeclaredAgents(DECLARED["search"], 32, seed=3).trajectories()

    first, second = (
        rolled(batch, "tokens+least", predictor="trace", degrees=(1, 2), slots=8) for _ in range(2)
    )

    assert first == second
    assert first.tokens == sum(each.tokens for each in batch)


def test_what_a_fleet_measured_in_a_former_batch_counts_in_the_next():
    batches = [DeclaredAgents(DECLARED["math"], 24, seed).trajectories() for seed in range(2)]
    setting = FleetSetting("seconds+cache", (1,), "good", 8, SPEC)
    former = FleetRollout(setting, batches[0])
    former.run()

    FleetRollout(setting, batches[1], former.fleet).run()

    assert 0 < former.fleet.facts.correlation() < 1
    assert former.fleet.facts.trajectories == {}


def test_half_of_a_group_follows_its_recording():
    batch = RecordedAgents(make_recordings(40, 0), 32, seed=1).trajectories()
    again = RecordedAgents(make_recordings(40, 0), 32, seed=1).trajectories()

    assert batch == again
    turns = [len(each.turns) for each in batch if each.group == "g0000"]
    assert len(turns) == 16
    assert len(set(turns[:8])) == 1
    assert len(set(turns[8:])) > 1
    assert all(each.turns[-1].tool_seconds == 0 for each in batch)


def test_no_trajectory_is_longer_than_the_limit():
    batch = RecordedAgents(make_recordings(40, 0), 64, token_rate=1000.0).trajectories()

    assert max(each.tokens for each in batch) == 40_000
    assert all(turn.tokens >= 1 for each in batch for turn in each.turns)


@pytest.mark.parametrize("workload", DECLARED)
def test_declared_agents_have_the_tools_of_table_1(workload: str):
    batch = DeclaredAgents(DECLARED[workload], 400).trajectories()
    tools = [turn.tool_seconds for each in batch for turn in each.turns[:-1]]
    lengths = sorted(each.tokens for each in batch)

    assert np.mean(tools) == pytest.approx(DECLARED[workload].tool_seconds, rel=0.15)
    assert lengths[-1] > 4 * lengths[200]


@pytest.mark.parametrize(
    ("name", "turns"), [("trace", 0), ("good", 0), ("good", 2), ("inverse", 0)]
)
def test_a_modelled_predictor_has_its_declared_correlation(name: str, turns: int):
    batch = [
        each
        for each in DeclaredAgents(DECLARED["math"], 800).trajectories()
        if len(each.turns) > turns
    ]
    predictor = ModelledPredictor(name, batch, seed=1)
    said = [predictor.prediction(each.key, turns).tokens for each in batch]
    true = [sum(turn.tokens for turn in each.turns[turns:]) for each in batch]

    found = np.corrcoef(np.log(said), np.log(true))[0, 1]
    declared = CORRELATIONS[name][0 if turns == 0 else 1]
    assert found == pytest.approx(declared, abs=0.06)


def test_a_calibrated_predictor_states_its_error():
    batch = DeclaredAgents(DECLARED["math"], 800).trajectories()
    predictor = ModelledPredictor("good", batch)
    said = [predictor.prediction(each.key, 0) for each in batch]
    errors = [math.log(each.tokens / one.tokens) for each, one in zip(batch, said, strict=True)]

    assert np.std(errors) == pytest.approx(said[0].sigma, rel=0.1)


def test_an_oracle_is_right():
    (only,) = batch = [trajectory("a", (100, 3.0), (200, 0.0))]
    said = ModelledPredictor("oracle", batch).prediction(only.key, 1)

    assert (said.tokens, said.tool_seconds, said.sigma) == (200, 0.0, 0.0)


def test_unknown_names_are_refused_with_those_that_are_known():
    with pytest.raises(InvalidRequest, match="trace, good, oracle"):
        ModelledPredictor("perfect", [])
    with pytest.raises(InvalidRequest, match="rr\\+cache"):
        policy_of("seconds+nothing")
    with pytest.raises(InvalidRequest, match="count"):
        RecordedAgents(make_recordings(2, 0), 0)
