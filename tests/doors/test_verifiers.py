"""The E2B runtime of verifiers, unmodified, runs its programs in trajectories."""

from __future__ import annotations

import json

import pytest

SCRIPT = """
import asyncio, json
from tangram_client.integrations.e2b import use_tangram
use_tangram()
from verifiers.v1.runtimes.e2b import E2BConfig, E2BRuntime

async def main():
    runtime = E2BRuntime(E2BConfig(image="verifiers-task:1", cpu=1, memory=0.25))
    await runtime.start()
    shown = {"name": runtime.info.id}
    done = await runtime.run(["sh", "-c", "echo $A; echo bad >&2; exit 3"], {"A": "b"})
    shown["run"] = [done.stdout, done.stderr, done.exit_code]
    done = await runtime.run_program(["sh", "-c", "echo made >made; cat made"], {})
    shown["program"] = [done.stdout, done.exit_code]
    await runtime.stop()
    print(json.dumps(shown))

asyncio.run(main())
"""


@pytest.mark.long
def test_a_runtime_of_verifiers_is_a_trajectory(tangram, store_image, sdk, run):
    store_image("verifiers-task:1")

    shown = json.loads(run(sdk("verifiers"), SCRIPT).stdout.splitlines()[-1])

    assert shown["run"] == ["b\n", "bad\n", 3]
    assert shown["program"] == ["made\n", 0]
    ended = tangram.ended_trajectory(shown["name"])
    assert ended["state"] == "finished"
