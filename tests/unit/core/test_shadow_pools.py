"""Shadow pools choose the steady count without a replay of many calls at once, and shorter calls come first."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from domain.action import Action, Outcome
from domain.elasticity import Elasticity
from domain.events import ActionFinished, ChunkReport, NodeJoined
from domain.ids import ActionId
from scheduler.core.residency import shadow_pools
from scheduler.core.residency.policy import RestoreTimes
from scheduler.core.residency.service_replay import (
    ReplayedService,
    ServiceReplay,
    empty_pool,
    mean_act,
    present,
)
from scheduler.core.residency.steady_memory import ReplayedCall, SteadyCount, WaitingCall
from scheduler.core.state import snapshot
from tests.builders import make_ledger
from tests.tiers import by_tier
from tests.unit.core.test_restore_costs import NAMES, a_wide_call
from tests.unit.core.test_services_on_chunks import a_gpu_node
from tests.unit.core.test_steady_counts import Pool

#: Two GPUs waste least; more waste so much that a crowd never gets through.
WASTEFUL = Elasticity(table=((1000, 1.0), (2000, 1.0), (4000, 0.8), (8000, 0.5)))


def a_pool() -> Pool:
    pool = Pool(shadows=True)
    for name in NAMES:
        pool.machine.state.residency.memory.times[name] = RestoreTimes(0.1, 4.0)
    return pool


def steady(pool: Pool) -> SteadyCount:
    return pool.machine.state.residency.memory.steady["default"]


def crowd(calls: int, first: int = 0) -> list[Action]:
    return [
        replace(a_wide_call(f"c{number}", NAMES[number % 4]), elasticity=WASTEFUL)
        for number in range(first, first + calls)
    ]


def submit_slowly(pool: Pool, calls: list[Action]) -> None:
    for each in calls:
        pool.submit(each)


def end(pool: Pool, name: str, *, restore: float, execution: float) -> None:
    """End a call that holds its chunk, after a restore and its execution as reported."""
    live = pool.machine.state.actions[ActionId(name)]
    pool.at += 5
    pool.machine.handle(
        ActionFinished(
            action_id=live.id, node=live.node or "", outcome=Outcome.COMPLETED, attempt=live.attempt,
            at=pool.at, execution_seconds=execution, chunk=ChunkReport(restore_seconds=restore),
        )
    )  # fmt: skip


@given(
    gaps=st.lists(st.tuples(st.floats(0.0, 5.0), st.sampled_from("abcd")), min_size=1, max_size=20),
    chunks=st.integers(1, 4),
    stops=st.lists(st.floats(0.0, 60.0), max_size=5),
)
@settings(max_examples=by_tier(30, 100, 1000), deadline=None)
def test_a_shadow_counts_the_acts_of_its_calls_wherever_it_pauses(gaps, chunks, stops):
    """Little: the number of present calls, summed over time, is the sum of ACTs."""
    services = dict.fromkeys("abcd", ReplayedService(0.5, 60))
    at, calls = 0.0, []
    for gap, service in gaps:
        at += gap
        calls.append(ReplayedCall(at, service, 1.0))
    pool = empty_pool(chunks, 80)
    pool.mean_seconds = 1.0
    replay = ServiceReplay(pool, services)
    for number, call in enumerate(calls):
        for stop in sorted(stops):
            while pool.now < stop < call.at_seconds and replay.step(stop):
                pass
        while replay.step(call.at_seconds):
            pass
        replay.add(WaitingCall(0.0, number, call))
    while replay.step(inf):
        pass

    assert present(pool) == 0
    assert pool.area == pytest.approx(sum(replay.acts.values()))
    assert pool.area == pytest.approx(
        len(calls) * mean_act(calls, services, min(chunks, len(calls)), 80)
    )


def test_waiting_calls_get_the_count_that_would_have_saved_more_than_the_change_costs():
    pool = a_pool()
    submit_slowly(pool, crowd(80))

    waiting = {live.needs.key_amount for live in pool.machine.state.actions.values() if live.queue}
    assert waiting == {2000}


def test_few_calls_do_not_change_the_count():
    pool = a_pool()
    submit_slowly(pool, crowd(8))

    assert steady(pool).count == 4000


def test_no_pass_plays_more_than_its_part_however_many_calls_arrive(monkeypatch):
    played = []
    step = ServiceReplay.step

    def counted(replay: ServiceReplay, until: float) -> bool:
        played.append(until)
        return step(replay, until)

    monkeypatch.setattr(ServiceReplay, "step", counted)
    pool = a_pool()
    pool.submit(*crowd(40))
    left = len(steady(pool).recent)
    at_most = 3 * shadow_pools.PASS_WORK / shadow_pools.INSTANT_WORK
    assert 0 < left < 40
    assert 0 < len(played) <= at_most

    for number in range(40, 60):
        played.clear()
        pool.submit(*crowd(1, first=number))
        assert len(played) <= at_most
    assert steady(pool).recent == []


def test_a_restored_pool_goes_on_with_its_shadows():
    pool = a_pool()
    pool.submit(*crowd(40))
    restored = a_pool()
    restored.machine = snapshot.load(snapshot.dump(pool.machine), make_ledger)
    restored.at = pool.at
    assert steady(restored) == steady(pool)
    assert steady(pool).shadows

    for each in (pool, restored):
        submit_slowly(each, crowd(40, first=40))

    assert snapshot.dump(restored.machine) == snapshot.dump(pool.machine)


def test_shadows_begin_again_when_a_node_joins():
    pool = a_pool()
    submit_slowly(pool, crowd(20))
    assert [len(each.pool.chunks) for each in steady(pool).shadows] == [4, 2, 1]

    joined = replace(a_gpu_node(8), name="other", identity="other")
    pool.machine.handle(NodeJoined(at=pool.at, node=joined))
    submit_slowly(pool, crowd(20, first=20))

    assert [len(each.pool.chunks) for each in steady(pool).shadows] == [8, 4, 2]


def test_a_count_that_no_chunk_has_is_never_chosen():
    pool = Pool(shadows=True, gpus=4)
    submit_slowly(pool, crowd(60))

    assert [len(each.pool.chunks) for each in steady(pool).shadows] == [2, 1, 0]
    assert steady(pool).count < 8000


def test_the_time_of_a_call_beside_restore_and_execution_is_learned():
    pool = a_pool()
    pool.submit(a_wide_call("1", "a"))
    end(pool, "1", restore=1.0, execution=3.5)

    assert steady(pool).hop_seconds == pytest.approx(0.5)


def test_a_short_call_precedes_longer_ones_of_its_service():
    pool = a_pool()
    for name in ("held", "other"):
        pool.submit(a_wide_call(name, "a"))
    pool.submit(*(a_wide_call(f"long{number}", "a") for number in range(4)))
    pool.submit(replace(a_wide_call("short", "a"), duration_seconds=0.1))
    (queue,) = pool.machine.state.queues.active.values()

    assert next(live.id for live in queue.in_order()) == "short"


def test_earlier_configurations_serve_calls_by_arrival():
    pool = Pool()
    pool.submit(*(a_wide_call(f"long{number}", "a") for number in range(4)))
    pool.submit(replace(a_wide_call("short", "a"), duration_seconds=0.1))
    (queue,) = pool.machine.state.queues.active.values()

    assert [live.id for live in queue.in_order()][-1] == "short"


def test_calls_of_unknown_duration_get_the_count_to_begin_with():
    pool = a_pool()
    unknown = [replace(a_wide_call(f"u{n}", NAMES[n]), duration_seconds=None) for n in range(4)]
    pool.submit(*unknown)

    assert set(pool.widths().values()) == {4}
    assert steady(pool).recent == []
    assert steady(pool).shadows == []


@given(waiting=st.integers(0, 1000), seconds=st.floats(0.0, 1e6), mean=st.floats(0.0, 1e6))
def test_the_lead_of_a_call_is_bounded_and_no_longer_call_has_a_longer_one(waiting, seconds, mean):
    found = shadow_pools.lead(waiting, seconds, mean)

    assert abs(found) <= shadow_pools.LEAD * waiting + 1e-6
    assert shadow_pools.lead(waiting, 2 * seconds + 1, mean) <= found + 1e-9
    assert shadow_pools.lead(waiting, mean, mean) == 0.0
