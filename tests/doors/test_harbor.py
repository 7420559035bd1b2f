"""Harbor runs a task in a trajectory: uploads, solution, tests and reward."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

IMAGE = "harbor-task:1"
TASK = {
    "task.toml": f"""
version = "1.0"
[environment]
docker_image = "{IMAGE}"
cpus = 1
memory_mb = 256
workdir = "/srv"
""",
    "instruction.md": "Copy the seed to /srv/made.",
    "environment/seed.txt": "ok\n",
    "solution/solve.sh": "#!/bin/bash\ncat /srv/seed.txt > /srv/made\n",
    "tests/test.sh": """#!/bin/bash
if [ "$(cat /srv/made)" = ok ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
""",
}
RUN = """
import sys
from harbor.cli.main import app
sys.argv = ["harbor", "run", "-p", "task", "-a", sys.argv[1], "-o", "jobs", "--env",
            "tangram_client.integrations.harbor:TangramEnvironment"]
app()
"""
INTERFACE = """
import asyncio, json, logging
from pathlib import Path
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths
from tangram_client.integrations.harbor import TangramEnvironment

async def main():
    shown = {}
    paths = TrialPaths(Path("trial"))
    environment = TangramEnvironment(
        Path("task/environment"), "task", "task__a__env", paths,
        EnvironmentConfig(docker_image="harbor-task:1", workdir="/srv"))
    await environment.start(force_build=False)
    done = await environment.exec("echo out; echo bad >&2; exit 4", env={"A": "b"})
    shown["exec"] = [done.stdout, done.stderr, done.return_code]
    shown["user"] = (await environment.exec("id -u; echo $HOME", user="agent")).stdout
    try:
        await environment.exec("sleep 30", timeout_sec=1)
    except RuntimeError as error:
        shown["late"] = str(error)
    Path("up/deep").mkdir(parents=True)
    Path("up/deep/a.txt").write_text("a")
    await environment.upload_dir(Path("up"), "/srv/dir")
    await environment.download_dir("/srv/dir", Path("down"))
    shown["files"] = Path("down/deep/a.txt").read_text()
    name = environment._opened.name
    await environment.stop(delete=True)
    shown["name"] = name
    print(json.dumps(shown))

asyncio.run(main())
"""


@pytest.fixture
def task(store_image, tmp_path: Path) -> Path:
    """Write a task whose image is on the node."""
    store_image(IMAGE)
    for name, text in TASK.items():
        path = tmp_path / "task" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "task"


def rewards(folder: Path) -> list[float]:
    found = folder.glob("jobs/*/*/verifier/reward.txt")
    return [float(path.read_text()) for path in found]


@pytest.mark.parametrize(
    ("agent", "reward"), [("oracle", 1.0), pytest.param("nop", 0.0, marks=pytest.mark.long)]
)
def test_a_trial_is_solved_and_verified_in_a_trajectory(agent, reward, task, sdk, run):
    run(sdk("harbor"), RUN, agent, LITELLM_LOCAL_MODEL_COST_MAP="True")

    assert rewards(task.parent) == [reward]


def test_an_environment_of_harbor_has_users_time_outs_and_trees(tangram, task, sdk, run):
    shown = json.loads(run(sdk("harbor"), INTERFACE).stdout.splitlines()[-1])

    assert shown["exec"] == ["out\n", "bad\n", 4]
    assert shown["user"] == "1000\n/srv/agent\n"
    assert "timed out after 1 seconds" in shown["late"]
    assert shown["files"] == "a"
    ended = tangram.ended_trajectory(shown["name"])
    assert ended["state"] == "finished"
