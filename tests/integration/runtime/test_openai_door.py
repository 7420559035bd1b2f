"""Stock OpenAI clients against GPU services: a base URL and a key, nothing else."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import httpx
import pytest

from tests.api_server import answer
from tests.integration.runtime.gpu_rig import GpuRig, running
from tests.integration.runtime.rig import Rig
from tests.integration.runtime.test_streams import CHUNKED, chunk

CHAT = "http://tangram/v1/chat/completions"
SAID = b'{"id": "c1", "choices": [{"message": {"role": "assistant", "content": "7"}}]}'


def a_chat(model: str = "a", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "3 + 4?"}], **fields}


async def the_action(client: httpx.AsyncClient, answered: httpx.Response) -> dict[str, Any]:
    name = answered.headers["x-tangram-action"]
    view: dict[str, Any] = (await client.get(f"/actions/{name}")).json()
    return view


async def finished_action(client: httpx.AsyncClient, answered: httpx.Response) -> dict[str, Any]:
    name = answered.headers["x-tangram-action"]
    view: dict[str, Any] = (await client.get(f"/actions/{name}", params={"wait": 60})).json()
    return view


async def test_a_completion_is_an_action_and_the_answer_is_the_services_own(gpus: GpuRig) -> None:
    gpus.api.says(answer(200, SAID))
    async with running(gpus, "a") as client:
        answered = await client.post(CHAT, json=a_chat(temperature=0.5))
        action = await the_action(client, answered)

    assert (answered.status_code, answered.content) == (200, SAID)
    (asked,) = gpus.api.asked
    assert (asked.path, json.loads(asked.body)) == (
        "/v1/chat/completions",
        a_chat(temperature=0.5),
    )
    assert (action["kind"], action["task"], action["units"]) == ("call", "openai", {"gpu": 1})
    assert action["timing"]["act_seconds"] > 0


@pytest.mark.parametrize("path", ["completions", "embeddings", "score"])
async def test_other_paths_reach_the_service_as_well(gpus: GpuRig, path: str) -> None:
    gpus.api.says(answer(400, b'{"error": "too long"}'))
    async with running(gpus, "a") as client:
        answered = await client.post(f"http://tangram/v1/{path}", json={"model": "a", "input": "x"})

    assert (answered.status_code, answered.json()) == (400, {"error": "too long"})
    assert [request.path for request in gpus.api.asked] == [f"/v1/{path}"]


async def test_a_trajectory_is_named_in_the_body_or_a_header_or_the_path(gpus: GpuRig) -> None:
    gpus.api.says(answer(200, SAID))
    inside = "http://tangram/trajectories/in-path/v1/chat/completions"
    headers = {"X-Tangram-Trajectory": "in-header", "X-Tangram-Task": "grpo"}
    own = {"trajectory": "in-body", "priority": 3, "replay_safe": True}
    async with running(gpus, "a") as client:
        views = [
            await the_action(client, await client.post(inside, json=a_chat())),
            await the_action(client, await client.post(inside, json=a_chat(), headers=headers)),
            await the_action(
                client, await client.post(inside, json=a_chat(tangram=own), headers=headers)
            ),
        ]

    assert [view["trajectory"] for view in views] == ["in-path", "in-header", "in-body"]
    assert [view["task"] for view in views] == ["openai", "grpo", "grpo"]
    assert json.loads(gpus.api.asked[-1].body) == a_chat()


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (a_chat("unknown"), 404, "model_not_found", None),
        (a_chat("huge"), 422, "never_fits", "call.target"),
        (a_chat(stream="yes"), 422, "invalid", "stream"),
        ({"messages": []}, 422, "invalid", "model"),
        (a_chat(tangram={"priority": "high"}), 422, "invalid", "priority"),
        ([], 400, "malformed_json", None),
    ],
)
async def test_errors_have_the_shape_that_clients_read(
    gpus: GpuRig, body: Any, status: int, code: str, param: str | None
) -> None:
    async with running(gpus, "a") as client:
        refused = await client.post(CHAT, json=body)
        error = refused.json()["error"]

    assert (refused.status_code, error["code"], error["param"]) == (status, code, param)
    assert gpus.api.asked == []


@pytest.mark.parametrize(
    ("method", "path", "token", "status", "code"),
    [
        ("POST", "chat/completions", "Bearer unknown", 401, "unauthorized"),
        ("POST", "embeddings", "Bearer reader", 403, "missing_scope"),
        ("GET", "models", "", 401, "unauthorized"),
        ("GET", "models/a", "Bearer trainer", 404, "model_not_found"),
        ("POST", "responses/resp_1/cancel", "Bearer trainer", 404, "unknown_url"),
        ("POST", "responses", "Bearer trainer", 404, "model_not_found"),
        ("GET", "chat/completions", "Bearer trainer", 404, "unknown_url"),
    ],
)
async def test_a_forbidden_request_is_refused_in_the_shape_of_openai(
    rig: Rig, method: str, path: str, token: str, status: int, code: str
) -> None:
    async with rig.client() as client:
        headers = {"Authorization": token}
        refused = await client.request(
            method, f"http://tangram/v1/{path}", json=a_chat(), headers=headers
        )

    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
    assert refused.json()["error"]["message"]


async def test_a_service_that_cannot_be_restored_is_503_and_one_that_breaks_off_is_not_retried(
    gpus: GpuRig,
) -> None:
    async def hang_up(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.close()

    gpus.api.behave = hang_up
    async with running(gpus, "a", "b") as client:
        gpus.trouble["a"] = "dies"
        failed = await client.post(CHAT, json=a_chat("a"))
        broken = await client.post(CHAT, json=a_chat("b"))

    assert (failed.status_code, failed.json()["error"]["code"]) == (503, "infra_failed")
    assert (broken.status_code, broken.json()["error"]["code"]) == (502, "unknown")
    assert broken.headers["x-should-retry"] == "false"


async def test_a_stream_is_forwarded_as_it_arrives(gpus: GpuRig) -> None:
    read = asyncio.Event()

    async def in_two_parts(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"data: 3\n\n"))
        await asyncio.wait_for(read.wait(), 120)  # nothing more before the trainer has this
        writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))

    gpus.api.behave = in_two_parts
    async with running(gpus, "a") as client, gpus.served() as trainer:
        url, headers = f"{trainer.url}/v1/chat/completions", {"Authorization": "Bearer trainer"}
        pieces = []
        async with (
            httpx.AsyncClient(headers=headers, timeout=300) as stock,
            stock.stream("POST", url, json=a_chat(stream=True)) as answered,
        ):
            async for piece in answered.aiter_bytes():
                pieces.append(piece)
                read.set()
        action = await finished_action(client, answered)

    assert (answered.status_code, pieces) == (200, [b"data: 3\n\n", b"data: [DONE]\n\n"])
    assert answered.headers["content-type"] == "text/event-stream"
    assert action["outcome"] == "completed"
    assert json.loads(gpus.api.asked[0].body)["stream"] is True


async def test_an_error_is_sent_whole_in_place_of_a_stream(gpus: GpuRig) -> None:
    gpus.api.says(answer(400, b'{"error": "too long"}'))
    async with running(gpus, "a") as client:
        answered = await client.post(CHAT, json=a_chat(stream=True))

    assert (answered.status_code, answered.json()) == (400, {"error": "too long"})


async def test_a_stream_for_which_there_is_no_room_is_refused_before_it_costs_anything(
    gpus: GpuRig,
) -> None:
    gpus.api.says(answer(200, SAID))
    gpus.streams = 0
    async with running(gpus, "a") as client:
        refused = await client.post(CHAT, json=a_chat(stream=True))
        # In line behind whatever the refused one may have submitted.
        whole = await client.post(CHAT, json=a_chat())

    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "invalid_request_error")
    assert int(refused.headers["retry-after"]) > 0
    assert whole.status_code == 200
    assert len(gpus.api.asked) == 1


async def test_a_stream_that_stalls_ends_with_an_error_in_place_of_silence(gpus: GpuRig) -> None:
    async def stall(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"data: 3\n\nda") + chunk(b"ta: 4"))
        await asyncio.Event().wait()

    gpus.api.behave = stall
    gpus.idle_timeout_seconds = 0.3
    async with running(gpus, "a") as client:
        answered = await client.post(CHAT, json=a_chat(stream=True))
        action = await finished_action(client, answered)

    first, last, rest = answered.text.split("\n\n")
    assert (first, rest) == ("data: 3", "")
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["type"], error["code"]) == ("server_error", "timeout")
    assert "idle_timeout_seconds = 0.3" in error["message"]
    assert action["outcome"] == "timeout"


async def test_a_call_that_began_and_took_too_long_is_not_repeated(gpus: GpuRig) -> None:
    async def never(_: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    gpus.api.behave = never
    async with running(gpus, "a") as client:
        body = a_chat(tangram={"timeout_seconds": 0.3})
        late = await client.post(CHAT, json=body)

    assert (late.status_code, late.json()["error"]["code"]) == (502, "timeout")
    assert late.headers["x-should-retry"] == "false"


def a_completion(text: str) -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    return json.dumps({"id": "c1", "choices": [choice], "usage": usage}).encode()


async def test_a_response_is_a_chat_completion_of_the_service(gpus: GpuRig) -> None:
    gpus.api.says(answer(200, a_completion("7")), answer(400, b'{"error": "too long"}'))
    body = {"model": "a", "input": "3 + 4?", "tangram": {"task": "grpo"}}
    async with running(gpus, "a") as client:
        answered = await client.post("http://tangram/v1/responses", json=body)
        action = await the_action(client, answered)
        refused = await client.post("http://tangram/v1/responses", json=body)

    response = answered.json()
    assert (answered.status_code, response["object"], response["status"]) == (
        200,
        "response",
        "completed",
    )
    assert response["output"][0]["content"][0]["text"] == "7"
    assert response["usage"]["total_tokens"] == 4
    assert response["id"] == f"resp_{action['id']}"
    assert action["task"] == "grpo"
    (asked, _) = gpus.api.asked
    assert (asked.path, json.loads(asked.body)) == (
        "/v1/chat/completions",
        {"model": "a", "messages": [{"role": "user", "content": "3 + 4?"}]},
    )
    assert (refused.status_code, refused.json()) == (400, {"error": "too long"})


async def test_a_streamed_response_is_sent_event_by_event_and_fails_as_one(gpus: GpuRig) -> None:
    said = b'data: {"choices": [{"index": 0, "delta": {"content": "7"}}]}\n\n'

    async def stall(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(said))
        if len(gpus.api.asked) > 1:
            await asyncio.Event().wait()
        writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))

    gpus.api.behave = stall
    gpus.idle_timeout_seconds = 0.3
    body = {"model": "a", "input": "3 + 4?", "stream": True}
    async with running(gpus, "a") as client:
        whole = await client.post("http://tangram/v1/responses", json=body)
        broken = await client.post("http://tangram/v1/responses", json=body)

    def events(answered: httpx.Response) -> list[str]:
        lines = answered.text.splitlines()
        return [line.split(": response.")[1] for line in lines if line.startswith("event: ")]

    began = ["created", "output_item.added", "content_part.added", "output_text.delta"]
    ended = ["output_text.done", "content_part.done", "output_item.done"]
    assert events(whole) == [*began, *ended, "completed"]
    assert events(broken) == [*began, *ended, "failed"]
    assert "idle_timeout_seconds" in broken.text
    assert whole.headers["content-type"] == "text/event-stream"


async def test_a_service_that_serves_responses_itself_gets_them_unchanged(gpus: GpuRig) -> None:
    gpus.api.says(answer(200, b'{"id": "resp_of_its_own"}'))
    gpus.paths = ("/v1/responses",)
    body = {"model": "a", "input": "3 + 4?", "previous_response_id": "resp_0"}
    async with running(gpus, "a") as client:
        answered = await client.post("http://tangram/v1/responses", json=body)

    assert answered.json() == {"id": "resp_of_its_own"}
    assert json.loads(gpus.api.asked[0].body) == body


async def test_an_answer_that_is_no_completion_is_not_asked_for_again(gpus: GpuRig) -> None:
    gpus.api.says(answer(200, b'{"score": 1}'))
    async with running(gpus, "a") as client:
        answered = await client.post(
            "http://tangram/v1/responses", json={"model": "a", "input": "x"}
        )

    assert (answered.status_code, answered.json()["error"]["code"]) == (502, "malformed")
    assert answered.headers["x-should-retry"] == "false"


async def test_embeddings_are_base64_for_a_client_that_asks_for_it(gpus: GpuRig) -> None:
    own = b'{"data": [{"index": 0, "embedding": [0.5, -2]}], "usage": {"total_tokens": 1}}'
    gpus.api.says(answer(200, own))
    body = {"model": "a", "input": "x"}
    async with running(gpus, "a") as client:
        numbers, packed = [
            (await client.post("http://tangram/v1/embeddings", json={**body, **more})).json()
            for more in ({}, {"encoding_format": "base64"})
        ]

    assert numbers["data"][0]["embedding"] == [0.5, -2]
    raw = base64.b64decode(packed["data"][0]["embedding"])
    assert struct.unpack("<2f", raw) == (0.5, -2)
    assert (packed["object"], packed["model"], packed["data"][0]["object"]) == (
        "list",
        "a",
        "embedding",
    )
    assert packed["usage"] == {"total_tokens": 1}


async def test_closing_a_stream_cancels_its_action(gpus: GpuRig) -> None:
    async def for_ever(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"data: 3\n\n"))
        await asyncio.Event().wait()

    gpus.api.behave = for_ever
    async with running(gpus, "a") as client, gpus.served() as trainer:
        url, headers = f"{trainer.url}/v1/chat/completions", {"Authorization": "Bearer trainer"}
        async with (
            httpx.AsyncClient(headers=headers, timeout=300) as stock,
            stock.stream("POST", url, json=a_chat(stream=True)) as answered,
        ):
            assert await anext(answered.aiter_bytes()) == b"data: 3\n\n"
        action = await finished_action(client, answered)

    assert (action["outcome"], action["detail"]) == ("cancelled", "its client disconnected")


async def test_models_are_the_services_that_are_declared(gpus: GpuRig) -> None:
    async with running(gpus, "a") as client:
        listed = (await client.get("http://tangram/v1/models")).json()
        one = (await client.get("http://tangram/v1/models/a")).json()
        stranger = await client.get("http://tangram/v1/models", headers={"Authorization": ""})

    assert [model["id"] for model in listed["data"]] == ["a", "huge", "wide"]
    assert one == {"id": "a", "object": "model", "created": 0, "owned_by": "tangram"}
    assert stranger.status_code == 401


async def test_a_process_that_ends_cancels_what_its_clients_will_ask_for_again(
    gpus: GpuRig,
) -> None:
    """1. A completion is under way. 2. The server gives its request up: 503, come again."""
    begun = asyncio.Event()

    async def never(_: Any, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await asyncio.Event().wait()

    gpus.api.behave = never
    async with running(gpus, "a") as client:
        asking = asyncio.create_task(client.post(CHAT, json=a_chat()))
        await asyncio.wait_for(begun.wait(), 120)
        asking.cancel()
        answered = await asyncio.wait_for(asking, 120)
        assert gpus.loop is not None
        async with asyncio.timeout(120):
            while gpus.loop.loop.term.machine.state.actions:
                await asyncio.sleep(0.005)

    assert answered.status_code == 503
    assert int(answered.headers["retry-after"]) > 0


async def test_a_client_that_goes_away_cancels_its_action(gpus: GpuRig) -> None:
    gone = asyncio.Event()

    async def never(_: Any, writer: asyncio.StreamWriter) -> None:
        gone.set()
        await asyncio.Event().wait()

    gpus.api.behave = never
    async with running(gpus, "a") as client:
        transport = client._transport
        assert isinstance(transport, httpx.ASGITransport)
        unread = [json.dumps(a_chat()).encode()]

        async def receive() -> dict[str, Any]:
            if unread:
                return {"type": "http.request", "body": unread.pop()}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(_: Any) -> None:
            raise AssertionError("the client has left")

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "headers": [(b"authorization", b"Bearer trainer")],
        }
        await asyncio.wait_for(transport.app(scope, receive, send), 120)
        assert gpus.loop is not None
        async with asyncio.timeout(120):
            while gpus.loop.loop.term.machine.state.actions:
                await asyncio.sleep(0.005)
