"""Agents of others call their rollout's model over HTTP: recorded token by token, whatever is killed meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from rollout.ports import RolloutPort
from rollout.worker.handler_pool import HandlerPool
from rollout.worker.process_launch import HandlerProcess
from rollout.worker.worker import RolloutWorker
from scheduler.runtime.gateway import chat_completions
from scheduler.runtime.redis.facade_records import FacadeRecords
from scheduler.runtime.rollouts.chat_tokens import SECRET_OF, ChatTokens
from tests.integration.runtime import rollout_rig as rigs
from tests.integration.runtime.chatting_handler import Chatting
from tests.integration.runtime.rollout_rig import RolloutRig, Work, finished, noop
from tests.scripted_backends import FaultyBackend, scripted_model, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SAMPLING = {"custom_tokenizer": "tokenizer", "max_tokens": 64, "seed": 1}
ASKED = [{"role": "user", "content": "What is 2 + 2?"}]
SURE = {"role": "user", "content": "Are you sure?"}
TOOL = {
    "type": "function",
    "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'


class ProcessWorker(RolloutWorker):
    """The worker of the product with real handler processes."""

    programs: list[HandlerProcess]

    def __init__(self, port: RolloutPort, work: Work, **_: Any) -> None:
        self.programs = []
        place = f"{Chatting.__module__}:{Chatting.__name__}"
        super().__init__(port, {"chatting": place}, 8, pool=HandlerPool(1, self.launch))
        self.port = port

    async def launch(self) -> HandlerProcess:
        """Start a handler process."""
        self.programs.append(HandlerProcess(60.0))
        return self.programs[-1]


@dataclass
class Chats:
    """A rollout with an agent outside, and its model."""

    rollouts: RolloutRig
    model: FaultyBackend
    http: httpx.AsyncClient
    rollout: str = ""
    workers: list[Any] = field(default_factory=list)
    #: The test is over.
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def trajectory(self) -> str:
        """The trajectory of RUN."""
        return f"{self.rollout}-run"

    async def start_worker(self, name: str = "w1") -> None:
        """Start a worker of the product."""
        found = await self.rollouts.start_worker(noop, name, handlers=("chatting",))
        self.workers.append(found)

    async def ask(self, messages: Any, **more: Any) -> httpx.Response:
        """Make one call of the agent."""
        headers = more.pop("headers", {})
        path = f"/trajectories/{self.trajectory}/v1/chat/completions"
        body = {"model": "m", "messages": messages, **more}
        return await self.http.post(path, json=body, headers=headers)

    async def hanging(self, messages: Any) -> asyncio.Task[httpx.Response]:
        """Make a call, and return it once the model has it, which answers only what is asked after it."""
        arrived = asyncio.Event()

        async def hangs(_: Any) -> Any:
            arrived.set()
            await self.over.wait()

        self.model.faults = [hangs]
        call = asyncio.create_task(self.ask(messages))
        await asyncio.wait_for(arrived.wait(), 120)
        return call

    async def end_agent(self) -> Any:
        """End the agent's command, and return the finished rollout."""
        async with asyncio.timeout(120):
            while not self.rollouts.rig.driver.storage.marks:
                await asyncio.sleep(0.01)
        [order] = self.rollouts.rig.driver.storage.marks.values()
        await self.rollouts.rig.end_action(order.id)
        async with self.rollouts.client() as client:
            return await finished(client, self.rollout)


@pytest.fixture
async def chats(rollouts: RolloutRig, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return what begins a rollout whose model says some answers."""
    monkeypatch.setattr(rigs, "ScriptedWorker", ProcessWorker)
    await rollouts.rig.start_node()

    @asynccontextmanager
    async def begin(*answers: str) -> AsyncIterator[Chats]:
        model = FaultyBackend("vllm")
        model.served.model = scripted_model(*answers, odd_share=0.3)
        async with (
            serving(model) as address,
            rollouts.rig.client() as http,
            rollouts.client("cluster") as operator,
            rollouts.client() as client,
        ):
            found = Chats(rollouts, model, http)
            await operator.backends.add("small", f"{address}/v1", seats=4)
            await found.start_worker()
            [found.rollout] = await client.rollouts.submit(
                "t", "chatting", [{"id": "i"}], llm="small", sampling=SAMPLING,
                environment={"memory_bytes": 1024},
            )  # fmt: skip
            try:
                yield found
            finally:
                found.over.set()

    return begin


def said(answer: httpx.Response) -> dict[str, Any]:
    """Return the message of an answer."""
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


async def test_an_agent_s_calls_are_one_segment_with_the_sampled_tokens(chats: Any) -> None:
    async with chats("It is 4, as two and two are.", "Yes.") as agent:
        first = said(await agent.ask(ASKED))
        second = said(await agent.ask([*ASKED, {**first, "refusal": None}, SURE]))
        found = await agent.end_agent()

    assert (first["content"], second["content"]) == ("It is 4, as two and two are.", "Yes.")
    assert (found.outcome, found.reward, found.turns) == ("completed", 1.0, 2)
    [segment] = found.segments
    prompts = [asked["prompt"] for asked in agent.model.asked]
    before = [*segment["prompt_ids"], *segment["response_ids"]]
    assert before[: len(prompts[1])] == prompts[1]
    assert prompts[1][: len(prompts[0])] == prompts[0] == segment["prompt_ids"]


async def test_tools_and_streams_have_the_shape_of_openai(chats: Any) -> None:
    async with chats(CALL, "There are 3.") as agent:
        called = said(await agent.ask(ASKED, tools=[TOOL]))
        result = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "a b c"}
        streamed = await agent.ask([*ASKED, called, result], tools=[TOOL], stream=True)
        models = await agent.http.get(f"/trajectories/{agent.trajectory}/v1/models")
        found = await agent.end_agent()

    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"command": "ls"}
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *events, done = streamed.text.strip().split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert done == "data: [DONE]"
    assert chunks[0]["choices"][0]["delta"]["content"] == "There are 3."
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert models.json()["data"][0]["id"] == "small"
    assert len(found.segments) == 1


async def test_kill_9_of_the_handler_process_in_a_call_loses_no_turn(chats: Any) -> None:
    """The agent waits for its answer meanwhile, and sees nothing of it."""
    async with chats("One.", "Two.") as agent:
        first = said(await agent.ask(ASKED))
        call = await agent.hanging([*ASKED, first, SURE])
        os.kill(agent.workers[0].programs[0].process.pid, signal.SIGKILL)
        second = said(await asyncio.wait_for(call, 120))
        found = await agent.end_agent()

    assert second["content"] == "Two."
    assert len(agent.workers[0].programs) > 1
    assert (found.outcome, found.turns, len(found.segments)) == ("completed", 2, 1)


async def test_a_lost_worker_has_a_successor_that_answers_the_call(chats: Any) -> None:
    async with chats("One.", "Two.") as agent:
        first = said(await agent.ask(ASKED))
        call = await agent.hanging([*ASKED, first, SURE])
        await agent.start_worker("w2")
        await agent.rollouts.kill_worker(0)
        second = said(await asyncio.wait_for(call, 120))
        found = await agent.end_agent()

    assert second["content"] == "Two."
    assert (found.outcome, found.worker, found.turns) == ("completed", "w2", 2)
    assert len(found.segments) == 1


async def test_a_worker_that_stays_away_is_a_clean_error_and_a_repetition_continues(
    chats: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the answer that was stored and never arrived is given to the repetition, and sampled once."""
    async with chats("One.", "Two.") as agent:
        first = said(await agent.ask(ASKED))
        monkeypatch.setattr(chat_completions, "PATIENCE_SECONDS", 0.0)
        await agent.rollouts.kill_worker(0)
        away = await agent.ask([*ASKED, first, SURE])
        monkeypatch.setattr(chat_completions, "PATIENCE_SECONDS", 120.0)
        await agent.start_worker("w2")
        repeats = {"x-stainless-retry-count": "1"}
        again = said(await agent.ask(ASKED, headers=repeats))
        second = said(await agent.ask([*ASKED, first, SURE], headers=repeats))
        found = await agent.end_agent()

    assert away.status_code == 503
    assert int(away.headers["retry-after"]) > 0
    assert away.json()["error"]["type"] == "server_error"
    assert (again, second["content"]) == (first, "Two.")
    assert (found.turns, len(found.segments)) == (2, 1)


async def test_the_token_of_a_trajectory_serves_its_chat_alone(chats: Any) -> None:
    async with chats("One.") as agent:
        rig = agent.rollouts.rig
        secret = await FacadeRecords(
            agent.rollouts.workers[0].context.client, rig.keys, SECRET_OF
        ).secret()
        token = ChatTokens(secret).token("default", agent.trajectory)
        other = ChatTokens(secret).token("default", f"rol_{1:028x}-run")
        mine, theirs = ({"authorization": f"Bearer {each}"} for each in (token, other))
        answered = await agent.ask(ASKED, headers=mine)
        refused = await agent.ask(ASKED, headers=theirs)
        elsewhere = await agent.http.get(f"/rollouts/{agent.rollout}", headers=mine)
        stranger = await agent.ask(ASKED, headers={"authorization": "Bearer stranger"})
        reader = await agent.ask(ASKED, headers={"authorization": "Bearer reader"})
        found = await agent.end_agent()
        late = await agent.ask(ASKED, headers=mine)

    assert said(answered)["content"] == "One."
    assert (refused.status_code, elsewhere.status_code) == (401, 401)
    assert (stranger.status_code, reader.status_code) == (404, 403)
    assert (late.status_code, late.headers["x-should-retry"]) == (409, "false")
    assert "finished: completed" in late.json()["error"]["message"]
    assert found.turns == 1


@pytest.mark.parametrize(
    ("body", "param"),
    [({"messages": []}, "messages"), ({"messages": ASKED, "n": 3}, "n")],
)
async def test_a_wrong_call_is_refused_by_member_and_stores_nothing(
    chats: Any, body: dict[str, Any], param: str
) -> None:
    async with chats("One.") as agent:
        said(await agent.ask(ASKED))
        path = f"/trajectories/{agent.trajectory}/v1/chat/completions"
        refused = await agent.http.post(path, json=body)
        nonsense = await agent.http.post(path, content=b"[")
        found = await agent.end_agent()

    assert (refused.status_code, refused.json()["error"]["param"]) == (422, param)
    assert nonsense.status_code == 400
    assert found.turns == 1


async def test_a_rollout_whose_model_fails_its_agent_never_trains(chats: Any) -> None:
    async with chats("One.") as agent:
        agent.model.faults = [lambda _: 500] * 20
        call = asyncio.create_task(agent.ask(ASKED))
        async with agent.rollouts.client() as client:
            found = await finished(client, agent.rollout)
        answer = await asyncio.wait_for(call, 120)

    assert (found.outcome, found.reward) == ("infra_failed", None)
    assert "NoBackendAnswers" in found.reason
    assert answer.status_code in (409, 503)
