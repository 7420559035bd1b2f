"""The rivals, each used the way that is best for it: tasks that do nothing, submitted and awaited.

Celery: Redis as broker and result backend, every pool it ships that needs no patching; clients are
threads, as Celery has no asynchronous client. Ray: tasks on a local cluster, 64 in flight.
Ray is heavy, so it lives in a virtual environment of its own, made on demand.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable
from functools import cache
from pathlib import Path

from benchmarks.load import Load

RAY = "ray==2.60.0"
RAY_HOME = Path(__file__).resolve().parent.parent / ".venv-ray"
POOLS = ("solo", "threads", "prefork")


@cache
def redis_socket() -> str:
    """Start a private Redis with the settings that Celery users have; return its socket.

    One server for all pools: Celery's result backend keeps the first address it was given.
    """
    from tangram_web.supervisor.redis_server import wheel_binary

    directory = tempfile.mkdtemp(prefix="rival-")
    path = f"{directory}/redis.sock"
    binary = shutil.which("redis-server") or str(wheel_binary())
    server = subprocess.Popen(
        [binary, "--port", "0", "--unixsocket", path, "--save", ""], stdout=subprocess.DEVNULL
    )
    while not Path(path).exists():
        time.sleep(0.02)

    def stop() -> None:
        server.terminate()
        server.wait()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(stop)
    return path


def celery(pool: str, clients: int, seconds: float) -> Load:
    """Measure Celery with one worker of ``pool``."""
    socket = redis_socket()
    os.environ["RIVAL_REDIS"] = socket
    worker = subprocess.Popen(
        [
            *(sys.executable, "-m", "celery", "-A", "benchmarks.rival_celery", "worker"),
            *("-P", pool, "-c", "2" if pool == "prefork" else "8"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        from benchmarks.rival_celery import noop

        noop.delay().get(timeout=60)
        return _threads(clients, seconds, lambda: noop.delay().get(timeout=60))
    finally:
        worker.terminate()
        worker.wait()


def _threads(clients: int, seconds: float, call: Callable[[], object]) -> Load:
    load = Load()
    until = time.perf_counter() + seconds

    def client() -> None:
        while (began := time.perf_counter()) < until:
            call()
            load.latencies.append(time.perf_counter() - began)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    load.seconds = time.perf_counter() - began
    return load


def ray(clients: int, seconds: float) -> Load:
    """Measure Ray tasks, ``clients`` in flight."""
    python = RAY_HOME / "bin" / "python"
    if not python.exists():
        venv.create(RAY_HOME, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", RAY], check=True)
    script = Path(__file__).with_name("rival_ray.py")
    output = subprocess.run(
        [str(python), str(script), str(clients), str(seconds)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    measured = json.loads(output.splitlines()[-1])
    return Load(measured["seconds"], measured["latencies"])
