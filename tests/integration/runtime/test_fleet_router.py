"""Requests of trainers reach the workers of fleets, and the answers of these reach them, over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from domain.codec import encode
from domain.decisions import Finish, Grant
from domain.events import ActionFinished, ActionSubmitted
from domain.fleets import FleetEngine
from tests.integration.runtime.fleet_doors import (
    CHAT,
    COMPLETIONS,
    a_chat,
    events_of,
    the_action,
    until_finished,
    web,
)
from tests.integration.runtime.keeper_rig import KeeperRig, an_engine


async def a_fleet(rig: KeeperRig, *engines: Any, **declared: Any) -> None:
    """Serve engines and declare them as fleet ``m``."""
    served = await rig.serve(*engines)
    rig.lead([each.url for each in served], **declared)
    await rig.until(lambda found: len(found) == len(engines))


async def test_a_chat_is_answered_by_a_worker_and_is_an_action(fleet: KeeperRig) -> None:
    engine = an_engine()
    await a_fleet(fleet, engine)
    async with web(fleet) as client:
        answered = await client.post(CHAT, json=a_chat("What is seven times six?", max_tokens=5))
        view = await until_finished(client, answered)

    said = answered.json()
    assert answered.status_code == 200, answered.text
    assert (said["object"], said["model"]) == ("chat.completion", "m")
    assert said["usage"]["completion_tokens"] == 5
    (received,) = engine.received
    assert 0 <= received.pop("priority") < 32
    assert received == a_chat("What is seven times six?", max_tokens=5)
    assert answered.headers["x-tangram-worker"] == "w1"
    assert (view["kind"], view["task"], view["outcome"]) == ("call", "openai", "completed")
    assert view["result"] == {"status": 200, "worker": "w1"}
    assert (view["units"], view["placement"]["units"]) == ({"fleet:m": 1}, {"fleet:m#1": [1]})


async def test_prompts_and_tokens_reach_neither_redis_nor_the_journal(fleet: KeeperRig) -> None:
    await a_fleet(fleet, an_engine())
    secret = "quite-a-secret-" * 4
    async with web(fleet) as client:
        answered = await client.post(CHAT, json=a_chat(secret, max_tokens=4, stream=True))
        assert answered.status_code == 200
        view = await until_finished(client, answered)

    received = fleet.journalled()
    assert secret.encode() not in b"".join(map(encode, received))
    (submitted,) = [each for each in received if isinstance(each, ActionSubmitted)]
    (finished,) = [each for each in received if isinstance(each, ActionFinished)]
    assert submitted.action.generation is not None
    assert submitted.action.generation.prompt_tokens > 10
    assert finished.usage is not None
    assert finished.usage.sampled_tokens == 4
    assert finished.usage.prompt_tokens > 10
    assert view["outcome"] == "completed"


@pytest.mark.parametrize("asks", [True, False])
async def test_a_stream_arrives_event_by_event_with_the_usage_that_was_asked_for(
    fleet: KeeperRig, asks: bool
) -> None:
    await a_fleet(fleet, an_engine())
    body = a_chat("count", max_tokens=30, stream=True)
    if asks:
        body["stream_options"] = {"include_usage": True}
    async with web(fleet) as client:
        answered = await client.post(CHAT, json=body)

    events = events_of(answered.text)
    assert answered.headers["content-type"].startswith("text/event-stream")
    assert answered.text.endswith("data: [DONE]\n\n")
    assert ("usage" in events[-1]) is asks
    assert events[-2 if asks else -1]["choices"][0]["finish_reason"]
    assert "".join(each["choices"][0]["delta"]["content"] for each in events if each["choices"])


async def test_the_requests_of_a_trajectory_stay_on_its_worker(fleet: KeeperRig) -> None:
    engines = an_engine(), an_engine()
    await a_fleet(fleet, *engines)
    async with web(fleet) as client:
        for turn in range(4):
            for name in ("one", "two"):
                inside = f"/trajectories/{name}/v1/chat/completions"
                answered = await client.post(inside, json=a_chat(f"{name} {turn}", max_tokens=2))
                assert answered.status_code == 200
    served = [
        (each["messages"][0]["content"].split()[0], number)
        for number, engine in enumerate(engines)
        for each in engine.received
    ]
    assert len(served) == 8
    assert {name: len({n for who, n in served if who == name}) for name in ("one", "two")} == {
        "one": 1,
        "two": 1,
    }


async def test_group_batch_and_trajectory_are_those_of_the_body(fleet: KeeperRig) -> None:
    await a_fleet(fleet, an_engine())
    own = {"trajectory": "t1", "group": "g1", "batch": "b1", "batch_size": 1, "task": "grpo"}
    async with web(fleet) as client:
        answered = await client.post(CHAT, json=a_chat("x", max_tokens=1, tangram=own))
        view = await the_action(client, answered)

    (submitted,) = [each for each in fleet.journalled() if isinstance(each, ActionSubmitted)]
    assert submitted.action.generation is not None
    assert (submitted.action.group, submitted.action.generation.batch) == ("g1", "b1")
    assert submitted.action.generation.batch_size == 1
    assert (view["trajectory"], view["task"]) == ("t1", "grpo")


async def test_fleets_are_listed_as_models(fleet: KeeperRig) -> None:
    await a_fleet(fleet, an_engine())
    async with web(fleet) as client:
        listed = (await client.get("/v1/models")).json()
        one = await client.get("/v1/models/m")
        none = await client.get("/v1/models/other")

    assert [each["id"] for each in listed["data"]] == ["m"]
    assert (one.status_code, one.json()["id"]) == (200, "m")
    assert (none.status_code, none.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (a_chat("x", priority=-5), 400, "engine_priority", "priority"),
        (a_chat("x", tangram={"batch_size": 4}), 422, "invalid", "batch"),
        (a_chat("x", tangram={"batch": 7}), 422, "invalid", "batch"),
        (a_chat("x", tangram={"reward": {"source": "json"}}), 422, "invalid", "reward"),
        (a_chat("x", tangram=[]), 422, "invalid", "tangram"),
        (a_chat("x", stream="yes"), 422, "invalid", "stream"),
        (a_chat("x", tangram={"priority": "high"}), 422, "invalid", "priority"),
        ({"model": "other", "messages": []}, 404, "model_not_found", None),
    ],
)
async def test_what_no_worker_may_get_is_refused_by_the_name_of_its_member(
    fleet: KeeperRig, body: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    engine = an_engine()
    await a_fleet(fleet, engine)
    async with web(fleet) as client:
        refused = await client.post(CHAT, json=body)

    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (status, code, param)
    assert engine.received == []
    if code == "engine_priority":
        assert '"tangram": {"priority": 1}' in error["message"]


async def test_other_paths_are_refused(fleet: KeeperRig) -> None:
    await a_fleet(fleet, an_engine())
    async with web(fleet) as client:
        refused = await client.post("/v1/embeddings", json={"model": "m", "input": "x"})

    assert refused.status_code == 422
    assert "takes the paths" in refused.json()["error"]["message"]


async def test_the_priority_of_an_action_is_before_the_predicted_rest(fleet: KeeperRig) -> None:
    engine = an_engine()
    await a_fleet(fleet, engine)
    async with web(fleet) as client:
        for priority in (0, 2, -1):
            own = {"priority": priority}
            await client.post(CHAT, json=a_chat("x", max_tokens=1, tangram=own))

    usual, soon, late = (each["priority"] for each in engine.received)
    assert 0 <= usual < 32
    assert -64 <= soon < -32
    assert 32 <= late < 64


@pytest.mark.parametrize(
    ("dialect", "engine"), [("vllm", FleetEngine.VLLM), ("sglang", FleetEngine.SGLANG)]
)
async def test_an_engine_that_refuses_priorities_is_asked_without(
    fleet: KeeperRig, dialect: str, engine: FleetEngine
) -> None:
    refusing = an_engine(dialect, priorities="refused")
    await a_fleet(fleet, refusing, engine=engine)
    async with web(fleet) as client:
        first, second = [
            await client.post(CHAT, json=a_chat(word, max_tokens=1)) for word in ("a", "b")
        ]

    assert (first.status_code, second.status_code) == (200, 200)
    assert ["priority" in each for each in refusing.received] == [True, False, False]


async def test_servers_of_other_engines_get_the_bytes_of_the_client(fleet: KeeperRig) -> None:
    plain = an_engine()
    await a_fleet(fleet, plain, engine=FleetEngine.OPENAI, source="Qwen/Qwen3-8B")
    async with web(fleet) as client:
        answered = await client.post(
            COMPLETIONS, json={"model": "m", "prompt": [5, 6, 7], "max_tokens": 2, "stream": True}
        )
        view = await until_finished(client, answered)

    (received,) = plain.received
    assert received == {
        "model": "Qwen/Qwen3-8B", "prompt": [5, 6, 7], "max_tokens": 2, "stream": True,
    }  # fmt: skip
    assert view["outcome"] == "completed"
    (finished,) = [each for each in fleet.journalled() if isinstance(each, ActionFinished)]
    assert finished.usage is not None
    assert finished.usage.prompt_tokens == 3
    assert finished.usage.sampled_tokens >= 1


async def test_an_error_of_the_worker_is_the_answer(fleet: KeeperRig) -> None:
    engine = an_engine(context=4)
    await a_fleet(fleet, engine)
    async with web(fleet) as client:
        answered = await client.post(CHAT, json=a_chat("far too long " * 20, stream=True))
        view = await until_finished(client, answered)

    assert answered.status_code == 400
    assert "maximum context length" in answered.json()["error"]["message"]
    assert (view["outcome"], view["result"]["status"]) == ("completed", 400)


@pytest.mark.parametrize("streams", [False, True])
async def test_responses_are_chat_completions_of_the_fleet(fleet: KeeperRig, streams: bool) -> None:
    await a_fleet(fleet, an_engine())
    body = {"model": "m", "input": "hello", "max_output_tokens": 6, "stream": streams}
    async with web(fleet) as client:
        answered = await client.post("/v1/responses", json=body)

    assert answered.status_code == 200, answered.text
    if streams:
        kinds = [each["type"] for each in events_of(answered.text)]
        assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    else:
        assert answered.json()["output"][0]["content"][0]["text"]
        assert answered.headers["x-tangram-action"]


async def test_slots_hold_back_what_a_worker_does_not_run_at_once(fleet: KeeperRig) -> None:
    engine = an_engine()
    await a_fleet(fleet, engine)
    async with web(fleet) as client:
        asked = [client.post(CHAT, json=a_chat(f"n{n}", max_tokens=3)) for n in range(40)]
        answered = await asyncio.gather(*asked)

    assert {each.status_code for each in answered} == {200}
    held = most = 0
    for each in fleet.journalled():
        held += isinstance(each, Grant) - isinstance(each, Finish)
        most = max(most, held)
    assert (held, most) == (0, 8)


async def test_a_body_that_is_no_object_is_refused(fleet: KeeperRig) -> None:
    await a_fleet(fleet, an_engine())
    async with web(fleet) as client:
        refused = await client.post(CHAT, content=b"[1]")

    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "malformed_json")
