"""A jobs worker that is killed in the middle of a job: the job runs again, its effect happens once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from threading import Event, Thread
from typing import Any

import psutil
import pytest

from tangram_web.supervisor import stack
from tests.faults.system import System

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WITHIN_SECONDS = 240.0
PREPARE = """
from tangram_web.lib.sealing import seal
from tangram_web.webhooks.models import PURPOSE, Endpoint, Delivery
from tangram_web.webhooks.signing import new_secret
from tangram_web.simulations.models import Simulation
from simulator.request import read_request
from django.utils import timezone
import msgspec
made = Endpoint.objects.create(project_id="default", url="{url}", events=["node.lost"],
                               secret=seal(new_secret(), PURPOSE))
Delivery.objects.create(message_id="msg_1", endpoint=made, event="node.lost", subject="node/n1",
                        body="{{}}", next_at=timezone.now())
asked = read_request({{"workload": "ai-coding", "policies": ["paper"], "seeds": [0],
                       "batch": 512, "steps": 1, "nodes": 1, "cores": 4, "rewards": "heavy"}})
Simulation.objects.create(project_id="default", request=msgspec.to_builtins(asked))
"""


@pytest.fixture
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    system = System(
        tmp_path_factory.mktemp("j"), jobs=True, environment={"TANGRAM_WEBHOOKS_LOOPBACK": "1"}
    )
    yield system
    system.stop()


@contextmanager
def receiver(answers: Event) -> Iterator[tuple[str, Queue[str]]]:
    """A server that answers once ``answers`` is set; its URL and the ids that it received."""
    received: Queue[str] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            received.put(self.headers["webhook-id"])
            answers.wait()
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Keep the output of the tests clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", received
    finally:
        answers.set()
        server.shutdown()
        server.server_close()


def rows(system: System, statement: str) -> list[Any]:
    path = system.home.path / "tangram.sqlite3"
    with sqlite3.connect(path, timeout=120) as database:
        return database.execute(statement).fetchall()


def prepare(system: System, url: str) -> None:
    """Store a delivery that is due and a simulation that is queued."""
    subprocess.run(
        [sys.executable, "manage.py", "shell", "-c", PREPARE.format(url=url)],
        cwd=stack.ROOT, env={**os.environ, **system.environment}, check=True,
    )  # fmt: skip


def until(check: Callable[[], bool], system: System) -> None:
    deadline = time.monotonic() + WITHIN_SECONDS
    while not check():
        assert time.monotonic() < deadline, system.tails()
        time.sleep(0.1)


def test_a_delivery_and_a_simulation_survive_the_death_of_their_worker(system: System) -> None:
    """1. A receiver hangs and a simulation runs. 2. The worker is killed. 3. Another one starts."""
    answers = Event()
    with receiver(answers) as (url, received):
        system.start_only()
        prepare(system, url)
        worker = system["jobs"]
        worker.start()
        assert received.get(timeout=WITHIN_SECONDS) == "msg_1"
        state = "select state, attempts from simulations_simulation"
        until(lambda: rows(system, state) == [("running", 1)], system)
        children = psutil.Process(worker.pid).children(recursive=True)

        worker.kill()

        psutil.wait_procs(children, timeout=WITHIN_SECONDS)
        assert not any(each.is_running() for each in children)
        answers.set()
        # Instead of waiting for a minute: the claims of the dead worker have expired.
        rows(system, "update webhooks_delivery set next_at = '2020-01-01 00:00:00'")
        rows(system, "update simulations_simulation set alive_at = '2020-01-01 00:00:00'")
        worker.start()
        assert received.get(timeout=WITHIN_SECONDS) == "msg_1"
        delivery = "select state, attempts from webhooks_delivery"
        until(lambda: rows(system, delivery) == [("delivered", 1)], system)
        until(lambda: rows(system, state) == [("finished", 2)], system)
        assert received.empty()


def test_a_delivery_is_sent_after_redis_was_away(system: System) -> None:
    answers = Event()
    answers.set()
    with receiver(answers) as (url, received):
        system.start_only("jobs")
        with system.client() as client:
            until(lambda: client.hexists(system.keys.job_runs, "webhooks.maintain"), system)

        system["redis"].kill()
        system["redis"].start()
        prepare(system, url)

        assert received.get(timeout=WITHIN_SECONDS) == "msg_1"
        assert system["jobs"].alive


def test_a_worker_that_is_asked_to_end_gives_its_simulation_back(system: System) -> None:
    system.start_only()
    prepare(system, "https://192.0.2.1/")
    worker = system["jobs"]
    worker.start()
    state = "select state from simulations_simulation"
    until(lambda: rows(system, state) == [("running",)], system)
    began = time.monotonic()

    worker.signal(signal.SIGTERM)
    worker.wait()

    assert time.monotonic() - began < 60.0
    assert rows(system, state) == [("queued",)]
