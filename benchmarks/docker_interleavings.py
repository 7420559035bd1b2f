"""docker_interleavings: random lives of trajectories on a real engine, which must leave nothing.

The moves of `tests.conformance.containers.interleavings` (create, act, cancel, give up, finish under a
running action), many times over; it fails when a container, a directory or a core is left. Needs root,
dockerd and mmdebstrap.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.record import store
from managers.cpu.containers import container_config
from tests.conformance.containers.conftest import a_driver
from tests.conformance.containers.interleavings import Lives
from tests.docker_engine import DockerEngine


async def play(
    engine: DockerEngine, way: str, moves: int, at_once: int, seed: int
) -> dict[str, Any]:
    """Play so many moves; return what was made and what came of it. Fails when anything is left."""
    with tempfile.TemporaryDirectory() as directory:
        driver = a_driver(engine, Path(directory), way)
        await driver.open()
        lives = Lives(driver, seed)
        began = time.monotonic()
        await lives.play(moves, at_once)
        seconds = time.monotonic() - began
        owner, held = driver.owner, lives.ledger.holders()
        await driver.close()
        with engine.client() as client:
            filters = {"label": f"{container_config.OWNER}={owner}"}
            left = client.containers(all=True, filters=filters)
        if left or held:
            raise SystemExit(f"left behind: {left} {held}")
    return {
        "moves": moves,
        "at_once": at_once,
        "seed": seed,
        "seconds": round(seconds, 1),
        "made": dict(sorted(lives.made.items())),
        "outcomes": dict(sorted(lives.outcomes.items())),
        "containers_left": len(left),
        "cores_left": len(held),
    }


def main() -> None:
    """Play, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--way", choices=("direct", "api"), default="direct")
    options = parser.parse_args()
    engine = DockerEngine().start()
    try:
        engine.load_image()
        body = asyncio.run(play(engine, options.way, options.moves, options.at_once, options.seed))
    finally:
        engine.stop()
    print(body)
    print(store("docker_interleavings", {"way": options.way, **body}))


if __name__ == "__main__":
    main()
