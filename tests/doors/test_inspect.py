"""Inspect finds the sandbox of this client by its entry point, and its own self_check passes in it."""

from __future__ import annotations

import json

import pytest

EVALUATION = """
import json
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import solver
from inspect_ai.util import sandbox

@solver
def works():
    async def solve(state, generate):
        box = sandbox()
        await box.write_file("notes/a.txt", "one\\ntwo\\n")
        done = await box.exec(["wc", "-l", "a.txt"], cwd="notes", input=None)
        state.metadata["name"] = (await box.connection()).container
        state.output.completion = done.stdout
        return state
    return solve

task = Task([Sample("q", target="2 a.txt")], solver=works(), scorer=includes(), sandbox="tangram")
log = eval(task, model="mockllm/model", display="none")[0]
assert log.status == "success", log.error
sample = log.samples[0]
print(json.dumps([sample.scores["includes"].value, sample.metadata["name"]]))
"""

SELF_CHECK = """
import asyncio, json, traceback
from inspect_ai.util._sandbox import self_check
from tangram_client.integrations.inspect import TangramSandboxEnvironment as Sandbox

async def check(function, box):
    try:
        await function(box)
    except BaseException as error:
        return repr(error)[:2000]

async def main():
    boxes = await Sandbox.sample_init("self_check", None, {})
    box = boxes["default"]
    results = {}
    for name in self_check.__all__:
        results[name] = await check(getattr(self_check, name), box)
    await Sandbox.sample_cleanup("self_check", None, boxes, False)
    print(json.dumps(results))

asyncio.run(main())
"""

#: What cannot pass without an image, and why.
BY_NATURE = {
    "test_exec_as_user": "root of an environment without an image has no right to make users",
}


def test_a_sample_runs_in_a_trajectory_that_ends_with_it(tangram, sdk, run):
    done = run(sdk("inspect"), EVALUATION)

    score, trajectory = json.loads(done.stdout.splitlines()[-1])
    shown = tangram.ended_trajectory(trajectory)
    assert (score, shown["state"]) == ("C", "finished")


@pytest.mark.long
def test_the_self_check_of_inspect_passes(sdk, run):
    done = run(sdk("inspect"), SELF_CHECK, seconds=600)

    results = json.loads(done.stdout.splitlines()[-1])
    failed = {name: why for name, why in results.items() if why is not None}
    assert len(results) == 44
    assert failed.keys() <= BY_NATURE.keys(), failed
