"""An engine of the small model: samples tokens with the weights of a checkpoint.

    /usr/bin/python3 -m examples.agent_training.engine --port 8300 --run FOLDER

| request | does |
|---|---|
| ``GET /health`` | 200; 503 while there are no weights |
| ``GET /v1/models`` | the model's name and its context |
| ``GET /tangram/state`` | ``weights_version``: the step of the checkpoint; tokens and seconds of sampling so far |
| ``POST /v1/completions`` | token ids to token ids, with log-probabilities |
| ``POST /tangram/weights {weights_version}`` | reads the checkpoint of that step; the version that the engine has changes nothing |

Rules
1. The engine begins with the newest committed checkpoint of its run, so it may be started again at any time, by any process.
2. Requests that wait are sampled together by one thread, which reads weights as well: a response is of one version.
3. A version older than the engine's is refused (409): pushes that arrive late change nothing.
4. The engine ends with its parent where ``--until-input-ends`` is given.

To a fleet it is an engine ``torch``. Needs PyTorch (1.13 or later) and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import torch

from examples.agent_training.checkpoints import WEIGHTS, CheckpointStore
from examples.agent_training.policy_update import new_model
from examples.rollouts.small_model.transformer import Request, Response, sample

_BATCH = 64
_GATHER_SECONDS = 0.004
#: Ids that end a response.
_STOP = frozenset({2})


class SamplingEngine:
    """The model and the one thread that uses it."""

    def __init__(self, run: Path) -> None:
        self.store = CheckpointStore(run)
        self.model = new_model()
        #: None: without weights.
        self.version: int | None = None
        self.tokens = 0
        self.seconds = 0.0
        self._waiting: queue.Queue[tuple[Any, Future[Any]]] = queue.Queue()
        if (newest := self.store.newest()) is not None:
            self._read(newest.step)
        threading.Thread(target=self._work, daemon=True, name="model").start()

    def ask(self, work: Request | Callable[[], Any]) -> Any:
        """Return a request's response, or what a function returns that the model's thread calls."""
        answer: Future[Any] = Future()
        self._waiting.put((work, answer))
        return answer.result()

    def read(self, version: int) -> None:
        """Sample with the weights of a step from now on. Raises OldVersion, and OSError without such a checkpoint."""
        if self.version is not None and version < self.version:
            raise OldVersion(f"the weights are of version {self.version} already")
        if version != self.version:
            self.ask(lambda: self._read(version))

    def _read(self, version: int) -> None:
        self.model.load_state_dict(torch.load(self.store.at(version).folder / WEIGHTS))
        self.version = version

    def _work(self) -> None:
        while True:
            batch = []
            work, answer = self._waiting.get()
            while isinstance(work, Request):
                batch.append((work, answer))
                if len(batch) >= _BATCH:
                    break
                try:
                    work, answer = self._waiting.get(timeout=_GATHER_SECONDS)
                except queue.Empty:
                    break
            self._sample(batch)
            if not isinstance(work, Request):
                _settle(answer, work)

    def _sample(self, batch: list[tuple[Request, Future[Response]]]) -> None:
        if not batch:
            return
        began = time.monotonic()
        try:
            found = sample(self.model, [request for request, _ in batch])
        except Exception as error:
            for _, answer in batch:
                answer.set_exception(error)
            return
        self.seconds += time.monotonic() - began
        for (_, answer), response in zip(batch, found, strict=True):
            self.tokens += len(response.ids)
            answer.set_result(response)


class OldVersion(Exception):
    """A push of weights that are older than those of the engine."""


class RefusedRequest(Exception):
    """The request is wrong."""


def _settle(answer: Future[Any], work: Callable[[], Any]) -> None:
    try:
        answer.set_result(work())
    except Exception as error:
        answer.set_exception(error)


class EngineRequests(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    engine: ClassVar[SamplingEngine]

    def do_GET(self) -> None:
        """Answer what the engine is, and how it is."""
        engine = self.engine
        if self.path == "/health":
            self._answer(200 if engine.version is not None else 503, {"version": engine.version})
        elif self.path == "/v1/models":
            listed = {"id": "small", "object": "model", "max_model_len": engine.model.shape.context}
            self._answer(200, {"object": "list", "data": [listed]})
        elif self.path == "/tangram/state":
            state = {"weights_version": engine.version, "tokens": engine.tokens, "seconds": round(engine.seconds, 3)}  # fmt: skip
            self._answer(200, state)
        else:
            self._answer(404, {"detail": f"there is no {self.path}"})

    def do_POST(self) -> None:
        """Sample, or read weights."""
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            if self.path == "/v1/completions":
                self._answer(200, self._completion(body))
            elif self.path == "/tangram/weights":
                self.engine.read(int(body["weights_version"]))
                self._answer(200, {"weights_version": self.engine.version})
            else:
                self._answer(404, {"detail": f"there is no {self.path}"})
        except OldVersion as error:
            self._answer(409, {"detail": str(error)})
        except (RefusedRequest, ValueError, KeyError, TypeError, OSError) as error:
            self._answer(400, {"detail": f"{type(error).__name__}: {error}"})

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        shape, ids = self.engine.model.shape, body["prompt"]
        known = isinstance(ids, list) and ids and all(0 <= each < shape.vocabulary for each in ids)
        if not known:
            raise RefusedRequest(f"prompt: give ids from 0 to {shape.vocabulary - 1}, at least one")
        room = shape.context - len(ids)
        if room < 1:
            raise RefusedRequest(f"This model's maximum context length is {shape.context} tokens. However, your prompt has {len(ids)}.")  # fmt: skip
        temperature = body.get("temperature")
        most = min(room, int(body.get("max_tokens") or room))
        found: Response = self.engine.ask(
            Request(
                ids,
                most,
                1.0 if temperature is None else float(temperature),
                frozenset(body.get("stop_token_ids") or ()) | _STOP,
                int(body.get("seed") or torch.randint(2**31, ()).item()),
            )
        )
        finish = "stop" if found.ids and found.ids[-1] in _STOP else "length"
        names = [f"token_id:{each}" for each in found.ids]
        choice = {
            "index": 0, "text": "", "finish_reason": finish, "token_ids": found.ids,
            "logprobs": {"tokens": names, "token_logprobs": found.logprobs},
        }  # fmt: skip
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(found.ids), "total_tokens": len(ids) + len(found.ids)}  # fmt: skip
        return {"id": "cmpl", "object": "text_completion", "model": "small", "choices": [choice], "usage": usage}  # fmt: skip

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Write nothing for each request."""


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    """Serve until the end of the process."""
    parser = argparse.ArgumentParser(description="An engine of the small agent's model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--until-input-ends", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.until_input_ends:
        threading.Thread(target=_end_with_input, daemon=True).start()
    EngineRequests.engine = SamplingEngine(options.run)
    ThreadingHTTPServer.request_queue_size = 1024
    ThreadingHTTPServer((options.host, options.port), EngineRequests).serve_forever()


if __name__ == "__main__":
    main()
