"""A small real service for machines without a GPU: a numpy model behind HTTP.

    python numpy_model.py --port 8000 --mebibytes 64

Its weights are drawn from a seed, so every start answers alike. `GET /health` is answered once they
are in memory; `POST /v1/score` with ``{"text": …}`` says how much it likes a text.
"""

from __future__ import annotations

import argparse
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

WIDTH = 256


class Model:
    """Layers of random weights."""

    def __init__(self, mebibytes: int, seed: int) -> None:
        layers = max(1, mebibytes * 2**20 // (WIDTH * WIDTH * 4))
        rng = np.random.default_rng(seed)
        self._layers = rng.standard_normal((layers, WIDTH, WIDTH), dtype=np.float32)

    def score(self, text: str) -> float:
        """Return a number between -1 and 1 that depends on the text alone."""
        state = np.bincount(np.frombuffer(text.encode() or b"\0", np.uint8), minlength=WIDTH)
        state = state.astype(np.float32)
        for weights in self._layers:
            state = np.tanh(weights @ state / np.sqrt(WIDTH))
        return float(state.mean())


class Handler(BaseHTTPRequestHandler):
    """Two paths."""

    model: Model
    seconds = 0.0

    def do_GET(self) -> None:
        """Say that the weights are there."""
        self._answer(200 if self.path == "/health" else 404, {"status": "ok"})

    def do_POST(self) -> None:
        """Score a text."""
        if self.path != "/v1/score":
            self._answer(404, {"error": "no such path"})
            return
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            score = self.model.score(body["text"])
            time.sleep(self.seconds)
            self._answer(200, {"score": score})
        except (ValueError, KeyError, TypeError, AttributeError):
            self._answer(400, {"error": 'give {"text": "…"}'})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing about each request."""


def main() -> None:
    """Load, then serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--mebibytes", type=int, default=64)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.0, help="as if a call took longer")
    options = parser.parse_args()
    Handler.seconds = options.seconds
    Handler.model = Model(options.mebibytes, options.seed)
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
