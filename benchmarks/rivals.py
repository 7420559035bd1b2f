"""The rivals, each used the way that is best for it: tasks that do nothing, submitted and awaited.

Celery: Redis as broker and result backend, every pool it ships that needs no patching; clients are
threads, as Celery has no asynchronous client. Ray: tasks on a local cluster, 64 in flight.
Ray is heavy, so it lives in a virtual environment of its own, made on demand.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.load import Load

RAY = "ray==2.60.0"
RAY_HOME = Path(__file__).resolve().parent.parent / ".venv-ray"
POOLS = ("solo", "threads", "prefork")


@contextmanager
def redis_server() -> Iterator[str]:
    """Start a private Redis with the settings that Celery users have; yield its socket."""
    from tangram_web.supervisor.redis_server import wheel_binary

    with tempfile.TemporaryDirectory(prefix="rival-") as directory:
        path = f"{directory}/redis.sock"
        server = subprocess.Popen(
            [
                shutil.which("redis-server") or str(wheel_binary()),
                "--port",
                "0",
                "--unixsocket",
                path,
                "--save",
                "",
            ],
            stdout=subprocess.DEVNULL,
        )
        while not Path(path).exists():
            time.sleep(0.02)
        try:
            yield path
        finally:
            server.terminate()
            server.wait()


def celery(pool: str, clients: int, seconds: float) -> Load:
    """Measure Celery with one worker of ``pool``."""
    with redis_server() as socket:
        os.environ["RIVAL_REDIS"] = socket
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "benchmarks.rival_celery", "worker"),
                *("-P", pool, "-c", "2" if pool == "prefork" else "8"),
                *("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR"),
            ],
            env={**os.environ, "RIVAL_REDIS": socket},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            from benchmarks.rival_celery import app, noop

            app.conf.update(
                broker_url=f"redis+socket://{socket}", result_backend=f"redis+socket://{socket}"
            )
            noop.delay().get(timeout=60)
            return _threads(clients, seconds, lambda: noop.delay().get(timeout=60))
        finally:
            worker.terminate()
            worker.wait()


def _threads(clients: int, seconds: float, call: object) -> Load:
    load = Load()
    until = time.perf_counter() + seconds

    def client() -> None:
        while (began := time.perf_counter()) < until:
            call()  # type: ignore[operator]
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
