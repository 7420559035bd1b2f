"""Train a small model by reinforcement learning with Tangram's rollouts, on a CPU.

    ./tangram up                                             # in another terminal
    python -m examples.rollouts.train math                   # or code; stem after: tangram apply examples/rollouts/elements.yaml

The model imitates a teacher that errs in half of the cases (`small_model.tasks`), then DAPO improves it: rollouts of 8 samples, batches of
prompts whose rewards differ, one step, and the next weights version. What is printed is the share of right answers on a fixed
set of instances, before and after. It is a small model and a small task; the loop is that of a large one.

Needs Debian's ``python3-torch``; with ``libopenblas0-pthread`` it is ten times as fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import click
import uvicorn

from examples.rollouts.demo import TOKENIZER_NAME, place_tokenizer
from examples.rollouts.scripted_llm import ScriptedModel, Served
from examples.rollouts.small_model.tasks import SEARCH_PORT, TASKS, Task, found_of
from tangram_client import Client
from tangram_client.dapo import Dapo, PromptGroup

ROOT: Final = Path(__file__).resolve().parents[2]
SAMPLES: Final = 8
#: Instances that measure. The tasks are so small that training has most of them as well.
_MEASURED: Final = 128
_IMITATED_AT_ONCE: Final = 128
_IMITATION_RATE: Final = 4e-3
#: Prompts of one step that are tried for each that trains.
_TRIED: Final = 8
_START_SECONDS: Final = 120.0
_HTTP_SECONDS: Final = 300.0


class SmallModel:
    """The server of the small model, a process of its own."""

    def __init__(self, port: int, threads: int) -> None:
        command = [
            "/usr/bin/python3",
            "-m",
            "examples.rollouts.small_model.server",
            "--port",
            str(port),
        ]
        self.address = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen([*command, "--threads", str(threads)], cwd=ROOT)
        self._wait()

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request."""
        headers = {"Content-Type": "application/json"}
        request = Request(self.address + path, json.dumps(body).encode(), headers)
        with urlopen(request, timeout=_HTTP_SECONDS) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), urlopen(f"{self.address}/health", timeout=5):
                return
            time.sleep(0.1)
        self.close()
        raise click.ClickException(
            "the small model does not start: it needs /usr/bin/python3 with PyTorch (apt-get install python3-torch)"
        )


@contextlib.contextmanager
def teacher(task: Task, seed: int) -> Iterator[str]:
    """Serve the teacher of a task; yield its address."""

    def reply(last: str, turn: int) -> str:
        return task.teacher(last, turn, random.Random(f"{seed} {next(calls)}"))

    calls = iter(range(10**9))
    served = Served(ScriptedModel(reply, odd_share=0.0), "prorl")
    config = uvicorn.Config(served, host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


class SearchHandler(BaseHTTPRequestHandler):
    """The search of the questions of chemistry."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer a search."""
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        data = json.dumps({"results": found_of(asked["query"])}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Write nothing for each request."""


@contextlib.contextmanager
def search(needed: bool) -> Iterator[None]:
    """Serve the search while a task needs it."""
    if not needed:
        yield
        return
    server = ThreadingHTTPServer(("127.0.0.1", SEARCH_PORT), SearchHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def sample_of(segment: Mapping[str, Any], advantage: float | None = None) -> dict[str, Any]:
    """Return a segment as the small model learns it; without an advantage it is imitated."""
    prompt, response = segment["prompt_ids"], segment["response_ids"]
    sample: dict[str, Any] = {
        "ids": [*prompt, *response],
        "mask": [0] * len(prompt) + list(segment["loss_mask"]),
    }
    if advantage is not None:
        values = [value or 0.0 for value in segment["logprobs"]]
        sample |= {"logprobs": [0.0] * len(prompt) + values, "advantage": advantage}
    return sample


def advantages(rewards: Sequence[float]) -> list[float]:
    """Return the advantages in a group: distances from the mean, in standard deviations."""
    mean, spread = statistics.fmean(rewards), statistics.pstdev(rewards)
    return [(reward - mean) / spread for reward in rewards]


class Training:
    """One run on one task."""

    def __init__(self, client: Client, model: SmallModel, task: Task, seed: int) -> None:
        self.client, self.model, self.task = client, model, task
        self.pool = f"small-{task.name}"
        self._chance = random.Random(seed)
        self._seed = seed
        self.measured = self._instances(_MEASURED)

    def imitate(self, count: int, epochs: int) -> float:
        """Imitate so many rollouts of the teacher; return its share of right answers."""
        with teacher(self.task, self._seed) as address:
            self.client.backends.replace(self.pool, [address], seats=64, dialect="prorl")
            found = self._rollouts(self._instances(count), "teacher")
        right = _share_right(found)
        samples = [sample_of(segment) for info in found for segment in info.segments or ()]
        if not samples:
            raise click.ClickException("the teacher's rollouts have no tokens")
        for epoch in range(epochs):
            self._chance.shuffle(samples)
            rate = _IMITATION_RATE * (1 - epoch / (epochs + 1))
            for first in range(0, len(samples), _IMITATED_AT_ONCE):
                part = samples[first : first + _IMITATED_AT_ONCE]
                learned = self.model.post("/imitate", {"samples": part, "rate": rate})
            click.echo(f"imitation {epoch + 1}/{epochs}: loss {learned['loss']:.3f}")
        self.client.backends.replace(self.pool, [self.model.address], seats=128, dialect="prorl")
        return right

    def right(self) -> float:
        """Return the share of right answers on the instances that measure."""
        return _share_right(self._rollouts(self.measured, "measure"))

    def improve(self, steps: int, prompts: int, rate: float) -> list[dict[str, float]]:
        """Take so many steps of DAPO; return the figures of each."""
        dapo = Dapo(
            self.client, f"train-{self.task.name}", self.task.handler, self._listed(2000, "train"),
            prompts=prompts, samples=SAMPLES, at_once=2 * prompts * SAMPLES, most_prompts=_TRIED * prompts, errors="fewer", **self._members(),
        )  # fmt: skip
        curve = []
        for number in range(steps):
            begun = time.monotonic()
            batch = dapo.batch()
            if not batch:
                click.echo(f"step {number + 1}/{steps}: no prompt has rewards that differ")
                continue
            learned = self.model.post("/learn", {"samples": _samples(batch), "rate": rate})
            dapo.update_weights([self.model.address], seats=128, dialect="prorl")
            dapo.acknowledge(batch)
            counts = dapo.counts
            reward = statistics.fmean(each for group in batch for each in group.rewards)
            wasted = counts.wasted / max(1, counts.wasted + counts.informative)
            figures = {
                "reward": reward,
                "wasted": wasted,
                "seconds": time.monotonic() - begun,
                **learned,
            }
            curve.append({name: round(value, 4) for name, value in figures.items()})
            click.echo(f"step {number + 1}/{steps}: {curve[-1]}")
        dapo.close()
        return curve

    def _instances(self, count: int) -> list[dict[str, Any]]:
        return [self.task.instance(self._chance) for _ in range(count)]

    def _listed(self, count: int, name: str) -> list[dict[str, Any]]:
        return [
            {"id": f"{name}-{n}", "data": each} for n, each in enumerate(self._instances(count))
        ]

    def _members(self) -> dict[str, Any]:
        members: dict[str, Any] = {
            "llm": self.pool, "options": self.task.options,
            "sampling": {"temperature": 1.0, "max_tokens": self.task.max_tokens, "custom_tokenizer": TOKENIZER_NAME},
        }  # fmt: skip
        return (
            members
            if self.task.environment is None
            else {**members, "environment": self.task.environment}
        )

    def _rollouts(self, instances: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
        listed = [{"id": f"{name}-{n}", "data": each} for n, each in enumerate(instances)]
        made: list[str] = []
        for first in range(0, len(listed), 500):
            part = listed[first : first + 500]
            made += self.client.rollouts.submit(f"train-{self.task.name}", self.task.handler, part, **self._members())  # fmt: skip
        found = [self.client.rollouts.wait(rollout) for rollout in made]
        for first in range(0, len(made), 500):
            self.client.rollouts.acknowledge(made[first : first + 500])
        return found


def _samples(batch: Sequence[PromptGroup]) -> list[dict[str, Any]]:
    return [
        sample_of(segment, advantage)
        for group in batch
        for info, advantage in zip(group.rewarded, advantages(group.rewards), strict=True)
        for segment in info.segments or ()
    ]


def _share_right(found: Sequence[Any]) -> float:
    broken = [info for info in found if info.reward is None]
    if len(broken) > len(found) // 10:
        raise click.ClickException(f"{len(broken)} of {len(found)} rollouts have no reward: {broken[0].outcome}, {broken[0].reason}")  # fmt: skip
    return statistics.fmean(info.reward or 0.0 for info in found)


@click.command()
@click.argument("name", type=click.Choice(list(TASKS)), metavar="TASK")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--teacher-rollouts", default=2000, show_default=True, help="Rollouts that are imitated."
)
@click.option("--epochs", default=24, show_default=True, help="Passes over them.")
@click.option("--steps", default=40, show_default=True, help="Steps of DAPO.")
@click.option("--prompts", default=16, show_default=True, help="Prompts of a step.")
@click.option("--rate", default=1e-3, show_default=True, help="Learning rate of DAPO.")
@click.option("--threads", default=1, show_default=True, help="Threads of the small model.")
@click.option("--port", default=8200, show_default=True, help="Port of the small model.")
def main(
    name: str, seed: int, teacher_rollouts: int, epochs: int, steps: int, prompts: int, rate: float,
    threads: int, port: int,
) -> None:  # fmt: skip
    """Train the small model on TASK: math, code or stem."""
    begun = time.monotonic()
    model = SmallModel(port, threads)
    try:
        with Client() as client, search(name == "stem"):
            place_tokenizer()
            model.post("/reset", {"seed": seed})
            training = Training(client, model, TASKS[name], seed)
            taught = training.imitate(teacher_rollouts, epochs)
            before = training.right()
            click.echo(f"right: teacher {taught:.2f}, imitation {before:.2f}")
            curve = training.improve(steps, prompts, rate)
            after = training.right()
    finally:
        model.close()
    seconds = time.monotonic() - begun
    click.echo(f"right: {before:.2f} before, {after:.2f} after {steps} steps, {seconds:.0f} s")
    json.dump(
        {"task": name, "seed": seed, "teacher": taught, "before": before, "after": after, "seconds": seconds, "curve": curve},
        sys.stdout,
    )  # fmt: skip
    click.echo()


if __name__ == "__main__":
    main()
