"""The requests of a trainer of Polar, through ``tangram door polar``, to a whole Tangram; the package is on no index."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from uuid import uuid4

from tests.doors.test_sandboxfusion import door

TRAINER = """
import json, os, sys, time, urllib.error, urllib.request

def ask(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(os.environ["URL"] + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)

def task(name, samples, **settings):
    return {
        "task_id": name, "instruction": "Do nothing.", "num_samples": samples, "timeout_seconds": 120,
        "agent": {"harness": "noop", "model_name": "openai/m", "settings": settings}, "builder": {"strategy": "prefix_merging"},
    }

name = sys.argv[1]
found = [ask("POST", "/rollout/task/submit", task(name, 2, reward=[0.0, 1.0], turns=2))]
found.append(ask("DELETE", f"/rollout/task/{name}-late?register_if_missing=true"))
found.append(ask("POST", "/rollout/task/submit", task(name + "-late", 1)))
while (polled := ask("GET", f"/rollout/task/{name}"))[1]["status"] == "running":
    time.sleep(0.2)
found.append(polled)
long = {**task(name + "-stop", 3, seconds=[0.1, 600, 600], turns=1), "early_stop_min_usable_sessions": 1}
found.append(ask("POST", "/rollout/task/submit", long))
while (polled := ask("GET", f"/rollout/task/{name}-stop"))[1]["status"] == "running":
    time.sleep(0.2)
found.append(polled)
print(json.dumps(found))
"""


def test_a_trainer_submits_polls_deletes_and_stops_early(tangram, run):
    with door(tangram, "polar", "--task", "grpo") as url:
        done = run(Path(sys.executable), TRAINER, f"t-{uuid4().hex}", URL=url)

    made, early, late, polled, _, stopped = json.loads(done.stdout.splitlines()[-1])
    assert (made[0], made[1]["status"]) == (200, "running")
    assert (early[0], early[1]["status"]) == (200, "cancelled")
    assert late[0] == 409
    sessions = polled[1]["results"]
    assert [each["status"] for each in sessions] == ["COMPLETED", "COMPLETED"]
    traces = [trace for each in sessions for trace in each["trajectory"]["traces"]]
    assert [trace["reward"] for trace in traces] == [0.0, 1.0]
    assert all(len(trace["response_ids"]) == len(trace["loss_mask"]) for trace in traces)
    assert [each["status"] for each in stopped[1]["results"]] == ["COMPLETED", "ERROR", "ERROR"]
