"""The engines of a run: servers that sample with the newest weights, known to Tangram as a fleet or as backends.

An engine is `examples.tensor_parallel.server` on one or more ranks, each with a limit of memory that the kernel enforces.

Lifetimes: engines run from `start` until `close`, and end with the trainer. One that ends by itself is started again within a second, with the
weights of the newest checkpoint. `divide` ends all and starts them on another number of ranks, at the same addresses.

`FleetEngines` declares them as the workers of a fleet: placement chooses the worker and the turn of each generation. `BackendEngines`
registers them in a pool, where a rollout takes the free seat that it finds.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from examples.agent_training.checkpoints import WEIGHTS, Checkpoint, CheckpointStore
from examples.agent_training.rank_group import ROOT, TORCH_PYTHON
from examples.agent_training.training_options import TrainingOptions
from tangram_client import Client
from tangram_client._calls import apply_config
from tangram_client.context import find_context

_START_SECONDS: Final = 120.0
_PUSH_SECONDS: Final = 120.0
_END_SECONDS: Final = 10.0


class EngineFailed(Exception):
    """An engine does not start, or does not take weights."""


class EngineProcesses:
    """The processes of all engines, each at a port of its own that it keeps, and each divided over as many ranks."""

    def __init__(self, options: TrainingOptions, *, python: str = TORCH_PYTHON) -> None:
        self._options, self._python = options, python
        self._store = CheckpointStore(options.folder)
        self._ports = [_free_port() for _ in range(options.engines)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._closed = threading.Event()
        self._lock = threading.Lock()
        #: Ranks of each engine.
        self.degree = 1
        #: Times that an engine was started again after it had ended by itself.
        self.restarts = 0

    @property
    def addresses(self) -> list[str]:
        """Their addresses, without a path."""
        return [f"http://127.0.0.1:{port}" for port in self._ports]

    def start(self) -> None:
        """Start all, and return once they have weights. Raises EngineFailed."""
        with self._lock:
            for port in self._ports:
                self._start(port)
        threading.Thread(target=self._watch, daemon=True, name="engines").start()
        self._await_all()

    def divide(self, degree: int) -> float:
        """Start all again on ``degree`` ranks each; return the seconds until all answer. Raises EngineFailed."""
        began = time.monotonic()
        with self._lock:
            self._end_all()
            self.degree = degree
            for port in self._ports:
                self._start(port)
        self._await_all()
        return time.monotonic() - began

    def close(self) -> None:
        """End all."""
        self._closed.set()
        with self._lock:
            self._end_all()

    def push(self, checkpoint: Checkpoint) -> None:
        """Have all read a checkpoint; one that is starting reads the newest by itself. Raises EngineFailed."""
        weights = str(checkpoint.folder / WEIGHTS)
        for address in self.addresses:
            until = time.monotonic() + _PUSH_SECONDS
            while (version := _pushed(address, checkpoint.step, weights)) != checkpoint.step:
                if time.monotonic() > until:
                    raise EngineFailed(f"{address} has version {version}, not {checkpoint.step}")
                time.sleep(0.1)

    def _end_all(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdin is not None
            process.stdin.close()
        self._processes = {}

    def _start(self, port: int) -> None:
        newest = self._store.newest()
        if newest is None:
            raise EngineFailed(f"{self._store.folder} has no weights to sample with")
        logs = self._options.folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        command = [
            self._python, "-m", "examples.tensor_parallel.server", "--port", str(port), "--gpus", str(self.degree),
            "--memory-bytes", str(self._options.rank_memory_bytes), "--weights", str(newest.folder / WEIGHTS),
            "--until-input-ends",
        ]  # fmt: skip
        with (logs / f"engine-{port}.log").open("ab") as log:
            self._processes[port] = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip

    def _watch(self) -> None:
        while not self._closed.wait(0.5):
            with self._lock:
                ended = [port for port, each in self._processes.items() if each.poll() is not None]
                for port in ended if not self._closed.is_set() else ():
                    self.restarts += 1
                    self._start(port)

    def _await_all(self) -> None:
        until = time.monotonic() + _START_SECONDS
        for address in self.addresses:
            while not _answers(address):
                if time.monotonic() > until:
                    raise EngineFailed(f"{address} does not start: see {self._options.folder / 'logs'}; it needs {self._python} with PyTorch (apt-get install python3-torch)")  # fmt: skip
                time.sleep(0.1)


class FleetEngines:
    """The engines as the workers of a fleet."""

    def __init__(self, client: Client, options: TrainingOptions, engines: EngineProcesses) -> None:
        self._client, self._name, self._engines = client, options.name, engines
        self._slots = options.slots
        self.llm = f"fleet:{options.name}"

    @property
    def doors(self) -> list[tuple[str, dict[str, str]]]:
        """Where agents of the trainer's own sample: the OpenAI door, which routes by trajectory."""
        token = find_context().token
        return [(self._client.url, {"Authorization": f"Bearer {token}"})]

    def register(self) -> None:
        """Declare the fleet with its workers and their degree, in place of what was declared before."""
        workers = [
            {
                "name": f"engine-{number}",
                "url": address,
                "slots": self._slots,
                "degree": self._engines.degree,
            }
            for number, address in enumerate(self._engines.addresses)
        ]
        spec = {"engine": "torch", "workers": workers}
        apply(self._client, "Fleet", self._name, spec)

    def push(self, checkpoint: Checkpoint) -> None:
        """Have the workers read a checkpoint: no rollout of the run is sampled meanwhile."""
        self._engines.push(checkpoint)


class BackendEngines:
    """The engines as registered backends."""

    def __init__(self, client: Client, options: TrainingOptions, engines: EngineProcesses) -> None:
        self._client, self._engines = client, engines
        self._slots = options.slots
        self.llm = options.name

    @property
    def doors(self) -> list[tuple[str, dict[str, str]]]:
        """Where agents of the trainer's own sample: the engines, in turn."""
        return [(address, {}) for address in self._engines.addresses]

    def register(self) -> None:
        """Register the engines, in place of others of the pool."""
        addresses = self._engines.addresses
        self._client.backends.replace(self.llm, addresses, seats=self._slots, dialect="openai")

    def push(self, checkpoint: Checkpoint) -> None:
        """Have the engines read a checkpoint, as the next weights version of the pool."""
        self._engines.push(checkpoint)
        self.register()


def apply(client: Client, kind: str, name: str, spec: Mapping[str, Any]) -> None:
    """Apply one document of the configuration."""
    document = {"apiVersion": "tangram/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    client.send(apply_config(json.dumps(document)))


def post(url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a request, whatever its status is. Raises OSError."""
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=_PUSH_SECONDS) as response:
            answer: dict[str, Any] = json.load(response)
    except HTTPError as refused:
        with refused:
            answer = json.loads(refused.read() or b"{}")
    return answer


def total_of(addresses: Sequence[str], name: str) -> float:
    """Return the sum of a number of the engines' states; engines that do not answer count 0."""
    total = 0.0
    for address in addresses:
        try:
            with urlopen(f"{address}/tangram/state", timeout=5) as response:
                total += float(json.load(response).get(name) or 0.0)
        except (OSError, HTTPException):
            continue
    return total


def _pushed(address: str, version: int, weights: str) -> int | None:
    """Have an engine read weights; return its version, None while it is being started again."""
    try:
        answer = post(f"{address}/tangram/weights", {"weights_version": version, "source": weights})
    except (OSError, HTTPException):
        return None
    found: int | None = answer.get("weights_version")
    return found


def _answers(address: str) -> bool:
    try:
        with urlopen(f"{address}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):
        return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
