"""The model of a day on which the rules of elastic groups are compared."""

from __future__ import annotations

from argparse import Namespace

import pytest

from benchmarks.elastic_day import DayCluster, draw_day, rate_at
from benchmarks.elastic_groups import play
from tangram_client.traces.recording import RecordedStep, Recording

WORK = Recording("r", tuple(RecordedStep(5.0, 10.0, 1.0, "test") for _ in range(3)), memory_bytes=0)


def played(count: int, nodes: int) -> DayCluster:
    """Play trajectories that begin together on nodes of one core."""
    cluster = DayCluster([(0.0, WORK)] * count, 1)
    for number in range(nodes):
        cluster.join(f"n-{number}")
    cluster.run()
    return cluster


def test_a_trajectory_alone_never_waits():
    cluster = played(1, 1)
    assert (cluster.acts, cluster.waits, cluster.now) == ([10.0] * 3, 0.0, 45.0)


def test_trajectories_share_the_cores_of_their_nodes():
    assert played(2, 2).waits == 0.0
    cluster = played(2, 1)
    # The second one waits for the first action of the first, and later ones for half of their time.
    assert cluster.waits == pytest.approx(10 + 5 + 5 + 5 + 5)
    assert len(cluster.acts) == 6


def test_the_demand_has_what_runs_and_what_waits():
    cluster = DayCluster([(0.0, WORK)] * 3, 1)
    cluster.join("n-0")
    seen = []
    cluster.at(7.0, lambda _: seen.append(cluster.demand()))
    cluster.run()
    (demand,) = seen
    assert sum(row.running for row in demand.rows) == 1
    assert sum(row.waiting for row in demand.rows) == 2
    assert demand.trajectories == 1


def test_the_rate_of_a_day_has_one_peak():
    rates = [rate_at(3600.0 * hour, 10.0, 86_400.0) for hour in range(24)]
    assert max(rates) == rates[14] == pytest.approx(10.0)
    assert min(rates) == rates[2] == pytest.approx(1.0)


def test_equal_seeds_draw_equal_days():
    assert draw_day([WORK], 0.05, 3, 3600.0) == draw_day([WORK], 0.05, 3, 3600.0)


@pytest.mark.parametrize("rule", ["full", "ours", "target"])
def test_each_rule_serves_the_whole_day(rule: str):
    options = Namespace(
        nodes=2, cores=2, peak_busy=0.5, start_seconds=30.0, hours=0.2, seed=0
    )  # fmt: skip
    found = play(options, [WORK], rule)
    assert found["actions"] == 3 * found["trajectories"] > 0
    assert found["mean_act_seconds"] >= 10.0
    assert 0 < found["busy"] <= 1
