"""A worker drives rollouts to one well-formed result each, whatever handlers, leases and actions do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from domain.rollouts import RolloutOutcome, Stage
from rollout.worker.frames import MAX_FRAME_BYTES
from scheduler.runtime.rollouts.environments import MAX_FILE_BYTES
from tests.unit.rollout.conftest import handler_reached, kinds


async def test_a_rollout_goes_through_its_stages_and_leaves_nothing(bench):
    await bench.start()
    rollout = bench.submit("Tools")

    result = await bench.result(rollout)

    assert (result.outcome, result.reward, result.reason) == ("completed", 1.0, "tests")
    assert (result.turns, result.prompt_tokens, result.response_tokens) == (3, 6, 3)
    assert result.weights_versions == (0, 2)
    assert [times.stage for times in result.times] == list(Stage)
    log = bench.port.log(rollout.id)
    turn = ["turn", "call", "observation"]
    assert kinds(log) == [
        "request", "call", "observation", "prepared", *turn * 3, "artefact", "stage",
        "call", "observation", "result",
    ]  # fmt: skip
    assert log[4].arrays == {"context": bytes(8), "ids": bytes(4)}
    assert log[-1].header["detail"] == {"calls": 5}
    assert bench.port.leases(rollout.id) == []
    assert bench.port.trajectories(rollout.id) == []


async def test_run_and_eval_are_forks_and_run_is_closed_before_eval_queues(bench):
    await bench.start()
    closed: list[list[str]] = []
    lease = bench.port.lease

    async def watched(*arguments: Any) -> Any:
        closed.append(list(bench.port.finished_trajectories))
        return await lease(*arguments)

    bench.port.lease = watched
    rollout = bench.submit("Tools")
    await bench.result(rollout)

    assert closed == [[], [], ["rol_1-run"]]
    trajectories = [action.members["trajectory"] for action in bench.port.actions(rollout.id)]
    assert trajectories == ["rol_1", *["rol_1-run"] * 3, "rol_1-eval"]


async def test_eval_without_calls_opens_no_environment(bench):
    await bench.start()
    opened: list[str] = []
    fork = bench.port.fork

    async def watched(rollout: Any, source: str, names: list[str]) -> None:
        opened.extend(names)
        await fork(rollout, source, names)

    bench.port.fork = watched
    await bench.result(bench.submit("Plain"))

    assert opened == ["rol_1-run"]


async def test_a_rollout_without_environment_opens_none(bench):
    await bench.start()
    rollout = bench.submit("noop", request={"environment": None, "options": {"reward": 0.25}})

    assert (await bench.result(rollout)).reward == 0.25
    assert bench.port.finished_trajectories == []


async def test_files_and_streams_reach_the_environment_of_the_stage(bench):
    await bench.start()
    rollout = bench.submit("FilesAndStreams")

    assert (await bench.result(rollout)).reward == 1.0
    stage = next(each for each in bench.port.log(rollout.id) if each.kind == "stage")
    assert stage.header["value"] == {"refused": "/missing is no file of rol_1-run"}


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        ("RaisesInInit", "INIT raised LookupError: no image"),
        ("RaisesInRun", "RUN raised ValueError: no tool"),
        ("RaisesInEval", "EVAL raised ZeroDivisionError"),
        ("RaisesWhatIsNoText", "RUN raised OSError: no file ?"),
        ("Exits", "RUN raised SystemExit: 3"),
        ("CancelsItself", "RUN raised CancelledError"),
        ("AnswersNan", "EVAL raised NonsenseAnswer: EVAL answered reward nan: give a finite"),
        ("AnswersAnObject", "RUN raised NonsenseAnswer: its answer cannot be stored: a object"),
        ("AnswersText", "INIT raised NonsenseAnswer: INIT answered a str: return a dict"),
        ("AnswersTooMuch", "RUN raised NonsenseAnswer: its answer has 94"),
    ],
)  # fmt: skip
async def test_a1_1_a_handler_that_raises_or_answers_nonsense_fails_with_the_type_of_its_error(
    bench, handler, reason
):
    await bench.start()
    rollout = bench.submit(handler)

    result = await bench.result(rollout)

    assert (result.outcome, result.reward) == (RolloutOutcome.FAILED, None)
    assert result.reason.startswith(reason)
    error = bench.port.log(rollout.id)[-1].header["error"]
    assert error["type"] == reason.split()[2].rstrip(":")
    assert "traceback" in error or handler.startswith("Answers")


async def test_an_exception_callback_adds_details_and_no_reward(bench):
    await bench.start()
    rollout = bench.submit("RaisesInInit")

    assert (await bench.result(rollout)).reward is None
    assert bench.port.log(rollout.id)[-1].header["detail"] == {"type": "LookupError", "reward": 5.0}


async def test_a_final_result_that_is_no_dict_adds_nothing(bench):
    await bench.start()
    rollout = bench.submit("OddFinalResult")

    assert (await bench.result(rollout)).reward == 1.0
    assert bench.port.log(rollout.id)[-1].header["detail"] == {}


async def test_a_handler_that_is_not_installed_is_no_fault_of_the_agent(bench):
    await bench.start()

    result = await bench.result(bench.submit("Missing"))

    assert result.outcome is RolloutOutcome.INFRA_FAILED
    assert "no handler 'Missing' is installed" in result.reason


async def test_a_request_that_tangram_refuses_is_an_error_of_the_handlers_call(bench):
    await bench.start()

    result = await bench.result(bench.submit("AsksNonsense"))

    assert (result.reward, result.reason) == (0.5, "give exec or call")


async def test_a_turn_that_could_not_be_read_is_refused_before_it_is_stored(bench):
    await bench.start()
    rollout = bench.submit("StoresNoTurns")

    result = await bench.result(rollout)

    assert (result.reward, result.turns) == (1.0, 1), result
    assert len(result.reason.split("; ")) == 4
    assert "turn 0, which is not stored" in result.reason
    assert kinds(bench.port.log(rollout.id)).count("turn") == 1


async def test_a1_2_a_cancelled_rollout_is_cancelled_and_its_handler_stops(bench):
    worker = await bench.start()
    rollout = bench.submit("Hangs")
    await handler_reached(rollout)

    bench.port.cancel_rollout(rollout.id)

    assert (await bench.result(rollout)).outcome is RolloutOutcome.CANCELLED
    assert (await bench.result(bench.submit())).reward == 1.0
    await bench.until(lambda: worker.rollouts == 0)
    assert "result" not in kinds(bench.port.log(rollout.id))


async def test_a1_2_a_withdrawal_of_an_unknown_rollout_changes_nothing(bench):
    await bench.start()
    ended = bench.submit()
    await bench.result(ended)

    bench.port.withdraw(ended.id, attempt=1)
    bench.port.withdraw("rol_unknown", attempt=1)

    assert (await bench.result(bench.submit())).reward == 1.0


async def test_a1_3_replies_reach_the_calls_that_they_belong_to(bench):
    gate = asyncio.Event()
    held: list[int] = []

    async def program(members: Any) -> Any:
        number = members["metadata"]["n"]
        if number % 2 == 0:
            held.append(number)
            await gate.wait()
        elif len(held) == 10:
            gate.set()
        return "completed", {"n": number}

    bench.port.program = program
    await bench.start()

    rollouts = [bench.submit("Parallel") for _ in range(1)]

    assert [(await bench.result(each)).reward for each in rollouts] == [1.0]


async def test_a1_4_futures_are_touched_by_their_own_thread_alone(bench):
    """A loop in debug mode raises when another thread calls it."""
    asyncio.get_running_loop().set_debug(True)
    await bench.start()

    results = [await bench.result(bench.submit("Tools")) for _ in range(3)]

    assert [result.reward for result in results] == [1.0] * 3


async def test_an_answer_that_is_too_long_for_a_process_fails_the_call_alone(bench, monkeypatch):
    monkeypatch.setattr("rollout.worker.frames.MAX_FRAME_BYTES", 50_000)
    worker = await bench.start()
    gate = asyncio.Event()

    async def program(members: Any) -> Any:
        await gate.wait()
        return "completed", {"exit_code": 0}

    bench.port.program = program
    other = bench.submit("WaitsForAnAction")
    await bench.port.has_action(other.id)

    async def too_much(*_: Any) -> bytes:
        return bytes(100_000)

    bench.port.get = too_much
    result = await bench.result(bench.submit("FilesAndStreams"))
    asked = await bench.result(bench.submit("WritesTooMuch"))
    gate.set()

    assert result.outcome is asked.outcome is RolloutOutcome.FAILED
    assert "RUN raised CallRefused: a message of 1000" in result.reason
    assert "RUN raised CallRefused: a message of 1000" in asked.reason
    assert worker.processes == 1
    assert (await bench.result(other)).reward == 1.0


def test_the_largest_file_fits_into_a_message_to_a_handler():
    assert MAX_FILE_BYTES + 1024 * 1024 <= MAX_FRAME_BYTES


async def test_noop_takes_the_turns_and_the_rewards_that_its_instance_declares(bench):
    await bench.start()
    declared = {"instance": {"turns": 3, "reward": [0.25, None]}, "environment": None}
    first, second = (bench.submit("noop", sample=sample, request=declared) for sample in (0, 1))

    found = [await bench.result(each) for each in (first, second)]

    assert [(each.outcome, each.reward, each.turns) for each in found] == [
        ("completed", 0.25, 3),
        ("completed", None, 3),
    ]
    assert kinds(bench.port.log(first.id)).count("turn") == 3


async def test_a_history_longer_than_a_message_is_sent_in_parts(bench, monkeypatch):
    """A long rollout would end with its first crash."""
    monkeypatch.setattr("rollout.worker.frames.MAX_FRAME_BYTES", 60_000)
    monkeypatch.setattr("rollout.worker.frames.PART_BYTES", 30_000)
    first = await bench.start()
    rollout = bench.submit("StoresMuch")
    await handler_reached(rollout)
    await bench.stop(first)
    bench.port.lose_worker()
    await bench.start()

    result = await bench.result(rollout)

    assert (result.outcome, result.reward) == (RolloutOutcome.COMPLETED, 10.0)
