"""A fake of vLLM's and SGLang's sleep endpoints, strict about their order; run as a program.

A file ``gpu_memory`` in its directory stands for what it holds of the GPUs. It misbehaves on request:
``no-sleep`` answers 500 to being put to sleep, ``no-wake`` never answers when it is woken.
"""

from __future__ import annotations

import json
import sys
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
            self._answer(200 if there else 500, {"score": 0.5})
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
        type(self).present = set()
        HELD.unlink(missing_ok=True)
        self._answer(200, {})

    def _wake(self, tags: set[str]) -> None:
        if self.trouble == "no-wake":
            time.sleep(600)
        if tags == {"kv_cache"} and "weights" not in self.present:
            self._answer(500, {"error": "weights come first"})
            return
        type(self).present = self.present | tags
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
