"""Server of one tensor-parallel replica: completions by token ids, in OpenAI's and in ProRL Agent's protocol.

    /usr/bin/python3 -m examples.tensor_parallel.server --port 8300 --gpus 2 --memory-bytes 268435456

| request | does |
|---|---|
| ``GET /health`` | 200 once its ranks have weights, else 503 |
| ``GET /tangram/state`` | ``state``, ``weights_version``, ``tp``, ``lacked_memory``; ``refused``: why newer weights were not taken |
| ``GET /v1/models`` | ``id``, ``max_model_len``, ``weights_version`` |
| ``POST /v1/completions {prompt, n, max_tokens, temperature, seed, stop_token_ids, ignore_eos, logprobs, return_token_ids}`` | ``n`` rows of one prompt of ids, or of each of several; ``tangram`` in the answer has what its batch took |
| ``POST /generate {prompt_ids, max_tokens, temperature, seed, stop_token_ids}`` | ``{response_ids, logprobs}`` |
| ``POST /tangram/weights`` or ``/v1/weights {weights_version, source}`` | replaces the weights after the running batch |

Errors are JSON, ``{"error": kind, "detail": words}``: 400 ``bad_request``, 404, 422 ``bad_weights``, 500 ``failed``, and 507 ``out_of_memory``
with ``evidence``. With ``--until-input-ends`` the server ends with the process that started it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from examples.rollouts.small_model.transformer import Request, Shape
from examples.tensor_parallel.ranks import OutOfMemory, RankEnded, WrongWeights
from examples.tensor_parallel.replica import ROWS_AT_ONCE, Replica, SampledRows
from examples.tensor_parallel.shards import check


class Refused(Exception):
    """The request is wrong."""


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    replica: ClassVar[Replica]
    stop_ids: ClassVar[frozenset[int]]
    model: ClassVar[str]

    def do_GET(self) -> None:
        """Say what it is."""
        replica = self.replica
        state = {
            "state": "resident" if replica.ready else "restoring",
            "weights_version": replica.weights_version,
            "tp": replica.shards,
            "memory_bytes": replica.memory_bytes,
            "lacked_memory": replica.lacked_memory,
            "refused": replica.refused,
            "model": self.model,
        }
        if self.path == "/health":
            self._answer(200 if replica.ready else 503, state)
        elif self.path == "/tangram/state":
            self._answer(200, state)
        elif self.path == "/v1/models":
            listed = {"id": self.model, "object": "model", "created": 0, "owned_by": "tangram",
                      "max_model_len": replica.shape.context,
                      "weights_version": replica.weights_version}  # fmt: skip
            self._answer(200, {"object": "list", "data": [listed]})
        else:
            self._fail(404, "not_found", f"there is no {self.path}")

    def do_POST(self) -> None:
        """Answer a request with a body."""
        ways = {
            "/v1/completions": self._complete,
            "/generate": self._generate,
            "/tangram/weights": self._load,
            "/v1/weights": self._load,
        }
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path not in ways:
            self._fail(404, "not_found", f"there is no {self.path}")
            return
        try:
            body = json.loads(content)
            if not isinstance(body, dict):
                raise Refused("give a JSON object")
            answer = ways[self.path](body)
        except OutOfMemory as error:
            self._fail(507, "out_of_memory", f"out of memory: {error}", evidence=str(error))
        except WrongWeights as error:
            self._fail(422, "bad_weights", str(error))
        except (Refused, ValueError, KeyError, TypeError) as error:
            self._fail(400, "bad_request", f"{type(error).__name__}: {error}")
        except RankEnded as error:
            self._fail(500, "failed", str(error))
        else:
            self._answer(200, answer)

    def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        found = self._sampled(body, [body["prompt_ids"]], 1).responses[0]
        return {"response_ids": found.ids, "logprobs": found.logprobs}

    def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        prompts, rows = _prompts(body["prompt"]), int(body.get("n") or 1)
        found = self._sampled(body, prompts, rows)
        choices = []
        for number, response in enumerate(found.responses):
            choice: dict[str, Any] = {
                "index": number, "text": "", "token_ids": response.ids, "logprobs": None,
                "finish_reason": "stop" if response.ids[-1] in self._stops(body) else "length",
            }  # fmt: skip
            # 0 asks for the probability of the sampled token alone.
            if body.get("logprobs") is not None and body["logprobs"] is not False:
                names = [f"token_id:{each}" for each in response.ids]
                choice["logprobs"] = {"tokens": names, "token_logprobs": response.logprobs}
            if body.get("return_token_ids"):
                choice["prompt_token_ids"] = prompts[number // rows]
            choices.append(choice)
        written = sum(len(each.ids) for each in found.responses)
        read = sum(map(len, prompts))
        usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}  # fmt: skip
        took = {"tp": self.replica.shards, "rows": found.rows,
                "prefill_seconds": found.batch.prefill_seconds,
                "decode_seconds": found.batch.decode_seconds,
                "peak_memory_bytes": found.batch.peak_memory_bytes,
                "weights_version": found.weights_version}  # fmt: skip
        return {"id": "cmpl-0", "object": "text_completion", "created": 0,
                "model": str(body.get("model") or self.model), "choices": choices,
                "usage": usage, "tangram": took}  # fmt: skip

    def _sampled(self, body: dict[str, Any], prompts: list[Any], rows: int) -> SampledRows:
        """Return ``rows`` responses to each of the prompts, those of a prompt beside each other."""
        shape = self.replica.shape
        for ids in prompts:
            _check_prompt(ids, shape)
        if not 1 <= rows * len(prompts) <= ROWS_AT_ONCE:
            raise Refused(f"n: from 1 to {ROWS_AT_ONCE} rows, those of all prompts counted")
        room = shape.context - max(map(len, prompts))
        wanted = body.get("max_tokens")
        most = room if wanted is None else min(room, int(wanted))
        if most < 1:
            raise Refused("max_tokens: 1 at least")
        heat, seed = body.get("temperature"), body.get("seed")
        first = random.randrange(2**31) if seed is None else int(seed)
        heat, stops = 1.0 if heat is None else float(heat), self._stops(body)
        each_row = [ids for ids in prompts for _ in range(rows)]
        return self.replica.sample(
            tuple(Request(ids, most, heat, stops, first + n) for n, ids in enumerate(each_row))
        )

    def _stops(self, body: dict[str, Any]) -> frozenset[int]:
        wanted = frozenset(body.get("stop_token_ids") or ())
        return wanted if body.get("ignore_eos") else wanted | self.stop_ids

    def _load(self, body: dict[str, Any]) -> dict[str, Any]:
        version = body.get("weights_version")
        source = str(body.get("source") or "")
        return {"weights_version": self.replica.load(source, version)}

    def _fail(self, status: int, kind: str, detail: str, **members: Any) -> None:
        self._answer(status, {"error": kind, "detail": detail, **members})

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Write nothing for each request."""


def _prompts(given: Any) -> list[Any]:
    """Return the prompts of a completion: one as a list of ids, or a list of such lists."""
    if isinstance(given, list) and given and all(isinstance(each, list) for each in given):
        return given
    return [given]


def _check_prompt(ids: Any, shape: Shape) -> None:
    """Raise Refused for a prompt that the model cannot continue."""
    if not isinstance(ids, list) or not ids:
        raise Refused("prompt: give token ids, at least one; this server has no tokenizer")
    if not all(type(each) is int and 0 <= each < shape.vocabulary for each in ids):
        raise Refused(f"prompt: give ids from 0 to {shape.vocabulary - 1}")
    if len(ids) >= shape.context:
        raise Refused(
            f"This model's maximum context length is {shape.context} tokens."
            f" However, your prompt has {len(ids)}."
        )


def _end_with_input() -> None:
    """End the server at the end of its input; its ranks end with their pipes."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def options() -> argparse.ArgumentParser:
    """Return the options of the server."""
    parser = argparse.ArgumentParser(description="Server of one tensor-parallel replica")
    parser.add_argument("--port", type=int, default=8300)
    parser.add_argument("--gpus", type=int, default=1, help="ranks: the tensor-parallel degree")
    parser.add_argument("--memory-bytes", type=int, default=0, help="limit of a rank; 0: none")
    parser.add_argument("--weights", default="", help="file of weights, read again when replaced")
    parser.add_argument("--seed", type=int, default=0, help="of weights without a file")
    parser.add_argument("--stop", type=int, nargs="*", default=[2], help="ids that end a response")
    parser.add_argument("--model", default="small", help="its name")
    parser.add_argument("--until-input-ends", action="store_true", help="end with the parent")
    for name, value in Shape()._asdict().items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser


def main() -> None:
    """Serve until the end of the process."""
    parser = options()
    given = parser.parse_args()
    shape = Shape(*(getattr(given, name) for name in Shape._fields))
    try:
        check(shape, given.gpus)
    except ValueError as error:
        parser.error(str(error))
    replica = Replica(shape, given.gpus, given.memory_bytes, given.weights, given.seed)
    Handler.replica, Handler.model = replica, given.model
    Handler.stop_ids = frozenset(given.stop)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if given.until_input_ends:
        threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        replica.wait()
        ThreadingHTTPServer.request_queue_size = 1024
        ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()
    except (OutOfMemory, RankEnded, WrongWeights) as error:
        sys.exit(f"out of memory: {error}" if isinstance(error, OutOfMemory) else str(error))
    finally:
        replica.close()


if __name__ == "__main__":
    main()
