"""Agents with tools on a worker: what the model sees, what survives a crash, and how a run ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from domain.errors import InvalidRequest
from domain.rollouts import Rollout, RolloutOutcome
from rollout.testing.local_handlers import local_pool
from rollout.worker.worker import RolloutWorker
from tests.chat_models import tokenizer
from tests.scripted_backends import FaultyBackend, scripted_model, seat_of
from tests.unit.rollout.agent_handlers import BACKENDS, ToolAgent
from tests.unit.rollout.conftest import Bench

HANDLERS = {"agent": f"{ToolAgent.__module__}:{ToolAgent.__name__}"}
SAMPLING = {"custom_tokenizer": "tokenizer", "seed": 3, "max_tokens": 256}


def call(name: str, **arguments: Any) -> str:
    """Return an answer that calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


FINISH = call("finish", message="mended")


class Agents:
    """Rollouts of an agent whose model follows a script."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.backend = FaultyBackend("vllm")
        BACKENDS.by_host = {"b1": self.backend}
        bench.port.seats = [seat_of("b1")]

    async def start(self, *answers: str) -> RolloutWorker:
        """Start a worker; the model gives these answers."""
        self.backend.served.model = scripted_model(*answers)
        bench = self.bench
        pool = local_pool()
        worker = RolloutWorker(bench.port, HANDLERS, 9, pool=pool, now=bench.now, pause=bench.pause)
        return await bench.run(worker)

    def submit(self, **sampling: Any) -> Rollout:
        """Submit a rollout."""
        request = {"sampling": {**SAMPLING, **sampling}}
        return self.bench.submit("agent", llm="policy", request=request)

    def value(self, rollout: Rollout) -> Mapping[str, Any]:
        """Return what RUN returned."""
        [record] = [each for each in self.bench.port.log(rollout.id) if each.kind == "stage"]
        value: Mapping[str, Any] = record.header["value"]
        return value

    def seen(self, turn: int) -> str:
        """Return what the model was asked in a turn."""
        return tokenizer().decode(self.backend.asked[turn]["prompt"], special=True)

    def commands(self, rollout: Rollout) -> list[tuple[str, Any]]:
        """Return the actions: the name of each call, and what it ran."""
        return [
            (action.key.rpartition("/")[2], action.members["exec"])
            for action in self.bench.port.actions(rollout.id)
        ]


@pytest.fixture
def agents(bench: Bench) -> Agents:
    return Agents(bench)


def prints(text: str) -> Any:
    """Return a program whose commands print a text."""

    async def program(_: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return "completed", {"exit_code": 3, "stdout": text, "stderr": ""}

    return program


async def test_an_agent_uses_its_shell_and_finishes(agents: Agents) -> None:
    agents.bench.port.program = prints("a.py\r\n")
    await agents.start(call("bash", command="ls"), call("think", thought="hm"), FINISH)
    rollout = agents.submit()

    result = await agents.bench.result(rollout)

    assert (result.outcome, result.reward, result.turns) == (RolloutOutcome.COMPLETED, 1.0, 3)
    assert agents.value(rollout) == {
        "end": "finished", "result": {"message": "mended"}, "iterations": 3,
    }  # fmt: skip
    [(name, work)] = agents.commands(rollout)
    assert (name, work["session"], work["command"]) == ("0.0", "bash-1", ["ls"])
    assert "a.py\n[exit status 3]" in agents.seen(1)
    assert "Your thought is noted." in agents.seen(2)


async def test_a_successor_samples_no_turn_again_and_makes_no_call_twice(agents: Agents) -> None:
    port = agents.bench.port
    begun, never = asyncio.Event(), asyncio.Event()

    async def program(members: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        if members["exec"]["command"] == ["second"]:
            begun.set()
            await never.wait()
        return "completed", {"exit_code": 0, "stdout": "", "stderr": ""}

    port.program = program
    answers = call("bash", command="first"), call("bash", command="second"), FINISH
    first = await agents.start(*answers)
    rollout = agents.submit()
    await asyncio.wait_for(begun.wait(), 60)
    await agents.bench.stop(first)
    port.lose_worker()
    await agents.start(*answers)
    never.set()

    result = await agents.bench.result(rollout)

    assert (result.outcome, result.turns) == (RolloutOutcome.COMPLETED, 3)
    assert [work["command"] for _, work in agents.commands(rollout)] == [["first"], ["second"]]
    assert len(agents.backend.asked) == 3
    assert port.sessions[f"{rollout.id}-run"] == {"bash-1"}


async def test_a_shell_that_was_gone_before_a_crash_is_the_same_story_after_it(
    agents: Agents,
) -> None:
    """Else the model would have been asked otherwise than the log says, and the rollout would fail."""
    port = agents.bench.port
    third, never = asyncio.Event(), asyncio.Event()

    async def program(members: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        if members["exec"]["command"] == ["first"]:
            port.sessions[members["trajectory"]].clear()  # as when its shell is killed
        if members["exec"]["command"] == ["third"]:
            third.set()
            await never.wait()
        return "completed", {"exit_code": 0, "stdout": "", "stderr": ""}

    port.program = program
    commands = [call("bash", command=each) for each in ("first", "second", "third")]
    first = await agents.start(*commands, FINISH)
    rollout = agents.submit()
    await asyncio.wait_for(third.wait(), 60)
    await agents.bench.stop(first)
    port.lose_worker()
    await agents.start(*commands, FINISH)
    never.set()

    result = await agents.bench.result(rollout)

    assert (result.outcome, result.turns) == (RolloutOutcome.COMPLETED, 4), result
    assert [(name, work["session"]) for name, work in agents.commands(rollout)] == [
        ("0.0", "bash-1"), ("1.0", "bash-1"), ("1.0.again1", "bash-2"), ("2.0", "bash-2"),
    ]  # fmt: skip
    assert "This is a new shell, since the one before was gone" in agents.seen(2)


async def test_a_tool_whose_action_ends_unknown_ends_the_rollout(agents: Agents) -> None:
    async def program(_: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return "unknown", {}

    agents.bench.port.program = program
    await agents.start(call("bash", command="ls"), FINISH)

    result = await agents.bench.result(agents.submit())

    assert (result.outcome, result.reward) == (RolloutOutcome.INFRA_FAILED, None)
    assert "unknown" in result.reason


@pytest.mark.parametrize(("number", "runs"), [(1, 1), (None, 2)])
async def test_a_command_whose_node_worker_died_is_looked_at_and_not_repeated(
    agents: Agents, number: int | None, runs: int
) -> None:
    """``number``: of the last command that the shell took; without one it never got the command."""
    ends = iter(["unknown", "completed"])

    async def program(members: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        if members["exec"]["command"]:
            return next(ends), {"exit_code": 0, "stdout": "again"}
        seen = {"session": "idle", "command_number": number, "exit_code": 3, "stdout": "rest"}
        return "completed", seen

    agents.bench.port.program = program
    await agents.start(call("bash", command="make"), FINISH)
    rollout = agents.submit()

    result = await agents.bench.result(rollout)

    assert (result.outcome, result.turns) == (RolloutOutcome.COMPLETED, 2), result
    commands = [work["command"] for _, work in agents.commands(rollout)]
    assert commands == [["make"], [], ["make"]][: runs + 1]
    wanted = "earlier output is lost" if number else "again"
    assert wanted in agents.seen(1)


async def test_an_observation_of_10_mb_is_cut_in_its_middle(agents: Agents) -> None:
    await agents.start(call("echo", text="0123456789", times=10**6), FINISH)
    rollout = agents.submit()

    result = await agents.bench.result(rollout)

    assert result.outcome == RolloutOutcome.COMPLETED
    assert "56789\n[9999000 of 10000000 characters are left out here]\n01234" in agents.seen(1)


async def test_a_full_context_ends_the_loop_and_not_the_rollout(agents: Agents) -> None:
    await agents.start(call("echo", text="many words ", times=200), FINISH)
    rollout = agents.submit(max_context_tokens=700)

    result = await agents.bench.result(rollout)

    assert (result.outcome, result.turns) == (RolloutOutcome.COMPLETED, 1)
    assert agents.value(rollout) == {"end": "context", "result": {}, "iterations": 1}


async def test_texts_that_are_no_unicode_end_no_rollout(agents: Agents) -> None:
    """JSON can escape half a surrogate pair, which no tokenizer and no log can encode."""
    await agents.start(
        call("bash", command="\ud800"),
        call("echo", text="\udfff"),
        call("finish", message="\udc00"),
    )
    rollout = agents.submit()

    result = await agents.bench.result(rollout)

    assert result.outcome == RolloutOutcome.COMPLETED, result
    assert agents.commands(rollout)[0][1]["command"] == ["?"]
    assert agents.value(rollout)["result"] == {"message": "?"}


async def test_what_the_model_does_wrong_is_an_observation(agents: Agents) -> None:
    await agents.start(call("echo"), call("bash"), call("bash", command="a", timeout=-1), FINISH)
    rollout = agents.submit()

    result = await agents.bench.result(rollout)

    assert result.outcome == RolloutOutcome.COMPLETED
    assert "text is missing" in agents.seen(1)
    assert "Give either command, or input" in agents.seen(2)
    assert "timeout is a number of seconds above 0" in agents.seen(3)
    assert agents.commands(rollout) == []


async def test_a_call_that_is_refused_fails_the_rollout(agents: Agents) -> None:
    """Its tool is wrong, not the model: it is never a reward of 0."""
    port = agents.bench.port

    async def refuse(*_: Any) -> None:
        raise InvalidRequest("'bash' is not a program of this environment")

    port.open_session = refuse  # type: ignore[assignment,method-assign]
    await agents.start(call("bash", command="ls"))

    result = await agents.bench.result(agents.submit())

    assert (result.outcome, result.reward) == (RolloutOutcome.FAILED, None)
    assert "not a program" in result.reason
