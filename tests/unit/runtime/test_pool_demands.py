"""The loop's answer on what waits and runs in a pool."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from contract.pool_demands import MOST_BARS, MOST_ROWS, PoolDemand
from domain.codec import decode_command, encode
from domain.events import PoolDemandsQueried
from domain.ports import ChunkedLedger
from scheduler.runtime.loop.pool_demands import pool_demands
from tests.builders import GIB, a_config, a_node, an_action
from tests.scenario import Scenario
from tests.unit.core.test_services_on_chunks import a_call, a_gpu_node, services


def demand(scenario: Scenario) -> PoolDemand:
    return pool_demands(scenario.machine.state, ["default"])["default"]


def test_equal_actions_are_one_row():
    scenario = Scenario(a_node("g-1", cpus=2))
    scenario.submit(*(an_action(f"a{n}", duration_seconds=10.0) for n in range(6)))
    (row,) = demand(scenario).rows
    assert (row.needs, row.waiting, row.running, row.bound) == ({"cpu": 1000}, 4, 2, False)
    assert row.seconds == pytest.approx(10.0)


def test_what_runs_says_what_is_left_and_how_many_end_each_second():
    scenario = Scenario(a_node("g-1", cpus=4))
    scenario.submit(*(an_action(f"a{n}", duration_seconds=8.0) for n in range(4)))
    for name in ("a0", "a1", "a2", "a3"):
        scenario.start(name)
    scenario.advance(2.0)
    (row,) = demand(scenario).rows
    assert row.residual_seconds == pytest.approx(6.0)
    assert row.ending_per_second == pytest.approx(4 / 8.0)


def test_durations_that_differ_by_more_than_a_factor_of_two_are_rows_of_their_own():
    scenario = Scenario(a_node("g-1", cpus=1))
    scenario.submit(
        *(
            an_action(f"a{n}", duration_seconds=seconds)
            for n, seconds in enumerate((1.0, 5.0, 6.0, 90.0))
        )
    )
    found = demand(scenario).rows
    assert [round(row.seconds, 1) for row in found] == [90.0, 5.5, 1.0]


def test_actions_that_wait_for_the_node_of_their_environment_are_bound():
    scenario = Scenario(a_node("g-1", cpus=1, memory_bytes=8 * GIB))
    scenario.submit(an_action("a", trajectory="t", memory_bytes=GIB))
    scenario.finish("a")
    scenario.submit(an_action("b", trajectory="u", memory_bytes=GIB))
    scenario.submit(
        an_action("c", trajectory="t", memory_bytes=GIB),
        an_action("d", trajectory="v", memory_bytes=GIB),
    )
    found = demand(scenario)
    waiting = {(row.bound, row.memory_bytes) for row in found.rows if row.waiting}
    assert waiting == {(True, 0), (False, GIB)}
    assert (found.memory_held, found.trajectories) == (2 * GIB, 2)


def test_paused_tasks_and_other_pools_ask_for_no_nodes():
    scenario = Scenario(a_node("g-1", cpus=1))
    scenario.submit(an_action("a"), an_action("b"))
    scenario.pause()
    assert sum(row.waiting for row in demand(scenario).rows) == 0
    assert pool_demands(scenario.machine.state, ["other"]) == {"other": PoolDemand([], {})}


def test_actions_that_wait_for_a_limit_of_the_cluster_ask_for_no_nodes():
    config = a_config(apis={"search": 1})
    scenario = Scenario(a_node("g-1", cpus=8), config=config)
    scenario.submit(*(an_action(f"a{n}", cost={"cpu": 1, "api:search": 1}) for n in range(3)))
    rows = demand(scenario).rows
    assert [(row.running, row.waiting) for row in rows] == [(1, 0)]


def test_capacity_is_that_of_nodes_that_take_work_by_the_beginning_of_their_names():
    nodes = [a_node(name, cpus=2) for name in ("g-1", "g-2", "big-7", "host")]
    scenario = Scenario(*nodes)
    scenario.configure(a_config(revision=2, drained_nodes=frozenset({"g-2"})))
    found = {name: have["cpu"] for name, have in demand(scenario).capacity.items()}
    assert found == {"g": 2000, "big": 2000, "": 2000}


def test_calls_of_services_ask_for_whole_chunks_on_any_node():
    scenario = Scenario(a_gpu_node(4), config=services("s"))
    calls = [replace(a_call(f"c{n}", "s", (3,)), trajectory=f"t{n}") for n in range(3)]
    scenario.submit(*calls)
    rows = demand(scenario).rows
    assert {(each.needs["gpu"], each.bound) for each in rows} == {(4000, False)}
    assert [sum(each.running for each in rows), sum(each.waiting for each in rows)] == [1, 2]


def test_what_is_free_is_a_histogram_of_nodes():
    scenario = Scenario(*(a_node(f"g-{n}", cpus=8) for n in range(1, 5)), a_node("big-1", cpus=32))
    scenario.submit(an_action("a", cost={"cpu": 32}), *(an_action(f"b{n}", cost={"cpu": 6}) for n in range(2)))  # fmt: skip
    found = {(bar.begins, bar.free["cpu"]): bar.count for bar in demand(scenario).nodes}
    assert found == {("g", 2000): 2, ("g", 8000): 2, ("big", 0): 1}


def test_free_gpus_say_which_chunks_they_are():
    scenario = Scenario(a_node("g-1", cpus=4, gpu=4))
    scenario.submit(*(an_action(f"a{n}", cost={"gpu": 1}) for n in range(4)))
    scenario.start("a0")
    scenario.start("a2")
    scenario.finish("a0")
    scenario.finish("a2")
    (bar,) = demand(scenario).nodes
    assert bar.free["gpu"] == 2000
    assert bar.chunks in {(2, 0, 0, 0), (0, 1, 0, 0)}
    ledger = scenario.machine.state.supply.node_ledger("gpu", "g-1")
    assert isinstance(ledger, ChunkedLedger)
    assert bar.chunks == ledger.counts


def test_many_nodes_of_many_kinds_are_a_small_answer():
    nodes = [a_node(f"g{n % 5}-{n}", cpus=4 * (1 + n % 8), memory_bytes=GIB * 16 + n) for n in range(120)]  # fmt: skip
    found = demand(Scenario(*nodes)).nodes
    assert sum(bar.count for bar in found) == 120
    assert len({bar.begins for bar in found}) == 5
    # One for each shape of a group, as the mean of its nodes.
    assert len(found) <= MOST_BARS + 5 * 8
    assert sum(bar.count * bar.free["cpu"] for bar in found) == sum(n.resources["cpu"].capacity for n in nodes)  # fmt: skip


def test_a_long_queue_is_one_short_answer():
    scenario = Scenario(a_node("g-1", cpus=1))
    scenario.submit(*(an_action(f"a{n}", duration_seconds=1.0 + n % 3) for n in range(3_000)))
    found = demand(scenario)
    assert sum(row.waiting for row in found.rows) == pytest.approx(2_999, abs=2)
    mean = sum(row.waiting * row.seconds for row in found.rows) / 2_999
    assert mean == pytest.approx(2.0, rel=0.2)
    assert len(encode(found)) < 2_000


def test_rows_beyond_the_bound_are_one_row_of_means():
    scenario = Scenario(a_node("g-1", cpus=100))
    scenario.submit(an_action("first", cost={"cpu": 100}))
    scenario.submit(
        *(
            an_action(f"a{n}-{k}", cost={"cpu": n + 1}, duration_seconds=4.0**k)
            for n in range(50)
            for k in range(2)
        )
    )
    rows = demand(scenario).rows
    assert len(rows) == MOST_ROWS
    assert sum(row.waiting for row in rows) == 100
    assert rows[-1].waiting > 1


def test_the_question_crosses_the_inbox():
    question = PoolDemandsQueried(request_id="r", reply_to="c", pools=("default",))
    assert decode_command(encode(question)) == question
    answer = {"default": PoolDemand([], {"g": {"cpu": 1}})}
    assert msgspec.msgpack.decode(encode(answer), type=dict[str, PoolDemand]) == answer
