"""Actors of Ray act through one client in each process."""

from __future__ import annotations

import json

import pytest

SCRIPT = """
import json
import ray
from tangram_client.integrations.ray import ProcessClient, runtime_env

ray.init(num_cpus=2, include_dashboard=False, runtime_env=runtime_env(), log_to_driver=False)

@ray.remote(num_cpus=0)
class Rollout:
    def __init__(self, access):
        self.access = access

    def act(self, name):
        with self.access.trajectory(name, task="ray") as environment:
            done = environment.exec("echo $((6 * 7))", cpu=0.1)
        return done.stdout, self.access.client is ProcessClient().client

    def leave(self, name):
        self.access.client.open_trajectory(name, task="ray")

actors = [Rollout.remote(ProcessClient()) for _ in range(2)]
acted = ray.get([actor.act.remote(f"ray-{n}") for n, actor in enumerate(actors)])
ray.get(actors[0].leave.remote("ray-left"))
ray.kill(actors[0])
ProcessClient().finish("ray-left")
ProcessClient().finish("ray-never-opened")
print(json.dumps(acted))
"""


@pytest.mark.long
def test_actors_share_the_client_of_their_process(tangram, sdk, run):
    acted = json.loads(run(sdk("ray"), SCRIPT).stdout.splitlines()[-1])

    assert acted == [["42\n", True], ["42\n", True]]
    assert tangram.ended_trajectory("ray-left")["state"] == "finished"
