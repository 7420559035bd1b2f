"""The rollout server of the paper's Listing 2 with a tmux shell: the rival of the benchmarks of rollouts, run as a process.

    python -m benchmarks.rival_prorl --port 8006 --init 8 --run 32 --eval 8

As printed: a thread-safe queue and a pool of threads for each stage, a heap of backends keyed by the number of jobs in flight, a
timer that counts a stage while a worker has it, the container released before EVAL, jobs that were cancelled passed over.
``--balance paper`` keys the heap by all jobs so far, as the paper's text and not its listing has it. The wire is its Listing 3.

Where the paper leaves a choice, this takes what costs the rival least: the environment is a tmux server with a folder, without any
sandbox; calls keep their connection; nothing is stored. Its shell is OpenHands': a window of 1000 × 1000, keys, and a look at
all of the screen each 0.5 s. A cancel ends a wait for the model or the shell at once.
"""

from __future__ import annotations

import argparse
import heapq
import http.client
import json
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from examples.rollouts.scripted_llm import TOKENIZER
from rollout.tokens.prompts import PromptEncoder
from rollout.tokens.tokenizer import load_tokenizer
from rollout.tokens.tool_calls import read_response

INIT, RUN, EVAL = "init", "run", "eval"
STAGES: Final = (INIT, RUN, EVAL)
NEXT: Final = {INIT: RUN, RUN: EVAL}
POLL_SECONDS: Final = 0.5
BACKEND_SECONDS: Final = 0.05
MAX_TOKENS: Final = 512
_SYSTEM: Final = (
    "You have a shell. Call the tool `bash` for each step, and then say that you are done."
)
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


class Cancelled(Exception):
    """The job was cancelled."""


class PausableTimer:
    """Time of a job in its stages, without queues."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def phase(self, stage: str) -> Iterator[None]:
        """Count meanwhile."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] += time.monotonic() - began


class TypedShell:
    """A shell in tmux, which is typed into and looked at."""

    def __init__(self, cancelled: threading.Event) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rival-"))
        self._cancelled = cancelled
        self._commands = 0
        window = ("-x", "1000", "-y", "1000", "-c", str(self._folder))
        self._tmux("new-session", "-d", "-s", "agent", *window, "bash --norc")

    def run(self, command: str) -> str:
        """Return what the screen shows once the command has ended. Raises Cancelled."""
        self._commands += 1
        mark = f"ended-{self._commands}-"
        keys = f"{command}; echo ended-$(({self._commands}))-$?"
        self._tmux("send-keys", "-t", "agent", keys, "Enter")
        while f"\n{mark}" not in (
            shown := self._tmux("capture-pane", "-p", "-J", "-S", "-", "-t", "agent")
        ):
            if self._cancelled.wait(POLL_SECONDS):
                raise Cancelled
        return shown.rpartition(f"\n{mark}")[2].split("\n", 1)[0]

    def close(self) -> None:
        """End the server and what runs in it; may be repeated."""
        with suppress(subprocess.CalledProcessError):
            self._tmux("kill-server")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-S", str(self._folder / "socket"), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Job:
    """One job."""

    def __init__(self, name: str, instance: dict[str, Any]) -> None:
        self.id, self.instance = name, instance
        self.timer = PausableTimer()
        self.done, self.cancelled = threading.Event(), threading.Event()
        self.results: dict[str, Any] = {}
        self.runtime: TypedShell | None = None
        self.connection: http.client.HTTPConnection | None = None

    def cleanup(self) -> None:
        """Release the environment."""
        runtime, self.runtime = self.runtime, None
        if runtime is not None:
            runtime.close()

    def cancel(self) -> None:
        """End what waits."""
        self.cancelled.set()
        connection = self.connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        self.cleanup()
        self.results[EVAL] = {"cancelled": True}
        self.done.set()


class MinHeap:
    """Backends by their jobs: those in flight, or all so far."""

    def __init__(self, balance: str) -> None:
        self._balance = balance
        self._heap: list[list[Any]] = []
        self._lock = threading.Lock()

    def add(self, address: str) -> None:
        """Add a backend."""
        with self._lock:
            heapq.heappush(self._heap, [0, len(self._heap), address])

    def clear(self) -> None:
        """Remove all."""
        with self._lock:
            self._heap.clear()

    def take(self) -> str | None:
        """Return the backend with the lowest count, which counts one more."""
        with self._lock:
            if not self._heap:
                return None
            count, number, address = self._heap[0]
            heapq.heapreplace(self._heap, [count + 1, number, address])
            return str(address)

    def give_back(self, address: str) -> None:
        """A job of a backend has ended."""
        if self._balance == "paper":
            return
        with self._lock:
            for entry in self._heap:
                if entry[2] == address:
                    entry[0] -= 1
            heapq.heapify(self._heap)


class PlannedHandler:
    """Handler of the benchmarks' plans, as Listing 1 has its methods."""

    def __init__(self, backends: MinHeap) -> None:
        self._backends = backends
        self._encoder = PromptEncoder(
            load_tokenizer(TOKENIZER), at=datetime(2026, 1, 1, tzinfo=UTC)
        )

    def init(self, job: Job) -> dict[str, Any]:
        """Make the environment."""
        job.runtime = TypedShell(job.cancelled)
        job.runtime.run("mkdir -p work")
        return {}

    def run(self, job: Job) -> dict[str, Any]:
        """Run the agent at one backend."""
        while (address := self._backends.take()) is None:
            if job.cancelled.wait(BACKEND_SECONDS):
                raise Cancelled
        try:
            return self._agent(job, address)
        finally:
            self._backends.give_back(address)

    def eval(self, job: Job) -> dict[str, Any]:
        """Return the reward that the plan states."""
        return {"reward": job.instance["reward"], **job.results[RUN]}

    def init_exception(self, job: Job, error: Exception) -> dict[str, Any]:
        """Return what a failed stage leaves."""
        return {"error": f"{type(error).__name__}: {error}"}

    run_exception = eval_exception = init_exception

    def _agent(self, job: Job, address: str) -> dict[str, Any]:
        encoder, seconds = self._encoder, []
        opening = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": job.instance["question"]},
        ]
        ids = encoder.opening(opening, [_TOOL])
        for turn in range(1000):
            sampled = self._sampled(job, address, ids)
            text = encoder.tokenizer.response_text(sampled)
            message = read_response(text, turn).message
            calls = message.get("tool_calls") or []
            if not calls:
                break
            assert job.runtime is not None
            answers = []
            for call in calls:
                began = time.monotonic()
                shown = job.runtime.run(json.loads(call["function"]["arguments"])["command"])
                seconds.append(time.monotonic() - began)
                answers.append({"role": "tool", "tool_call_id": call["id"], "content": shown})
            ids = [*ids, *sampled, *encoder.continuation(sampled, message, answers)]
        return {"tools": len(seconds), "tool_seconds": round(sum(seconds), 3)}

    def _sampled(self, job: Job, address: str, ids: list[int]) -> list[int]:
        if job.connection is None:
            job.connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=600)
        body = json.dumps({"prompt_ids": ids, "max_tokens": MAX_TOKENS})
        job.connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
        answer = json.loads(job.connection.getresponse().read())
        return list(answer["response_ids"])


class RolloutServer:
    """Three pools that drain their queues, as Listing 2."""

    def __init__(self, workers: dict[str, int], balance: str) -> None:
        self.queues: dict[str, queue.Queue[Job]] = {stage: queue.Queue() for stage in STAGES}
        self.backends = MinHeap(balance)
        self.jobs: dict[str, Job] = {}
        self.discarded: set[str] = set()
        self._handler = PlannedHandler(self.backends)
        for stage in STAGES:
            for _ in range(workers[stage]):
                threading.Thread(target=self._worker_loop, args=(stage,), daemon=True).start()

    def process(self, job: Job) -> dict[str, Any]:
        """Run a job, and return its result at its end."""
        self.jobs[job.id] = job
        self.queues[INIT].put(job)
        job.done.wait()
        self.jobs.pop(job.id, None)
        return {**job.results.get(EVAL, {}), "timing": job.timer.seconds}

    def cancel(self, name: str) -> None:
        """Cancel a job, and answer the waiting request."""
        self.discarded.add(name)
        if (job := self.jobs.get(name)) is not None:
            job.cancel()

    def status(self) -> dict[str, Any]:
        """Return the depths of the queues and the jobs."""
        depths = {stage: each.qsize() for stage, each in self.queues.items()}
        running = sum(each.runtime is not None for each in list(self.jobs.values()))
        return {"queues": depths, "jobs": len(self.jobs), "environments": running}

    def _worker_loop(self, stage: str) -> None:
        while True:
            job = self.queues[stage].get()
            if job.id in self.discarded:
                continue
            with job.timer.phase(stage):
                try:
                    result = getattr(self._handler, stage)(job)
                except Exception as error:  # as printed: all that a handler raises
                    result = getattr(self._handler, f"{stage}_exception")(job, error)
            if job.id in self.discarded:
                job.cleanup()
                continue
            job.results[stage] = result
            if stage == RUN:
                job.cleanup()
            if stage != EVAL:
                self.queues[NEXT[stage]].put(job)
            else:
                job.done.set()


def _handler_of(server: RolloutServer) -> type[BaseHTTPRequestHandler]:
    def process(body: dict[str, Any]) -> dict[str, Any]:
        return server.process(Job(str(body["job_id"]), body["instance"]))

    def add(body: dict[str, Any]) -> dict[str, Any]:
        server.backends.add(str(body["address"]))
        return {}

    def clear(_: dict[str, Any]) -> dict[str, Any]:
        server.backends.clear()
        return {}

    def cancel(body: dict[str, Any]) -> dict[str, Any]:
        server.cancel(str(body["job_id"]))
        return {}

    paths: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "/process": process,
        "/add_llm_server": add,
        "/clear_llm_server": clear,
        "/cancel": cancel,
        "/status": lambda _: server.status(),
    }

    class Requests(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            answer = json.dumps(paths[self.path](body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST  # noqa: N815 (the name that the library calls)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Requests


class _HttpServer(ThreadingHTTPServer):
    request_queue_size = 2048
    daemon_threads = True


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    for stage, count in ((INIT, 8), (RUN, 32), (EVAL, 8)):
        parser.add_argument(f"--{stage}", type=int, default=count)
    parser.add_argument("--balance", choices=("in_flight", "paper"), default="in_flight")
    options = parser.parse_args()
    workers = {stage: int(getattr(options, stage)) for stage in STAGES}
    server = RolloutServer(workers, options.balance)
    _HttpServer(("127.0.0.1", options.port), _handler_of(server)).serve_forever()


if __name__ == "__main__":
    main()
