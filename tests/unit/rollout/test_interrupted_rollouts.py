"""Limits, lost workers, nodes and logs, withdrawals: each rollout continues from its log, or ends with a reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from domain.errors import CapacityError
from domain.rollouts import RolloutOutcome, StageLimits
from rollout.core.retries import PATIENCE_SECONDS
from rollout.ports import Seat, Superseded
from tests.unit.rollout.builders import limits
from tests.unit.rollout.conftest import handler_reached, kinds
from tests.unit.rollout.odd_handlers import reached


async def test_a1_5_i9_waiting_for_a_lease_consumes_no_limit(bench):
    bench.port.hold_leases()
    await bench.start()
    rollout = bench.submit("Tools", limits=limits(10.0, total=15.0))
    await bench.port.waits_for_lease(rollout.id)
    bench.time += 100_000.0

    bench.port.grant_leases()

    assert (await bench.result(rollout)).outcome is RolloutOutcome.COMPLETED


async def test_a1_5_i9_the_queue_of_an_inner_action_consumes_no_limit_and_its_execution_does(bench):
    async def program(members: Any) -> Any:
        bench.time += 1_000.0
        return "completed", {"exit_code": 0}

    bench.port.program = program
    bench.port.execution_seconds = 4.0
    await bench.start()

    assert (await bench.result(bench.submit("Tools", limits=limits(13.0)))).reward == 1.0
    late = await bench.result(bench.submit("Tools", limits=limits(11.0)))

    assert (late.outcome, late.reason) == ("timeout", "RUN took longer than 11 s")


async def test_an_action_gets_what_remains_of_its_stage_as_its_limit(bench):
    bench.port.execution_seconds = 4.0

    async def program(members: Any) -> Any:
        bench.time += 4.0
        return "completed", {"exit_code": 0}

    bench.port.program = program
    await bench.start()
    rollout = bench.submit("Tools", limits=limits(100.0))
    await bench.result(rollout)

    given = [action.members["timeout_seconds"] for action in bench.port.actions(rollout.id)]
    assert given == [100.0, 100.0, 96.0, 92.0, 100.0]


@pytest.mark.parametrize("handler", ["Hangs", "HangsInInit"])
async def test_a1_6_a_stage_that_takes_too_long_ends_and_its_environment_is_closed(bench, handler):
    await bench.start(now=asyncio.get_running_loop().time)
    stage = "INIT" if handler == "HangsInInit" else "RUN"
    short = StageLimits(**{f"{stage.lower()}_seconds": 0.05})
    rollout = bench.submit(handler, limits=short)

    result = await bench.result(rollout)

    assert (result.outcome, result.reward) == (RolloutOutcome.TIMEOUT, None)
    assert result.reason == f"{stage} took longer than 0.05 s"
    assert bench.port.trajectories(rollout.id) == []
    assert bench.port.leases(rollout.id) == []


async def test_actions_that_a_stage_leaves_running_are_cancelled(bench):
    async def program(members: Any) -> Any:
        await asyncio.Event().wait()

    bench.port.program = program
    await bench.start()
    rollout = bench.submit("LeavesActions")
    reached[f"{rollout.id} go"] = asyncio.Event()
    await handler_reached(rollout)
    await bench.port.has_action(rollout.id)
    reached[f"{rollout.id} go"].set()

    assert (await bench.result(rollout)).reward == 1.0
    [action] = bench.port.actions(rollout.id)
    assert action.end.result().outcome == "cancelled"


async def test_a_task_that_outlives_its_stage_calls_nothing_in_the_next_one(bench):
    await bench.start()
    rollout = bench.submit("AsksAfterItsEnd")

    result = await bench.result(rollout)

    assert result.reason.startswith("its stage has ended")
    assert bench.port.actions(rollout.id) == []


async def test_a1_8_a_rollout_that_is_assigned_twice_runs_once(bench):
    await bench.start()
    rollout = bench.submit("Hangs")
    await handler_reached(rollout)
    reached.clear()

    bench.port.assign(rollout.id)
    await handler_reached(rollout)
    bench.port.cancel_rollout(rollout.id)

    assert (await bench.result(rollout)).outcome is RolloutOutcome.CANCELLED


async def test_a1_9_a_backend_is_chosen_when_run_begins_and_waiting_for_one_is_not_counted(bench):
    await bench.start()
    rollout = bench.submit("Samples", llm="policy", limits=limits(10.0))
    await handler_reached(rollout)
    await bench.paused()
    bench.time += 1_000.0
    bench.port.seats.append(Seat("policy", "b2", "http://b2", 7))

    result = await bench.result(rollout)

    assert result.reason == "{'backends': ['b2'], 'seat': None}"


async def test_the_seat_of_the_lease_reaches_the_handler_of_run(bench):
    bench.port.seats.append(Seat("policy", "b1", "http://b1", 1))
    await bench.start()

    result = await bench.result(bench.submit("Samples", llm="policy"))

    assert result.reason == "{'backends': ['b1'], 'seat': 'b1'}"


async def test_a1_10_rollouts_that_wait_for_a_lease_have_no_process(bench):
    bench.port.hold_leases()
    worker = await bench.start()
    rollouts = [bench.submit() for _ in range(20)]
    await bench.port.waits_for_lease(rollouts[-1].id)

    assert worker.rollouts == 20
    assert worker.processes == 0


@pytest.mark.parametrize("outcome", ["timeout", "oom_killed", "cancelled", "expired"])
async def test_ends_of_actions_that_are_data_reach_the_handler(bench, outcome):
    async def program(members: Any) -> Any:
        return outcome, {"exit_code": 1}

    bench.port.program = program
    await bench.start()

    assert (await bench.result(bench.submit("Tools"))).reward == 0.0


async def test_i3_a_tool_that_ends_unknown_ends_the_rollout_infra_failed(bench):
    async def program(members: Any) -> Any:
        is_run = members["trajectory"].endswith("-run")
        return ("unknown", {}) if is_run else ("completed", {"exit_code": 0})

    bench.port.program = program
    await bench.start()
    rollout = bench.submit("Tools")

    result = await bench.result(rollout)

    assert (result.outcome, result.reward) == (RolloutOutcome.INFRA_FAILED, None)
    assert result.reason == "action act_2 ended unknown: it may have run"
    assert len(bench.port.actions(rollout.id)) == 2


async def test_what_is_unknown_in_init_costs_its_environment_alone(bench):
    async def program(members: Any) -> Any:
        first = members["trajectory"] == rollout.id
        return ("unknown", {}) if first else ("completed", {"exit_code": 0})

    bench.port.program = program
    await bench.start()
    rollout = bench.submit("Tools")

    result = await bench.result(rollout)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, 1.0)
    assert rollout.id in bench.port.finished_trajectories


async def test_what_runs_again_sees_nothing_of_a_lost_environment(bench):
    """The handler continues in the same process: turns that it had stored are not those of this RUN."""
    ends = iter(["completed", "completed", "infra_failed"])

    async def program(members: Any) -> Any:
        return next(ends, "completed"), {"exit_code": 0}

    bench.port.program = program
    await bench.start()
    rollout = bench.submit("Tools")

    result = await bench.result(rollout)

    assert (result.reward, result.turns) == (1.0, 3)
    assert kinds(bench.port.log(rollout.id)).count("turn") == 2 + 3


async def test_a_lost_environment_means_init_again(bench):
    await bench.start()
    rollout = bench.submit("WaitsForAnAction")
    failures = iter(["infra_failed", "infra_failed", "completed"])

    async def program(members: Any) -> Any:
        return next(failures), {"exit_code": 0}

    bench.port.program = program
    result = await bench.result(rollout)

    assert (result.outcome, result.reward) == ("completed", 1.0)
    trajectories = [action.members["trajectory"] for action in bench.port.actions(rollout.id)]
    assert trajectories == ["rol_1-run", "rol_1-again1-run", "rol_1-again2-run"]
    assert kinds(bench.port.log(rollout.id)).count("prepared") == 3
    assert bench.port.finished_trajectories[:3] == ["rol_1-run", "rol_1", "rol_1-again1-run"]


async def test_an_environment_that_is_lost_a_third_time_ends_the_rollout(bench):
    async def program(members: Any) -> Any:
        return "infra_failed", {}

    bench.port.program = program
    await bench.start()

    result = await bench.result(bench.submit("WaitsForAnAction"))

    assert result.outcome is RolloutOutcome.INFRA_FAILED
    assert result.reason.startswith("its environment was lost 3 times, at last: action act_3")


async def test_a_node_that_is_lost_between_two_calls_means_init_again(bench):
    await bench.start()
    rollout = bench.submit("FilesAndStreams")
    put = bench.port.put

    async def lost_once(*arguments: Any) -> None:
        bench.port.put = put
        bench.port.lose_environments(rollout.id)
        await put(*arguments)

    bench.port.put = lost_once

    assert (await bench.result(rollout)).reward == 1.0
    assert kinds(bench.port.log(rollout.id)).count("lost") == 1


async def test_a_worker_that_is_lost_has_a_successor_that_continues_with_the_same_action(bench):
    going = asyncio.Event()

    async def program(members: Any) -> Any:
        if members["trajectory"].endswith("-run"):
            await going.wait()
        return "completed", {"exit_code": 0}

    bench.port.program = program
    await bench.start()
    rollout = bench.submit("Tools")
    await bench.port.has_action(rollout.id, 2)

    bench.port.lose_worker()
    await bench.start()
    await bench.port.reads(rollout.id, 2)
    going.set()

    assert (await bench.result(rollout)).reward == 1.0
    assert len(bench.port.actions(rollout.id)) == 5
    assert kinds(bench.port.log(rollout.id)).count("turn") == 3


async def test_a_parked_rollout_keeps_its_environment_and_continues_when_it_is_resumed(bench):
    going = asyncio.Event()

    async def program(members: Any) -> Any:
        if members["trajectory"].endswith("-run"):
            await going.wait()
        return "completed", {"exit_code": 0}

    bench.port.program = program
    worker = await bench.start()
    rollout = bench.submit("WaitsForAnAction")
    await bench.port.has_action(rollout.id)
    bench.port.park_rollout(rollout.id)
    await bench.until(lambda: worker.rollouts == 0)
    assert bench.port.trajectories(rollout.id) == ["rol_1", "rol_1-run"]
    assert bench.port.leases(rollout.id) == []

    bench.port.assign(rollout.id)
    going.set()

    assert (await bench.result(rollout)).reward == 1.0
    assert len(bench.port.actions(rollout.id)) == 1


async def test_a_handler_that_differs_from_its_log_fails(bench):
    async def program(members: Any) -> Any:
        await asyncio.Event().wait()

    bench.port.program = program
    await bench.start()
    rollout = bench.submit("Diverges")
    await bench.port.has_action(rollout.id)

    bench.port.lose_worker()
    await bench.start()
    result = await bench.result(rollout)

    assert result.outcome is RolloutOutcome.FAILED
    assert result.reason.startswith("call 0 of RUN differs from the one in the log")
    assert len(bench.port.actions(rollout.id)) == 1


async def test_a_full_log_is_waited_for_without_counting(bench):
    await bench.start()
    append, refused = bench.port.append, iter(range(20))

    async def full(*arguments: Any) -> None:
        if next(refused, None) is not None:
            raise CapacityError("the logs are full", retry_after_seconds=5.0)
        await append(*arguments)

    bench.port.append = full

    result = await bench.result(bench.submit("Tools", limits=limits(10.0)))

    assert result.outcome is RolloutOutcome.COMPLETED
    assert bench.time >= 100.0


async def test_a_log_that_stays_full_ends_the_rollout_infra_failed(bench):
    await bench.start()

    async def full(*arguments: Any) -> None:
        raise CapacityError("the logs are full", retry_after_seconds=60.0)

    bench.port.append = full

    result = await bench.result(bench.submit())

    assert result.outcome is RolloutOutcome.INFRA_FAILED
    assert "the logs are full" in result.reason
    assert bench.time >= PATIENCE_SECONDS


async def test_the_end_is_reported_until_it_is_accepted(bench):
    await bench.start()
    finished, failures = bench.port.finished, iter([OSError("reset"), CapacityError("full")])

    async def unreliable(*arguments: Any) -> None:
        if (error := next(failures, None)) is not None:
            raise error
        await finished(*arguments)

    bench.port.finished = unreliable

    assert (await bench.result(bench.submit())).reward == 1.0


async def test_a_successor_of_a_worker_that_had_stored_the_result_only_reports_it(bench):
    await bench.start()
    stored = asyncio.Event()

    async def lost(*_: Any) -> None:
        stored.set()
        await asyncio.Event().wait()

    finished, bench.port.finished = bench.port.finished, lost
    rollout = bench.submit("Tools")
    async with asyncio.timeout(60):
        await stored.wait()
    bench.port.finished = finished
    leases = bench.port.counts["leases of run"]
    bench.port.lose_worker()
    await bench.start()

    assert (await bench.result(rollout)).reward == 1.0
    assert bench.port.counts["leases of run"] == leases
    assert kinds(bench.port.log(rollout.id)).count("result") == 1


async def test_an_error_of_the_port_that_is_a_bug_ends_one_rollout_alone(bench):
    await bench.start()
    fork = bench.port.fork

    async def broken(rollout: Any, *arguments: Any) -> None:
        if rollout.id == "rol_1":
            raise RuntimeError("bug")
        await fork(rollout, *arguments)

    bench.port.fork = broken
    results = [await bench.result(bench.submit("Tools")) for _ in range(2)]

    assert [result.outcome for result in results] == ["infra_failed", "completed"]
    assert results[0].reason == "RuntimeError: bug"


async def test_a_rollout_that_another_worker_has_is_left_alone(bench):
    worker = await bench.start()

    async def superseded(*_: Any) -> None:
        raise Superseded

    bench.port.lease = superseded
    rollout = bench.submit("Tools")
    await bench.until(lambda: worker.rollouts == 0)

    assert kinds(bench.port.log(rollout.id)) == ["request"]


async def test_a_worker_that_stops_leaves_logs_leases_and_environments_to_its_successor(bench):
    worker = await bench.start()
    rollout = bench.submit("Hangs")
    await handler_reached(rollout)

    await bench.stop(worker)

    assert bench.port.trajectories(rollout.id) == ["rol_1", "rol_1-run"]
    assert len(bench.port.leases(rollout.id)) == 1
    assert kinds(bench.port.log(rollout.id)) == ["request", "prepared"]
