"""The requests of ProRL's batch processor through ``tangram door prorl``: its package needs a GPU machine, its requests do not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT
from tests.doors.test_sandboxfusion import door
from tests.ports import free_port

CLIENT = """
import json, os, urllib.error, urllib.request

def asked(path, payload=None, method="POST"):
    data = None if payload is None else json.dumps(payload).encode()
    headers = {"Content-Type": "application/json"} if data else {}
    request = urllib.request.Request(os.environ["URL"] + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)

instance = {"data_source": "noop", "instance_id": "i-1", "trajectory_id": 0}
sampling = {"model": "hosted_vllm/Qwen/Qwen3-14B", "api_key": "mykey", "temperature": 0.6, "max_iterations": 35}
found = [
    asked("/status", method="GET"),
    asked("/clear_llm_server"),
    asked("/add_llm_server", {"address": "http://127.0.0.1:8000/v1"}),
    asked("/start"),
    asked("/start"),
    asked("/process", {"instance": instance, "sampling_params": sampling}),
    asked("/process", {"instance": {**instance, "data_source": "unheard"}, "sampling_params": sampling}),
    asked("/status", method="GET"),
]
if os.environ.get("STOP"):
    found.append(asked("/stop"))
print(json.dumps(found))
"""


def test_the_batch_processor_runs_a_step_through_the_door(tangram, run):
    task = f"T-{uuid4().hex}"
    with door(tangram, "prorl", "--task", task) as url:
        done = run(Path(sys.executable), CLIENT, URL=url, STOP="1")

    answers = json.loads(done.stdout.splitlines()[-1])
    assert [status for status, _ in answers] == [503, 200, 200, 200, 400, 200, 400, 200, 200]
    result = answers[5][1]
    assert (result["instance_id"], result["trajectory_id"], result["resolved"]) == ("i-1", 0, True)
    assert answers[7][1]["jobs"] == 0


def test_the_end_of_the_listener_ends_its_session(tangram, run):
    task = f"T-{uuid4().hex}"
    for _ in range(2):  # the second listener begins where the first one began
        with door(tangram, "prorl", "--task", task) as url:
            done = run(Path(sys.executable), CLIENT, URL=url)
        answers = json.loads(done.stdout.splitlines()[-1])
        assert [status for status, _ in answers][:4] == [503, 200, 200, 200]


#: A row of the data set of ``run_math.py``, and the turns of its agent: a cell, then the answer.
MATH = """
import json, os, urllib.request

def asked(path, payload=None):
    data = None if payload is None else json.dumps(payload).encode()
    headers = {"Content-Type": "application/json"} if data else {}
    with urllib.request.urlopen(urllib.request.Request(os.environ["URL"] + path, data, headers, method="POST")) as response:
        return json.load(response)

row = {
    "data_source": "deepscaler", "prompt": [{"content": "What is 40 + 2?", "role": "user"}], "ability": "math",
    "reward_model": {"ground_truth": "42", "style": "rule"}, "extra_info": {"index": 0, "split": "train"}, "trajectory_id": 0,
}
sampling = {"model": "hosted_vllm/tokenizer", "api_key": "mykey", "temperature": 0.6, "top_p": 0.9, "max_iterations": 35}
asked("/add_llm_server", {"address": os.environ["LLM"] + "/v1"})
asked("/start")
print(json.dumps(asked("/process", {"instance": row, "sampling_params": sampling})))
asked("/stop")
"""
SCRIPT = """
- when: ""
  say:
    - '<tool_call>{"name": "ipython", "arguments": {"code": "40 + 2"}}</tool_call>'
    - '<tool_call>{"name": "finish", "arguments": {"answer": "42"}}</tool_call>'
"""


@contextmanager
def scripted_llm(folder: Path, *options: str) -> Iterator[str]:
    """Run the scripted server as ProRL's trainer serves its model; its address."""
    script, port = folder / "script.yaml", free_port()
    script.write_text(SCRIPT)
    words = ["--port", str(port), "--dialect", "prorl", "--script", str(script), *options]
    command = [sys.executable, "-m", "examples.rollouts.scripted_llm", *words]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL) as process:
        address = f"http://127.0.0.1:{port}"
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"{address}/health")
                    break
                except OSError:
                    time.sleep(0.1)
            yield address
        finally:
            process.terminate()


def test_an_agent_of_mathematics_runs_a_cell_and_is_rewarded(tangram, run, tmp_path):
    with scripted_llm(tmp_path) as llm, door(tangram, "prorl", "--task", f"T-{uuid4().hex}") as url:
        done = run(Path(sys.executable), MATH, URL=url, LLM=llm)

    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["resolved"], result["finish"], result["error"]) == (True, True, None), result
    assert result["instance_id"] == "deepscaler_unknown_train_0"
    roles = [message["role"] for message in result["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert result["messages"][2]["tool_calls"] == [
        {"name": "ipython", "arguments": '{"code": "40 + 2"}'}
    ]
    assert "42" in result["messages"][3]["content"]
    last = result["messages"][-1]
    before = [number for message in result["messages"][:-1] for number in message["token_ids"]]
    assert last["input_ids"] == before
    assert len(last["token_ids"]) == len(last["logprobs"])
    assert {tool["function"]["name"] for tool in result["tools"]} == {"ipython", "think", "finish"}


REPEATING = """
import json, os, time, urllib.error, urllib.request

def asked(path, payload=None, method="POST"):
    data = None if payload is None else json.dumps(payload).encode()
    headers = {"Content-Type": "application/json"} if data else {}
    with urllib.request.urlopen(urllib.request.Request(os.environ["URL"] + path, data, headers, method=method)) as response:
        return json.load(response)

asked("/add_llm_server", {"address": os.environ["LLM"]})
asked("/start")
print("started", flush=True)
instance = {"data_source": "math", "instance_id": "m", "problem": "What is 40 + 2?", "answer": "42", "trajectory_id": 0}
body = {"instance": instance, "sampling_params": {"model": "hosted_vllm/tokenizer", "temperature": 0.6, "max_iterations": 35}}
tries = 0
for tries in range(3):
    try:
        result = asked("/process", body)
        break
    except OSError:
        pass
print(json.dumps([tries, result["job_id"], result["resolved"]]))
asked("/stop")
"""


def web_processes(tangram: Tangram) -> list[int]:
    """Return the pids of its web processes."""
    return [
        pid for pid in tangram.descendants()
        if b"tangram_web.asgi" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]  # fmt: skip


def test_a_job_survives_the_kill_of_the_web_process(tangram, tmp_path):
    """The client repeats at once, as the published ones do, and gets the rollout that it had."""
    task = f"T-{uuid4().hex}"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (
        scripted_llm(tmp_path, "--token-seconds", "0.15") as llm,
        door(tangram, "prorl", "--task", task) as url,
        subprocess.Popen(
            [sys.executable, "-c", REPEATING],
            env=environment | {"URL": url, "LLM": llm},
            stdout=subprocess.PIPE,
            text=True,
        ) as client,
    ):
        running: list[str] = []
        while not running:
            live = tangram.get(f"/api/v1/rollouts?task={task}")["items"]
            running = [each["id"] for each in live if each["stage"] == "run" and not each["queued"]]
            time.sleep(0.1)
        for pid in web_processes(tangram):
            os.kill(pid, signal.SIGKILL)
        said, _ = client.communicate(timeout=240)

    tries, job, resolved = json.loads(said.splitlines()[-1])
    assert [job] == running
    assert (tries >= 1, resolved) == (True, True)
