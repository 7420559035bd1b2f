"""Agents that are not ours in rollouts: in an environment without a network, and the package openai, unmodified, at the gateway."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
import uvicorn

from examples.rollouts.scripted_llm import Served
from tangram_client import Client
from tests.acceptance.up.conftest import Tangram
from tests.scripted_backends import scripted_model

AGENT = """
import json, os, socket, urllib.request
base = os.environ["OPENAI_BASE_URL"]
messages = [{"role": "user", "content": "What is 2 + 2?"}]
for question in ("Are you sure?", ""):
    asked = urllib.request.Request(
        base + "/chat/completions", json.dumps({"messages": messages}).encode(),
        {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    answer = json.load(urllib.request.urlopen(asked))["choices"][0]["message"]
    messages += [answer, {"role": "user", "content": question}]
reached = []
for host, port in json.loads(os.environ["HOSTS"]):
    try:
        socket.create_connection((host, port), 2).close()
        reached.append(port)
    except OSError:
        pass
json.dump({"said": [each["content"] for each in messages[1::2]], "reached": reached}, open("answer.json", "w"))
"""

ASKS = """
import json, os
import openai

client = openai.OpenAI(base_url=os.environ["AGENT_URL"], api_key=os.environ["TANGRAM_TOKEN"], max_retries=0)
said = {"models": [each.id for each in client.models.list()]}
messages = [{"role": "user", "content": "Count the files."}]
tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
first = client.chat.completions.create(model="m", messages=messages, tools=tools).choices[0]
call = first.message.tool_calls[0]
said["call"] = [first.finish_reason, call.function.name, json.loads(call.function.arguments)]
messages += [first.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "a b c"}]
chunks = list(client.chat.completions.create(model="m", messages=messages, tools=tools, stream=True))
said["streamed"] = "".join(each.choices[0].delta.content or "" for each in chunks)
said["errors"] = []
for fails in (
    lambda: client.chat.completions.create(model="m", messages=[]),
    lambda: client.chat.completions.create(model="m", messages=messages, n=2),
    lambda: client.with_options(api_key="unknown").models.list(),
):
    try:
        fails()
    except openai.APIStatusError as error:
        said["errors"].append([type(error).__name__, error.code])
print(json.dumps(said))
"""
TOKEN = re.compile(rb"tgc_[A-Za-z0-9_-]{16}")
WAITS = """
case "$OPENAI_API_KEY" in tgc_*) said="the token" ;; *) said=nothing ;; esac
test -e /tmp/tangram-agent-token || said="$said and no file"
echo "$said" > key
while [ ! -e done ]; do sleep 0.1; done
"""
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'


@contextmanager
def model(*answers: str) -> Iterator[str]:
    """Serve a scripted model; yield its address."""
    app = Served(scripted_model(*answers, odd_share=0.3), "vllm")
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def client(tangram: Tangram) -> Iterator[Client]:
    """A client of the running system."""
    with Client(tangram.access["url"], tangram.access["token"]) as found:
        yield found


def stored(tangram: Tangram) -> Iterator[bytes]:
    """Yield what Tangram has stored outside of environments."""
    for path in tangram.home.rglob("*"):
        if "nodes" not in path.parts:
            with suppress(OSError):  # a folder, or deleted meanwhile
                yield path.read_bytes()


def submit(client: Client, pool: str, address: str, options: dict[str, Any]) -> str:
    """Submit a rollout of the handler ``foreign``."""
    client.backends.add(pool, address, seats=4, dialect="vllm")
    [rollout] = client.rollouts.submit(
        "agents", "foreign", [{"id": "i"}], llm=pool, environment={}, options=options,
        sampling={"custom_tokenizer": "tokenizer", "max_tokens": 64, "seed": 1},
    )  # fmt: skip
    return rollout


def test_an_agent_without_a_network_has_its_model_and_nothing_else(
    tangram: Tangram, client: Client
) -> None:
    web = httpx.URL(tangram.access["url"])
    with model("It is 4.", "Yes.") as address:
        hosts = json.dumps([["127.0.0.1", web.port], ["127.0.0.1", httpx.URL(address).port]])
        options = {
            "setup": [{"exec": {"command": ["sh", "-c", "echo prepared > prepared"]}}],
            "agent": {"exec": {"command": ["python3", "-c", AGENT], "env": {"HOSTS": hosts}}},
            "keep": ["answer.json"],
            "evaluation": {
                "exec": {"command": ["grep", "-q", '"It is 4.", "Yes."', "answer.json"]}
            },
        }
        rollout = submit(client, "relayed", address, options)
        found = client.rollouts.wait(rollout)

    assert found.reason == ""
    assert (found.outcome, found.reward, found.turns) == ("completed", 1.0, 2)
    assert found.segments is not None
    [segment] = found.segments
    assert sum(segment["loss_mask"]) > 0
    assert found.body["detail"]["agent"]["exit_code"] == 0
    url = f"{tangram.access['url']}/api/v1/rollouts/{rollout}/artefacts/answer.json"
    headers = {"authorization": f"Bearer {tangram.access['token']}"}
    kept = httpx.get(url, headers=headers).json()
    assert kept == {"said": ["It is 4.", "Yes."], "reached": []}


def test_the_sdk_is_recorded_at_the_gateway(tangram: Tangram, client: Client, sdk, run) -> None:
    waits = ["sh", "-c", WAITS]
    options = {
        "access": "gateway",
        "base_url": tangram.access["url"],
        "agent": {"exec": {"command": waits}},
        "keep": ["key"],
        "evaluation": {"exec": {"command": ["grep", "-q", "the token and no file", "key"]}},
    }
    with model(CALL, "There are 3.") as address:
        rollout = submit(client, "called", address, options)
        api = f"{tangram.access['url']}/api/v1/trajectories/{rollout}-run"
        said = json.loads(run(sdk("openai"), ASKS, AGENT_URL=f"{api}/v1").stdout)
        headers = {"authorization": f"Bearer {tangram.access['token']}"}
        httpx.put(f"{api}/files/done", content=b"", headers=headers).raise_for_status()
        found = client.rollouts.wait(rollout)

    assert any(rollout.encode() in content for content in stored(tangram))
    assert not any(TOKEN.search(content) for content in stored(tangram))
    assert said == {
        "models": ["called"],
        "call": ["tool_calls", "bash", {"command": "ls"}],
        "streamed": "There are 3.",
        "errors": [
            ["UnprocessableEntityError", "invalid"],
            ["UnprocessableEntityError", "invalid"],
            ["AuthenticationError", "unauthorized"],
        ],
    }
    assert found.reason == ""
    assert (found.outcome, found.reward, found.turns) == ("completed", 1.0, 2)
    assert found.segments is not None
    assert len(found.segments) == 1
