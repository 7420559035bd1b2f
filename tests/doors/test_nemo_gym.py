"""NeMo Gym finds the provider of this client by its entry point and runs its sandbox interface on it."""

from __future__ import annotations

import json

SCRIPT = """
import asyncio, json, sys
from pathlib import Path
from nemo_gym.sandbox import AsyncSandbox, SandboxSpec
from nemo_gym.sandbox.providers import create_provider
from nemo_gym.sandbox.providers.base import SandboxCreateError

async def main():
    shown = {}
    provider = create_provider({"tangram": {"task": "nemo"}})
    spec = SandboxSpec(env={"A": "b"}, files={"seed.txt": "seeded"}, metadata={"sample": "1"})
    handle = await provider.create(spec)
    shown["name"] = handle.sandbox_id
    done = await provider.exec(handle, "cat seed.txt; echo $A; echo bad >&2; exit 3")
    shown["exec"] = [done.stdout, done.stderr, done.return_code, done.error_type]
    Path("local.bin").write_bytes(b"\\0\\xff")
    await provider.upload_file(handle, Path("local.bin"), "/tmp/deep/up.bin")
    await provider.download_file(handle, "/tmp/deep/up.bin", Path("back/down.bin"))
    shown["files"] = Path("back/down.bin").read_bytes() == b"\\0\\xff"
    late = await provider.exec(handle, "echo half; sleep 30", cwd="/tmp", timeout_s=1)
    shown["late"] = [late.stdout, late.return_code, late.error_type]
    shown["before"] = (await provider.status(handle)).value
    await provider.close(handle)
    await provider.close(handle)
    shown["after"] = (await provider.status(handle)).value
    gone = await provider.exec(handle, "true")
    shown["gone"] = [gone.return_code, gone.error_type]
    try:
        await provider.create(SandboxSpec(resources={"gpu": 1}))
    except SandboxCreateError as error:
        shown["gpu"] = str(error)
    await provider.aclose()
    sandbox = AsyncSandbox({"tangram": {"task": "nemo"}}, SandboxSpec())
    await sandbox.start()
    shown["api"] = (await sandbox.exec("echo hello")).stdout
    await sandbox.stop()
    print(json.dumps(shown))

asyncio.run(main())
"""


def test_a_sandbox_of_nemo_gym_is_a_trajectory(tangram, sdk, run):
    shown = json.loads(run(sdk("nemo_gym"), SCRIPT).stdout.splitlines()[-1])

    assert shown["exec"] == ["seededb\n", "bad\n", 3, None]
    assert shown["files"]
    assert shown["late"] == ["half\n", 125, "timeout"]
    assert (shown["before"], shown["after"]) == ("running", "stopped")
    assert shown["gone"] == [125, "sandbox"]
    assert "resources.gpu" in shown["gpu"]
    assert shown["api"] == "hello\n"
    ended = tangram.ended_trajectory(shown["name"])
    assert (ended["state"], ended["task"]) == ("finished", "nemo")
