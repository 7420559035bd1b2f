"""A worker of our own is started once, joins when it answers, and leaves before its engine ends."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from contract.fleet_status import FleetWorkerStatus, WorkerEngineStatus
from domain.action import ActionState
from domain.events import ActionCancelRequested, ActionSubmitted
from domain.fleet_engines import PORTS, WorkerProcess
from domain.fleet_events import FleetWorkersChanged
from domain.fleets import FleetEngine, FleetSpec, FleetWorker
from domain.ids import ActionId
from managers.llm.engine_commands import engine_command
from scheduler.runtime.capacity import FleetCapacity
from scheduler.runtime.fleets.wanted_workers import next_port, wanted_workers, why_never
from scheduler.runtime.fleets.worker_steps import Situation, StepTimes, WorkerMemory, next_step

SPEC = FleetSpec(FleetEngine.VLLM, gpus=4, degrees=(2, 4), slots=8)
WANTED = wanted_workers({"m": FleetCapacity(FleetEngine.VLLM, own=SPEC)}, lambda *_: (2, 2))
KEY = ("m", "own-2x-1")
WORKER = WANTED[KEY]
URL = "http://127.0.0.1:20007"
TIMES = StepTimes()


def an_engine(**facts: Any) -> WorkerEngineStatus:
    process = WorkerProcess("m", "own-2x-1", 20007, WORKER.declared)
    status = WorkerEngineStatus("act_1", "default", process, 2, ActionState.RUNNING, "n1", (0, 1))
    return replace(status, **facts)


def registered(running: int = 0, **facts: Any) -> FleetWorkerStatus:
    worker = FleetWorker(number=1, name="own-2x-1", url=URL, slots=16, degree=2, own=True)
    return FleetWorkerStatus(replace(worker, **facts), running)


def seen(**facts: Any) -> Situation:
    given = {"wanted": WORKER, "engine": None, "worker": None, "url": URL, "port": 20007}
    return Situation(KEY, **given | facts)


def step(situation: Situation, memory: WorkerMemory | None = None, now: float = 0.0) -> list[Any]:
    """Return the events of a step, and the state that it reports."""
    found = next_step(situation, memory or WorkerMemory(), now, TIMES)
    return [*found.events, "" if found.report is None else found.report.state]


def test_workers_are_named_by_their_degree_and_have_the_flags_of_their_engine():
    assert [each.name for each in WANTED.values()] == ["own-2x-1", "own-2x-2"]
    assert (WORKER.degree, WORKER.slots) == (2, 16)
    words = " ".join(WORKER.command)
    assert words.startswith("vllm serve m --host {host} --port {port}")
    assert "--scheduling-policy priority" in words
    assert "--max-num-seqs 16" in words
    sglang = " ".join(engine_command("m", FleetSpec(FleetEngine.SGLANG, source="/models/m"), 4))
    assert "--model-path /models/m" in sglang
    assert "--priority-scheduling-preemption-threshold 0 --retraction-policy priority" in sglang


def test_a_worker_without_an_engine_gets_one_and_no_second_one():
    memory = WorkerMemory()
    submitted, state = step(seen(), memory)
    assert isinstance(submitted, ActionSubmitted)
    assert submitted.action.cost == {"gpu": (2000,)}
    assert submitted.action.engine == WorkerProcess("m", "own-2x-1", 20007, WORKER.declared)
    assert state == "waits"

    queued = an_engine(state=ActionState.QUEUED, waits="short of 2 gpu")
    found = next_step(seen(engine=queued), memory, 1.0, TIMES)
    assert (found.events, found.report and found.report.detail) == ([], "short of 2 gpu")


def test_it_joins_when_it_answers_under_another_number_than_its_former_engine_had():
    assert step(seen(engine=an_engine(), failing="ConnectError")) == ["starts"]
    (joins, _) = step(seen(engine=an_engine()))
    assert isinstance(joins, FleetWorkersChanged)
    assert (joins.removed, joins.joined[0].url, joins.joined[0].own) == ((), URL, True)

    former = registered(url="http://127.0.0.1:20006", unhealthy="its engine has ended")
    (joins, _) = step(seen(engine=an_engine(), worker=former))
    assert (joins.removed, len(joins.joined)) == (("own-2x-1",), 1)
    assert step(seen(engine=an_engine(), worker=registered())) == ["serves"]


def test_a_worker_that_leaves_is_drained_then_removed_then_ended():
    memory, gone = WorkerMemory(), {"wanted": None, "engine": an_engine()}
    (drained, state) = step(seen(**gone, worker=registered(running=1)), memory)
    assert (drained.facts[0].drained, state) == (True, "drains")
    assert step(seen(**gone, worker=registered(running=1, drained=True)), memory) == ["drains"]
    (removed, _) = step(seen(**gone, worker=registered(drained=True)), memory)
    assert removed.removed == ("own-2x-1",)
    (cancel, state) = step(seen(**gone), memory)
    assert isinstance(cancel, ActionCancelRequested)
    assert (cancel.action_id, state) == (ActionId("act_1"), "ends")
    assert step(seen(**{**gone, "engine": an_engine(ending=True)}), memory) == ["ends"]
    assert step(seen(wanted=None), memory) == [""]


def test_generations_of_a_worker_that_leaves_are_waited_for_up_to_a_limit():
    memory, late = WorkerMemory(), TIMES.drain_seconds + 1
    busy = seen(wanted=None, engine=an_engine(), worker=registered(running=1, drained=True))
    assert step(busy, memory) == ["drains"]
    assert step(busy, memory, late)[0].removed == ("own-2x-1",)
    deleted = seen(wanted=None, engine=an_engine(), left_over=1)
    memory = WorkerMemory()
    assert step(deleted, memory) == ["drains"]
    assert isinstance(step(deleted, memory, late)[0], ActionCancelRequested)


def test_a_worker_that_is_declared_otherwise_is_replaced_and_one_declared_again_is_kept():
    other = replace(an_engine(), process=WorkerProcess("m", "own-2x-1", 20007, "another"))
    memory = WorkerMemory()
    (drained, _) = step(seen(engine=other, worker=registered()), memory)
    assert drained.facts[0].drained is True
    (again, state) = step(seen(engine=an_engine(), worker=registered(drained=True)), memory)
    assert (again.facts[0].drained, state) == (False, "serves")
    # An operator has drained this one, and not its keeper.
    assert step(seen(engine=an_engine(), worker=registered(drained=True))) == ["serves"]


def test_an_engine_that_ended_makes_its_worker_unhealthy_and_is_started_after_growing_pauses():
    memory = WorkerMemory("act_1", WORKER.declared, started=True)
    (unhealthy, state) = step(seen(worker=registered()), memory, 100.0)
    assert (unhealthy.facts[0].unhealthy, state) == ("its engine has ended", "ended")
    assert memory.again_at == 101.0
    changed = replace(WORKER, env={"A": "b"})
    assert isinstance(step(seen(wanted=changed), memory, 100.5)[0], ActionSubmitted)
    memory.failures, pauses = 1, []
    for _ in range(8):
        memory.ended(0.0, TIMES)
        pauses.append(memory.again_at)
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    memory.served_at = 0.0
    memory.ended(TIMES.well_seconds, TIMES)
    assert memory.again_at == TIMES.well_seconds + 1.0


def test_a_worker_whose_next_engine_waits_or_is_on_another_node_leaves_meanwhile():
    dead = registered(unhealthy="its engine has ended", url="http://127.0.0.1:20006")
    queued = an_engine(state=ActionState.QUEUED)
    assert step(seen(engine=queued, worker=dead))[0].removed == ("own-2x-1",)
    elsewhere = seen(engine=an_engine(node="n2"), worker=dead, failing="ConnectError")
    assert step(elsewhere, WorkerMemory(node="n1"))[0].removed == ("own-2x-1",)
    assert step(elsewhere, WorkerMemory(node="n2")) == ["starts"]


def test_an_engine_that_does_not_answer_in_time_is_reported_with_the_setting():
    late = an_engine(age_seconds=WORKER.start_seconds + 5)
    found = next_step(seen(engine=late, failing="ConnectError"), WorkerMemory(), 0.0, TIMES)
    assert found.report is not None
    assert "not answered for 605 s" in found.report.detail
    assert "start_seconds: ConnectError" in found.report.detail


@pytest.mark.parametrize(
    ("pools", "why"),
    [
        ({"default": [{"gpu": 2000}]}, ""),
        ({"default": [{"gpu": 1000}, {"cpu": 4000}]}, "none of pool 'default' has more than 1"),
        ({"default": []}, "no node of pool 'default' has joined"),
        ({}, "there is no pool 'default'"),
    ],
)
def test_a_worker_that_can_never_be_granted_is_not_submitted_and_says_why(
    pools: dict[str, list[dict[str, int]]], why: str
):
    never = why_never(WORKER, pools)
    assert why in never if why else not never
    if why:
        assert step(seen(never=never)) == ["waits"]


def test_a_start_waits_for_the_gpus_of_workers_of_its_fleet_that_leave():
    found = next_step(seen(room=False), WorkerMemory(), 0.0, TIMES)
    assert found.events == []
    assert found.report is not None
    assert "have not given their GPUs back" in found.report.detail


def test_each_start_has_a_port_of_its_own():
    first = next_port(KEY, 0, set())
    assert first in PORTS
    assert next_port(KEY, 0, {first}) != first != next_port(KEY, 1, set())
