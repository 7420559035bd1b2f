"""grpo: a loop as trainers of coding agents run it, on this checkout and on an earlier one, in turns of one run.

Trajectories begin together in groups, up to 64 at once. Each looks around, writes a file, runs a few light
commands, and ends with a test that is its reward; the slowest of each group is cancelled as a straggler. Target:
the wall time is at most 0.7 × that of commit 3cd0738, in which environments did not outlive their commands. The
other checkout needs a `.venv` (``./tangram lint`` makes one).
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.record import store

ROOT: Final = Path(__file__).resolve().parents[1]
#: Runs in the folder of a checkout, over the native API that both versions have.
LOOP: Final = r"""
import asyncio, json, sys, time
import httpx
from benchmarks.stack import tangram

GROUP, AT_ONCE = 8, 64
TEST = "import unittest, time\nclass T(unittest.TestCase):\n  def test_sum(self):\n    self.assertEqual(sum(range(3_000_000)), 4499998500000)\n"

async def act(client, name, command, **more):
    body = {"task": "grpo", "kind": "exec", "trajectory": name, "cost": {"cpu": 0.1}, "exec": {"command": command}, **more}
    answer = await client.post("/api/v1/actions?wait=60", json=body)
    view = answer.json()
    while view.get("outcome") is None:
        view = (await client.get(f"/api/v1/actions/{view['id']}?wait=60")).json()
    return view["outcome"]

async def trajectory(client, name, gate, outcomes):
    async with gate:
        outcomes.append(await act(client, name, ["sh", "-c", "ls -la; uname -a"]))
        answer = await client.put(f"/api/v1/trajectories/{name}/files/test_it.py", content=TEST)
        answer.raise_for_status()
        for command in ("wc -l test_it.py", "grep -n sum test_it.py; sleep 0.02"):
            outcomes.append(await act(client, name, ["sh", "-c", command]))
        reward = {"cost": {"cpu": [1, 2]}, "reward": {"from": "exit_code"}}
        outcomes.append(await act(client, name, ["python3", "-m", "unittest", "-q", "test_it"], **reward))

async def straggler(client, name, gate):
    async with gate:
        body = {"task": "grpo", "kind": "exec", "trajectory": name, "cost": {"cpu": 0.1}, "exec": {"command": ["sleep", "60"]}}
        made = (await client.post("/api/v1/actions", json=body)).json()
        await asyncio.sleep(0.2)
        await client.post(f"/api/v1/actions/{made['id']}/cancel")

async def loop(stack, count):
    headers = {"Authorization": f"Bearer {stack.token}"}
    limits = httpx.Limits(max_connections=AT_ONCE + 8)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{stack.port}", headers=headers, limits=limits, timeout=300) as client:
        gate, outcomes = asyncio.Semaphore(AT_ONCE), []
        await trajectory(client, "warm-up", gate, [])
        begun = time.monotonic()
        work = [trajectory(client, f"g{n // GROUP}-{n % GROUP}", gate, outcomes) for n in range(count)]
        work += [straggler(client, f"s{n}", gate) for n in range(count // 100)]
        await asyncio.gather(*work)
        return {"seconds": round(time.monotonic() - begun, 2), "actions": len(outcomes), "completed": outcomes.count("completed")}

with tangram() as stack:
    print(json.dumps(asyncio.run(loop(stack, int(sys.argv[1])))))
"""


def _measure(checkout: Path, count: int) -> dict[str, Any]:
    python = checkout / ".venv" / "bin" / "python"
    command = [str(python), "-c", LOOP, str(count)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def main() -> None:
    """Measure both in turn, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--trajectories", type=int, default=200)
    parser.add_argument("--commit", default="3cd0738", help="commit of the other checkout")
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, Any]]] = {"other": [], "this": []}
    for _ in range(options.rounds):
        for name, checkout in (("other", options.other.resolve()), ("this", ROOT)):
            rounds[name].append(_measure(checkout, options.trajectories))
            print(name, rounds[name][-1], flush=True)
    seconds = {name: median(row["seconds"] for row in rows) for name, rows in rounds.items()}
    ratio = round(seconds["this"] / seconds["other"], 3)
    print(f"this ÷ other: {ratio}")
    body = {"other": options.commit, "rounds": rounds, "seconds": seconds, "this ÷ other": ratio}
    print("stored in", store("grpo", body))


if __name__ == "__main__":
    main()
