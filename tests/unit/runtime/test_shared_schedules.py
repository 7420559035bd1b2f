"""What the estimate of elastic groups shares between numbers of nodes: as if each were computed by itself."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from contract.pool_demands import DemandRow
from scheduler.runtime.node_groups.list_schedule import WaitList
from scheduler.runtime.node_groups.pool_load import ArrivingActions, NodesFrom, Place, PoolLoad
from scheduler.runtime.node_groups.queue_estimate import QueueEstimate
from tests.oracles.listed_waits import PlainWaitList, queue_seconds
from tests.tiers import by_tier

SHAPES = ({"cpu": 8000, "memory": 64}, {"cpu": 32_000, "memory": 64}, {"cpu": 16_000, "gpu": 8000})
#: Nodes of the second and third shape, where they are of no group.
OTHERS = (2, 1)
NEEDS = st.sampled_from([{"cpu": 1000}, {"cpu": 6000}, {"cpu": 20_000}, {"cpu": 1000, "gpu": 2000}, {"gpu": 4000}])  # fmt: skip
SECONDS = st.sampled_from([0.5, 10.0, 30.0, 31.0, 400.0])
ROWS = st.lists(
    st.builds(
        DemandRow, NEEDS, st.sampled_from([0, 8, 40]), st.booleans(), SECONDS, st.integers(0, 30),
        running=st.integers(0, 20), residual_seconds=SECONDS,
    ),
    max_size=12,
)  # fmt: skip
ARRIVALS = st.lists(
    st.builds(ArrivingActions, NEEDS, st.booleans(), SECONDS, st.floats(0.01, 5.0)), max_size=8
)
CHUNKS = st.sampled_from([None, (0, 1, 0, 0), (2, 0, 1, 0)])
FREE = st.tuples(*(st.integers(0, 8).map(lambda n: 1000 * n) for _ in range(2)), st.integers(0, 64))
PLACES = st.lists(st.builds(Place, st.integers(0, 2), st.integers(1, 9), FREE, CHUNKS), max_size=12)
NUMBERS = st.sampled_from([0, 1, 2, 3, 5, 12])
#: Nodes of the first group now and later; the second one has half of them.
PATHS = st.lists(
    st.tuples(NUMBERS, st.lists(st.tuples(st.sampled_from([5.0, 30.0]), NUMBERS), max_size=2)),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(max_examples=by_tier(10, 30, 3000), deadline=None)
@given(ROWS, ARRIVALS, PLACES, PATHS, st.integers(1, 2), st.sampled_from([0, 30]))
def test_paths_that_share_their_beginning_have_the_waits_of_each_by_itself(
    rows: list[DemandRow],
    arrivals: list[ArrivingActions],
    places: list[Place],
    paths: list[tuple[int, list[tuple[float, int]]]],
    groups: int,
    trajectories: int,
) -> None:
    load = PoolLoad(rows, arrivals, SHAPES, groups, OTHERS[groups - 1 :], places, trajectories)
    waits, queues = WaitList(load), QueueEstimate(load)
    for now, joining in paths:
        moments = sorted({0.0: now, **dict(joining)}.items())
        path = [NodesFrom(at, (n, n // 2)[:groups]) for at, n in moments]
        assert waits.schedule(path) == PlainWaitList(load).schedule(path)
        assert queues.seconds(path[-1].nodes) == queue_seconds(load, path[-1].nodes)
