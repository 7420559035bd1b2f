"""A stand-in of LMCache's controller: the HTTP of its requests ``move`` and ``health``, as its sources have them.

It remembers which instance has which tokens. It answers a move that finds nothing with 0 tokens and success, as the real one does when
instances are misconfigured. Written after ``lmcache/v1/api_server/__main__.py`` of version 0.3; nothing here was recorded from a real one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx


class LmcacheController(httpx.AsyncBaseTransport):
    """Answers requests to any host."""

    def __init__(self, *instances: str, per_process_codes: bool = True) -> None:
        self.held: dict[str, list[list[int]]] = {each: [] for each in instances}
        self.asked: list[tuple[str, Any]] = []
        self.unhealthy: set[str] = set()
        self._per_process = per_process_codes

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        body = json.loads(request.content)
        self.asked.append((request.url.path, body))
        if request.url.path == "/health":
            return self._health(body["instance_id"])
        if request.url.path == "/move":
            return self._move(body)
        return httpx.Response(404, json={"detail": "Not Found"})

    def _health(self, instance: str) -> httpx.Response:
        if instance not in self.held:
            return httpx.Response(500, json={"detail": f"no instance {instance}"})
        code = 1 if instance in self.unhealthy else 0
        codes = {"error_codes": {"0": code}} if self._per_process else {"error_code": code}
        return httpx.Response(200, json={"event_id": "health1", **codes})

    def _move(self, body: dict[str, Any]) -> httpx.Response:
        (old, where), (new, there) = body["old_position"], body["new_position"]
        if (where, there) != ("LocalCPUBackend", "LocalCPUBackend"):
            return httpx.Response(500, json={"detail": "unknown location"})
        tokens: Sequence[int] = body["tokens"]
        found = next((each for each in self.held.get(old, []) if each == tokens), None)
        if found is None or new not in self.held:
            return httpx.Response(200, json={"event_id": "Move1", "num_tokens": 0})
        if not body.get("copy"):
            self.held[old].remove(found)
        self.held[new].append(found)
        return httpx.Response(200, json={"event_id": "Move1", "num_tokens": len(found)})
