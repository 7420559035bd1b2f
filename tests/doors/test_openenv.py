"""OpenEnv's client plays in a server that runs inside a trajectory, over a forwarded port."""

from __future__ import annotations

import json

SCRIPT = '''
import asyncio, json
from pathlib import Path
from uuid import uuid4
import websockets
from openenv.core import GenericEnvClient
from tangram_client import Client
from tangram_client.integrations.environment import EnvironmentSettings
from tangram_client.integrations.openenv import TangramContainerProvider

SERVER = """
import json, os
from http import HTTPStatus
from websockets.sync.server import serve

def health(connection, request):
    if request.path == "/health":
        return connection.respond(HTTPStatus.OK, "ok")

def play(socket):
    steps = 0
    for text in socket:
        message = json.loads(text)
        if message["type"] == "close":
            break
        if message["type"] == "state":
            reply = {"type": "state", "data": {"steps": steps}}
        else:
            steps = 0 if message["type"] == "reset" else steps + 1
            seen = {"echo": message.get("data", {}), "from": os.environ["FROM"]}
            data = {"observation": seen, "reward": float(steps), "done": steps == 2}
            reply = {"type": "observation", "data": data}
        socket.send(json.dumps(reply))

with serve(play, "0.0.0.0", 8000, process_request=health) as server:
    server.serve_forever()
"""

shown = {}
with Client() as client, client.trajectory(f"openenv-{uuid4().hex}", task="openenv") as seed:
    seed.files.upload_tree(Path(websockets.__file__).parent, "websockets")
    seed.files.write("server.py", SERVER)
    seed.exec("true")
    seed.snapshot(seed.id)

settings = EnvironmentSettings(snapshot=seed.id)
provider = TangramContainerProvider(command="cd /workspace && exec python3 server.py", settings=settings)

async def main():
    env = await GenericEnvClient.from_docker_image("", provider=provider, env_vars={"FROM": "inside"})
    shown["name"] = provider.trajectory
    await env.reset()
    first = await env.step({"move": 1})
    shown["first"] = [first.observation, first.reward, first.done]
    second = await env.step({"move": 2})
    shown["second"] = [second.reward, second.done]
    shown["state"] = await env.state()
    await env.close()

asyncio.run(main())
provider.stop_container()
broken = TangramContainerProvider(command="echo no such module; exit 1", settings=settings)
url = broken.start_container("")
try:
    broken.wait_for_ready(url, timeout_s=2)
except TimeoutError as error:
    shown["broken"] = str(error)
broken.stop_container()
print(json.dumps(shown))
'''


def test_a_server_of_openenv_runs_in_a_trajectory(tangram, sdk, run):
    shown = json.loads(run(sdk("openenv"), SCRIPT).stdout.splitlines()[-1])

    observation, reward, done = shown["first"]
    assert (observation["from"], reward, done) == ("inside", 1.0, False)
    assert "1" in json.dumps(observation["echo"])
    assert (shown["second"], shown["state"]) == ([2.0, True], {"steps": 2})
    assert "no such module" in shown["broken"]
    ended = tangram.ended_trajectory(shown["name"])
    assert ended["state"] == "finished"
