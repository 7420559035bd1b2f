"""A fake of vLLM's and SGLang's sleep endpoints, strict about their order; run as a program.

A file ``gpu_memory`` in its directory stands for what it holds of the GPUs. It misbehaves on request:
``no-sleep`` answers 500 to being put to sleep, ``hang-sleep`` never does and ``dies-draining`` ends;
``late`` sleeps at once and frees its memory later; ``no-wake`` never answers when it is woken,
``full`` finds no memory then, and ``garbage`` answers with something else afterwards.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HELD = Path("gpu_memory")
ALL = {"weights", "kv_cache"}
#: Path → what is in memory after it, as far as that is fixed.
SLEEPS = {"/sleep?level=1&mode=wait", "/release_memory_occupation"}


class Handler(BaseHTTPRequestHandler):
    """One engine."""

    trouble = ""
    present = set(ALL)
    paused = False
    woken = False

    def do_GET(self) -> None:
        """Say that it is healthy; engines that sleep are not."""
        self._answer(200 if self.path == "/health" and self.present == ALL else 503, {})

    def do_POST(self) -> None:
        """Sleep, wake, or answer a question."""
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.loads(content) if content else None
        tags = set((body or {}).get("tags", ())) if isinstance(body, dict) else set()
        if self.path == "/v1/score":
            there = self.present == ALL and not type(self).paused
            score = 0.25 if self.trouble == "garbage" and type(self).woken else 0.5
            self._answer(200 if there else 500, {"score": score})
        elif self.path in SLEEPS:
            self._sleep()
        elif self.path.startswith(("/wake_up", "/resume_memory_occupation")):
            self._wake(tags or {self.path.partition("tags=")[2]})
        elif self.path in ("/pause_generation", "/continue_generation"):
            type(self).paused = self.path == "/pause_generation"
            self._answer(200, {})
        else:
            self._answer(200 if self.path == "/flush_cache" else 404, {})

    def _sleep(self) -> None:
        if self.trouble == "no-sleep":
            self._answer(500, {})
            return
        if self.trouble == "hang-sleep":
            time.sleep(600)
        if self.trouble == "dies-draining":
            os._exit(9)
        type(self).present = set()
        if self.trouble == "late":
            threading.Timer(0.2, HELD.unlink).start()
        else:
            HELD.unlink(missing_ok=True)
        self._answer(200, {})

    def _wake(self, tags: set[str]) -> None:
        if self.trouble == "no-wake":
            time.sleep(600)
        if self.trouble == "full":
            self._answer(500, {"error": "torch.OutOfMemoryError: CUDA out of memory."})
            return
        if tags == {"kv_cache"} and "weights" not in self.present:
            self._answer(500, {"error": "weights come first"})
            return
        type(self).present = self.present | tags
        type(self).woken = True
        HELD.touch()
        self._answer(200, {})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing about each request."""


if __name__ == "__main__":
    HELD.touch()
    Handler.trouble = sys.argv[2] if len(sys.argv) > 2 else ""
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
