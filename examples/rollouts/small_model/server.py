"""Server of the small model: ProRL Agent's ``/generate``, and what a trainer does with the weights.

    /usr/bin/python3 -m examples.rollouts.small_model.server --port 8200

| request | does |
|---|---|
| ``GET /health`` | ``{"version": …}``: the number of changes of the weights |
| ``POST /generate {prompt_ids, max_tokens, temperature, seed}`` | ``{response_ids, logprobs}`` |
| ``POST /imitate {samples, rate}`` and ``POST /learn {samples, rate}`` | one step of the optimiser (`learner`) |
| ``POST /reset {seed}`` | begins with new weights |

Rules
1. Requests that wait are sampled together, at most `_BATCH` at once, by one thread; it changes the weights as well, so a response is
   always of one version.
2. A request that is wrong is answered 400 with what is wrong, and nothing is sampled.

Needs PyTorch (1.13 or later) and nothing else, because Debian's Python has no more.
"""

from __future__ import annotations

import argparse
import json
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import torch

from examples.rollouts.small_model.learner import Learner, Sample
from examples.rollouts.small_model.transformer import Request, Response, Shape, Transformer, sample

#: Requests that are sampled together, and the wait for others after the first one.
_BATCH = 128
_GATHER_SECONDS = 0.004


class Engine:
    """The model and the one thread that uses it."""

    def __init__(self, shape: Shape, stop_ids: frozenset[int]) -> None:
        self.shape, self.stop_ids = shape, stop_ids
        self.version = 0
        self._begin(0)
        self._waiting: queue.Queue[tuple[Any, Future[Any]]] = queue.Queue()
        threading.Thread(target=self._work, daemon=True, name="model").start()

    def ask(self, work: Request | Callable[[], Any]) -> Any:
        """Return a request's response, or what a function returns that the model's thread calls."""
        answer: Future[Any] = Future()
        self._waiting.put((work, answer))
        return answer.result()

    def step(self, samples: list[Sample], rate: float) -> dict[str, float]:
        """Change the weights once."""
        found = self._learner.step(samples, rate)
        self.version += 1
        return found

    def reset(self, seed: int) -> None:
        """Begin with new weights."""
        self._begin(seed)
        self.version += 1

    def _begin(self, seed: int) -> None:
        self._learner = Learner(Transformer(self.shape, seed))

    def _work(self) -> None:
        while True:
            batch: list[tuple[Request, Future[Response]]] = []
            work, answer = self._waiting.get()
            while True:
                if isinstance(work, Request):
                    batch.append((work, answer))
                else:
                    self._sample(batch)
                    batch = []
                    _settle(answer, work)
                if len(batch) >= _BATCH:
                    break
                try:
                    work, answer = self._waiting.get(timeout=_GATHER_SECONDS)
                except queue.Empty:
                    break
            self._sample(batch)

    def _sample(self, batch: list[tuple[Request, Future[Response]]]) -> None:
        if not batch:
            return
        try:
            found = sample(self._learner.model, [request for request, _ in batch])
        except Exception as error:
            for _, answer in batch:
                answer.set_exception(error)
            return
        for (_, answer), response in zip(batch, found, strict=True):
            answer.set_result(response)


def _settle(answer: Future[Any], work: Callable[[], Any]) -> None:
    try:
        answer.set_result(work())
    except Exception as error:
        answer.set_exception(error)


class Refused(Exception):
    """The request is wrong."""


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    engine: ClassVar[Engine]

    def do_GET(self) -> None:
        """Answer a check of health."""
        self._answer(200, {"version": self.engine.version})

    def do_POST(self) -> None:
        """Answer a request with a body."""
        ways = {
            "/generate": self._generate,
            "/imitate": self._step,
            "/learn": self._step,
            "/reset": self._reset,
        }
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            if self.path not in ways:
                self._answer(404, {"detail": f"there is no {self.path}"})
                return
            answer = ways[self.path](body)
        except (Refused, ValueError, KeyError, TypeError) as error:
            self._answer(400, {"detail": f"{type(error).__name__}: {error}"})
        else:
            self._answer(200, answer)

    def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        shape, ids = self.engine.shape, body["prompt_ids"]
        if not ids or not all(0 <= each < shape.vocabulary for each in ids):
            raise Refused(f"prompt_ids: give ids from 0 to {shape.vocabulary - 1}, at least one")
        room = shape.context - len(ids)
        if room < 1:
            raise Refused(
                f"This model's maximum context length is {shape.context} tokens."
                f" However, your prompt has {len(ids)}."
            )
        temperature = body.get("temperature")
        stop = frozenset(body.get("stop_token_ids") or ()) | self.engine.stop_ids
        found: Response = self.engine.ask(
            Request(
                ids,
                min(room, int(body.get("max_tokens") or room)),
                1.0 if temperature is None else float(temperature),
                stop,
                int(body.get("seed") or torch.randint(2**31, ()).item()),
            )
        )
        return {"response_ids": found.ids, "logprobs": found.logprobs}

    def _step(self, body: dict[str, Any]) -> dict[str, float]:
        samples = [Sample(**each) for each in body["samples"]]
        if not samples:
            raise Refused("samples: give one at least")
        rate = float(body["rate"])
        found: dict[str, float] = self.engine.ask(lambda: self.engine.step(samples, rate))
        return found

    def _reset(self, body: dict[str, Any]) -> dict[str, Any]:
        self.engine.ask(lambda: self.engine.reset(int(body["seed"])))
        return {}

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Write nothing for each request."""


def main() -> None:
    """Serve until the end of the process."""
    parser = argparse.ArgumentParser(description="Server of the small model")
    parser.add_argument("--port", type=int, default=8200)
    parser.add_argument("--stop", type=int, nargs="*", default=[2], help="ids that end a response")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    Handler.engine = Engine(Shape(), frozenset(options.stop))
    ThreadingHTTPServer.request_queue_size = 1024
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
