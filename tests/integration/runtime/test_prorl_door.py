"""ProRL's door: the requests of its published clients over real HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from domain.rollouts import RolloutOutcome, RolloutResult
from facades.prorl import ProrlEndpoints
from tangram_client.errors import InvalidRequestError
from tests.integration.runtime.prorl_rig import (
    BATCH,
    CONTEXTS,
    HANDLERS,
    INSTANCE,
    JOB,
    LOGPROBS,
    NEMO_RL,
    POOL,
    RESPONSES,
    RUN_SWE,
    Agent,
    body,
    process,
    prorl,
    started,
)
from tests.integration.runtime.rollout_rig import RolloutRig, finished


async def test_the_requests_of_run_swe_pass(rollouts: RolloutRig) -> None:
    """It asks for the status before anything, adds servers, starts, and fails on any status but 200 from there on."""
    agent = Agent()
    await rollouts.start_worker(agent, handlers=HANDLERS)
    async with prorl(rollouts) as client:
        assert (await client.get("/status")).status_code == 503
        added = await client.post("/add_llm_server", json={"address": "http://127.0.0.1:8000/v1"})
        assert added.json() == {"status": "Buffered LLM server address: http://127.0.0.1:8000/v1"}
        assert (await client.post("/start")).json() == {"status": "Server started successfully"}
        answer = await process(client, JOB)
        stopped = await client.post("/stop")
        assert (await client.get("/status")).status_code == 503

    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    result = answer.json()
    assert {name: result[name] for name in (
        "instance_id", "trajectory_id", "success", "resolved", "finish", "error", "critical_error",
        "end_properly", "filter", "git_patch",
    )} == {
        "instance_id": "getmoto__moto-5752", "trajectory_id": 3, "success": True, "resolved": True,
        "finish": True, "error": None, "critical_error": None, "end_properly": True, "filter": False,
        "git_patch": "diff --git",
    }  # fmt: skip
    assert [each["role"] for each in result["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert result["messages"][2]["content"] == "<think>\nLook.\n</think>\n\n"
    assert result["messages"][2]["tool_calls"] == [
        {"name": "bash", "arguments": '{"command": "ls"}'}
    ]
    assert len(result["tools"]) == 1
    assert result["timing"]["timeout_triggered"] is False
    assert stopped.json() == {"status": "Server stopped successfully"}
    [given] = agent.begun
    assert (given.rollout.task, given.rollout.handler, given.rollout.llm) == ("T", "swe", POOL)
    assert given.rollout.door == "prorl"
    request = rollouts.logs.first(given.rollout.id).header
    assert request["options"] == {"max_iterations": 35}
    assert request["sampling"]["native_tool_calling"] is True
    assert request["instance"]["problem_statement"] == INSTANCE["problem_statement"]
    assert request["environment"] == {}


def nemo_rl_reads(messages: list[dict[str, Any]]) -> tuple[list[int], list[float]]:
    """Return the token ids of a message log and the log-probabilities of its responses, as NeMo RL's client makes them."""
    ids: list[int] = []
    logprobs: list[float] = []
    for message in messages:
        if message["input_ids"] is not None:
            length = len(message["input_ids"])
            message["token_ids"] = message["token_ids"][length:]
            logprobs += message["logprobs"][length:]
        ids += message["token_ids"]
    return ids, logprobs


async def test_the_requests_of_nemo_rl_pass_and_its_reading_finds_the_sampled_tokens(
    rollouts: RolloutRig,
) -> None:
    await rollouts.start_worker(Agent(), handlers=HANDLERS)
    async with prorl(rollouts, **{"X-Tangram-Token-Ids": "full"}) as client:
        assert (await client.post("/clear_llm_server")).status_code == 200
        await started(client, "http://10.0.0.9:8000")
        answers = await asyncio.gather(*(
            process(client, body({**INSTANCE, "trajectory_id": sample}, NEMO_RL)) for sample in range(4)
        ))  # fmt: skip
        (await client.post("/stop")).raise_for_status()

    results = [answer.json() for answer in answers]
    assert [each["trajectory_id"] for each in results] == [0, 1, 2, 3]
    assert len({each["job_id"] for each in results}) == 4
    ids, logprobs = nemo_rl_reads(results[0]["messages"])
    assert ids == [*CONTEXTS[0], *RESPONSES[0], *CONTEXTS[1], *RESPONSES[1]]
    assert logprobs == [*LOGPROBS[0], *LOGPROBS[1]]
    assert [float(each["resolved"]) for each in results] == [1.0] * 4


async def test_token_ids_are_the_response_alone_unless_asked_for(rollouts: RolloutRig) -> None:
    await rollouts.start_worker(Agent(), handlers=HANDLERS)
    async with prorl(rollouts) as client:
        await started(client)
        first, second = [
            each for each in (await process(client, JOB)).json()["messages"] if each["role"] == "assistant"
        ]  # fmt: skip
    assert (first["token_ids"], first["logprobs"]) == (RESPONSES[0], LOGPROBS[0])
    assert second["input_ids"] == [*CONTEXTS[0], *RESPONSES[0], *CONTEXTS[1]]
    assert (second["token_ids"], second["logprobs"]) == (RESPONSES[1], LOGPROBS[1])


async def test_the_requests_of_the_batch_processor_pass(rollouts: RolloutRig) -> None:
    """It starts and stops for each step, runs many jobs at once, and repeats one without messages."""
    agent = Agent()
    await rollouts.start_worker(agent, slots=64, handlers=HANDLERS)
    async with prorl(rollouts) as client:
        await client.post("/clear_llm_server")
        await client.post("/add_llm_server", json={"address": "http://127.0.0.1:8000/v1"})
        for step in range(2):
            (await client.post("/start")).raise_for_status()
            jobs = (body({**INSTANCE, "trajectory_id": str(n)}, BATCH) for n in range(24))
            answers = await asyncio.gather(*(process(client, job) for job in jobs))
            assert [each.json()["trajectory_id"] for each in answers] == [str(n) for n in range(24)]
            (await client.post("/stop")).raise_for_status()
            assert len(agent.begun) == 24 * (step + 1)
        groups = {given.rollout.group for given in agent.begun}
    assert len(groups) == 2  # the samples of one instance, in each session


async def test_nan_and_unknown_members_pass(rollouts: RolloutRig) -> None:
    """Rows of pandas have NaN where a value is absent, and json.dumps writes it."""
    agent = Agent()
    await rollouts.start_worker(agent, handlers=HANDLERS)
    async with prorl(rollouts) as client:
        await started(client)
        instance = {
            **INSTANCE,
            "trajectory_id": 1.0,
            "hints_text": float("nan"),
            "data_source": "deepcoder_v2",
        }
        answer = await process(client, body(instance, {**RUN_SWE, "reasoning_effort": "high"}))
    assert (answer.status_code, answer.json()["trajectory_id"]) == (200, 1)
    [given] = agent.begun
    assert given.rollout.handler == "code"
    request = rollouts.logs.first(given.rollout.id).header
    assert request["instance"]["hints_text"] is None
    assert request["sampling"]["reasoning_effort"] == "high"


@pytest.mark.parametrize(
    ("result", "turns", "end", "said"),
    [
        (RolloutResult(RolloutOutcome.COMPLETED, reason="the judge is away"), 2, "finished",
         {"resolved": False, "error": "the judge is away", "critical_error": "eval", "filter": True, "reward": None}),
        (RolloutResult(RolloutOutcome.COMPLETED, 0.0), 2, "finished",
         {"resolved": False, "error": None, "critical_error": None, "filter": False, "reward": 0.0}),
        (RolloutResult(RolloutOutcome.FAILED, reason="EVAL raised ValueError: no"), 2, "finished",
         {"resolved": False, "error": "failed: EVAL raised ValueError: no", "critical_error": "eval", "filter": True}),
        (RolloutResult(RolloutOutcome.TIMEOUT, reason="RUN took 500 s"), 2, "",
         {"resolved": False, "error": "timeout: RUN took 500 s", "critical_error": "timeout", "filter": True}),
        (RolloutResult(RolloutOutcome.COMPLETED, 1.0), 2, "iterations",
         {"resolved": True, "success": False, "finish": False, "critical_error": None, "filter": True}),
    ],
)  # fmt: skip
async def test_a_reward_that_is_not_there_is_an_error_and_filtered(
    rollouts: RolloutRig, result: RolloutResult, turns: int, end: str, said: dict[str, Any]
) -> None:
    await rollouts.start_worker(Agent(result, turns=turns, end=end), handlers=HANDLERS)
    async with prorl(rollouts) as client:
        await started(client)
        answer = (await process(client, JOB)).json()
    assert {name: answer[name] for name in said} == said
    assert len(answer["messages"]) == 5


async def test_a_long_result_is_streamed_and_whole(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("facades.prorl._PIECE_BYTES", 64)
    await rollouts.start_worker(Agent(), handlers=HANDLERS)
    async with prorl(rollouts) as client:
        await started(client)
        answer = await process(client, JOB)
    assert answer.headers["transfer-encoding"] == "chunked"
    assert len(json.loads(answer.content)["messages"]) == 5


async def test_status_counts_jobs_by_stage_for_both_engines(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All jobs are counted, and stopped, also those that one page of a list does not have."""
    monkeypatch.setattr("scheduler.runtime.gateway.native_rollouts.MAX_LISTED", 2)
    async with prorl(rollouts) as client:
        await started(client)
        waiting = [asyncio.ensure_future(process(client, JOB)) for _ in range(3)]
        async with asyncio.timeout(120):
            while (found := (await client.get("/status")).json())["jobs"] < 3:
                await asyncio.sleep(0.01)
        (await client.post("/stop")).raise_for_status()
        answers = await asyncio.gather(*waiting)
    assert (found["status"], found["running"], found["pending_jobs"], found["total"]) == (
        "running",
        True,
        3,
        3,
    )
    assert (found["init_queue"], found["active_run"], found["eval"]) == (3, 0, 0)
    assert [each.status_code for each in answers] == [503] * 3


async def test_no_other_project_uses_or_sees_the_servers_of_a_task(rollouts: RolloutRig) -> None:
    await rollouts.start_worker(Agent(), handlers=HANDLERS)
    async with (
        prorl(rollouts) as client,
        rollouts.client("stranger") as stranger,
        rollouts.client() as own,
    ):
        await started(client)
        assert await stranger.backends.list() == []
        with pytest.raises(InvalidRequestError, match="there is no pool"):
            await stranger.rollouts.submit("t", "noop", [{"id": "a"}], llm=POOL)
        with pytest.raises(InvalidRequestError, match="there is no pool"):
            await stranger.submit({"task": "t", "kind": "lease", "cost": {f"llm:{POOL}": 1}})
        [rollout] = await own.rollouts.submit("t", "noop", [{"id": "a"}], llm=POOL)
        assert (await finished(own, rollout)).outcome == "completed"


async def test_the_settings_of_the_door_choose_another_handler_and_pool(
    rollouts: RolloutRig,
) -> None:
    agent = Agent()
    await rollouts.start_worker(agent, handlers=HANDLERS)
    own = {"X-Tangram-Handler": "math", "X-Tangram-Llm": "shared"}
    async with prorl(rollouts, **own) as client, rollouts.client("cluster") as operator:
        await operator.backends.add("shared", "http://10.0.0.7:8000")
        refused = await client.post("/add_llm_server", json={"address": "http://10.0.0.8:8000"})
        (await client.post("/start")).raise_for_status()
        assert (await process(client, JOB)).status_code == 200
    assert refused.status_code == 403  # a pool of all projects
    [given] = agent.begun
    assert (given.rollout.handler, given.rollout.llm) == ("math", "shared")


async def test_tokens_of_old_answers_are_deleted_and_their_jobs_answered_410(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("facades.prorl.KEPT_ANSWERS", 2)
    agent = Agent(RolloutResult(RolloutOutcome.COMPLETED, 1.0, turns=2))
    await rollouts.start_worker(agent, handlers=HANDLERS)
    async with prorl(rollouts) as client:
        await started(client)
        jobs = [body(INSTANCE, RUN_SWE, job_id=f"j{number}") for number in range(4)]
        for job in jobs:
            assert (await process(client, job)).status_code == 200
        first, last = await process(client, jobs[0]), await process(client, jobs[3])
    sizes = [rollouts.logs.size(given.rollout.id) for given in agent.begun]
    assert [size > 0 for size in sizes] == [False, False, True, True]
    assert (first.status_code, first.json()["code"]) == (410, "tokens_deleted")
    assert len(last.json()["messages"]) == 5


async def test_a_web_process_remembers_a_bounded_number_of_tasks(
    rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ProrlEndpoints] = []
    begin = ProrlEndpoints.__init__

    def noting(self: ProrlEndpoints, port: Any) -> None:
        begin(self, port)
        made.append(self)

    monkeypatch.setattr("facades.prorl.KEPT_TASKS", 2)
    monkeypatch.setattr(ProrlEndpoints, "__init__", noting)
    await rollouts.start_worker(Agent(), handlers=HANDLERS)
    async with prorl(rollouts) as client:
        for task in "abac":
            client.headers["X-Tangram-Task"] = task
            await client.post("/add_llm_server", json={"address": "http://127.0.0.1:8000"})
            await client.post("/start")  # the second one of a task is refused
            assert (await process(client, JOB)).status_code == 200
    [endpoints] = made
    assert [task for _, task in endpoints._answered] == ["a", "c"]
    assert len(endpoints._served) == 2
