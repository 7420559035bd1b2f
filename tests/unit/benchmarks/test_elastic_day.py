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
    cluster = DayCluster([(0.0, WORK)] * count)
    for number in range(nodes):
        cluster.join(f"n-{number}", 1)
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
    cluster = DayCluster([(0.0, WORK)] * 3)
    cluster.join("n-0", 1)
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


def test_a_large_action_gets_the_node_that_is_kept_for_it():
    large = Recording("l", (RecordedStep(0.0, 5.0, 16.0, "build"),), memory_bytes=0)
    small = Recording("s", (RecordedStep(0.0, 30.0, 4.0, "test"),), memory_bytes=0)
    arrivals = [(float(second), small) for second in range(0, 300, 6)] + [(40.0, large)]
    cluster = DayCluster(sorted(arrivals, key=lambda arrival: arrival[0]))
    for name, cores in (("b-1", 16), ("n-1", 8)):
        cluster.join(name, cores)
    cluster.run()
    # What ran there at 40 s had 30 s at most.
    assert cluster.large_acts == [pytest.approx(30.0, abs=6.0)]
    assert len(cluster.acts) == 51


@pytest.mark.parametrize("shapes", ["", "4:2,16:2"])
@pytest.mark.parametrize("rule", ["full", "ours", "target"])
def test_each_rule_serves_the_whole_day(rule: str, shapes: str):
    options = Namespace(
        nodes=2, cores=2, peak_busy=0.5, start_seconds=30.0, hours=0.2, seed=0, shapes=shapes, builds_per_hour=0
    )  # fmt: skip
    found = play(options, [WORK], rule)
    assert found["actions"] == 3 * found["trajectories"] > 0
    assert found["mean_act_seconds"] >= 10.0
    assert 0 < found["busy"] <= 1
