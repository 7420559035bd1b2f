"""Serve one model: ``python -m managers.gpu.torch_worker --port 8000 --source package.module:function``."""

from __future__ import annotations

import argparse
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from managers.gpu.torch_worker.models import BadSource, load
from managers.gpu.torch_worker.worker import STATUS, Trouble, Worker


class Handler(BaseHTTPRequestHandler):
    """The paths of the package's rules."""

    worker: Worker
    #: Connections stay, and an answer leaves in one piece: each step of a switch is one round trip.
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_GET(self) -> None:
        """Answer with the state."""
        state = self.worker.state()
        if self.path == "/tangram/state":
            self._send(200, state)
        elif self.path == "/health":
            self._send(200 if state["state"] == "resident" else 503, state)
        else:
            self._answer(None)

    def do_POST(self) -> None:
        """Restore, release, or pass the request to the model."""
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            if self.path == "/tangram/restore":
                self._send(200, self.worker.restore())
            elif self.path == "/tangram/release":
                self._send(200, self.worker.release())
            else:
                self._answer(json.loads(content) if content else None)
        except Trouble as trouble:
            self._fail(trouble)
        except ValueError as error:
            self._fail(Trouble("bad_request", f"not JSON: {error}"))

    def _answer(self, body: Any) -> None:
        try:
            self._send(200, self.worker.answer(self.path, body))
        except Trouble as trouble:
            self._fail(trouble)

    def _fail(self, trouble: Trouble) -> None:
        self._send(STATUS[trouble.kind], {"error": trouble.kind, "detail": str(trouble)})

    def _send(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log no requests."""


def find_devices(named: str, gpus: int) -> list[str]:
    """Return ``gpus`` devices; on a machine with an NVIDIA card, ``cpu`` must be requested."""
    if named != "auto":
        return named.split(",")
    if torch.cuda.is_available():
        there = torch.cuda.device_count()
        if there < gpus:
            raise BadSource(f"{gpus} GPUs were granted, torch sees {there}")
        return [f"cuda:{number}" for number in range(gpus)]
    if Path("/dev/nvidiactl").exists():
        raise BadSource(f"there is an NVIDIA card that torch {torch.__version__} cannot use")
    return ["cpu"] * gpus


def main() -> int:
    """Load into host memory, then serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--memory-bytes", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1)
    options = parser.parse_args()
    try:
        served = load(options.source)
        Handler.worker = Worker(
            served,
            find_devices(options.device, options.gpus),
            options.memory_bytes,
            options.at_once,
        )
    except BadSource as error:
        sys.stderr.write(f"{error}\n")
        return 2
    ThreadingHTTPServer.request_queue_size = 128
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    server.daemon_threads = True
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
