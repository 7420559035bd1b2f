"""The endpoints of the in-memory server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import httpx

from tangram_client.testing.state import Ran, World, least

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class FakeAnswer:
    """Status, headers and body of an answer."""

    status: int
    content: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)

    @classmethod
    def json(cls, body: Any, status: int = 200) -> FakeAnswer:
        return cls(status, json.dumps(body).encode())


class FakeRefusal(Exception):
    """The request is refused with problem details."""

    def __init__(self, status: int, code: str, detail: str, pointer: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.body = {"title": code, "status": status, "code": code, "detail": detail}
        if pointer:
            self.body["errors"] = [{"pointer": pointer, "detail": detail}]

    def answer(self) -> FakeAnswer:
        content = json.dumps(self.body).encode()
        return FakeAnswer(self.status, content, {"Content-Type": "application/problem+json"})


class Routes:
    """Finds the endpoint of a request and answers it."""

    def __init__(self, world: World, *, cpu: float) -> None:
        self._world = world
        self._cpu = cpu
        self._table: list[tuple[str, re.Pattern[str], Callable[..., FakeAnswer]]] = [
            (verb, re.compile(f"/api/v1{pattern}"), function)
            for verb, pattern, function in (
                ("POST", "/actions", self._submit),
                ("POST", "/actions/batch", self._batch),
                ("GET", "/actions/([^/]+)", self._get),
                ("POST", "/actions/([^/]+)/cancel", self._cancel),
                ("POST", "/leases/([^/]+)/renew", self._renew),
                ("POST", "/leases/([^/]+)/release", self._release),
                ("GET", "/completions", self._completions),
                ("POST", "/trajectories", self._open),
                ("POST", "/trajectories/([^/]+)/finish", self._finish),
                ("PUT", "/trajectories/([^/]+)/files/(.+)", self._put),
                ("GET", "/trajectories/([^/]+)/files/(.+)", self._file),
                ("GET", "/status", self._status),
                ("GET", "/(actions|trajectories|nodes|pools|projects|tasks)", self._list),
            )
        ]

    def answer(self, request: httpx.Request) -> FakeAnswer:
        """Answer a request. Raises Refusal."""
        path = request.url.raw_path.decode().partition("?")[0]
        for verb, pattern, function in self._table:
            match = pattern.fullmatch(path)
            if match and verb == request.method:
                return function(request, *map(unquote, match.groups()))
        raise FakeRefusal(404, "not_found", f"{request.method} {path} is no endpoint")

    def _submit(self, request: httpx.Request) -> FakeAnswer:
        view = self._accept(_body(request))
        waits = "wait" in request.url.params
        self._pass(request, view)
        if waits:
            return FakeAnswer.json(view, 200 if view["state"] == "finished" else 202)
        return FakeAnswer.json({"id": view["id"], "state": "queued"}, 202)

    def _batch(self, request: httpx.Request) -> FakeAnswer:
        items: list[dict[str, Any]] = []
        for payload in _body(request)["actions"]:
            try:
                view = self._accept(payload)
                items.append({"status": 202, "id": view["id"], "state": "queued"})
            except FakeRefusal as refusal:
                items.append({"status": refusal.status, "problem": refusal.body})
        accepted = sum("id" in item for item in items)
        counts = {"accepted": accepted, "refused": len(items) - accepted}
        return FakeAnswer.json({"items": items, **counts}, 202)

    def _accept(self, payload: dict[str, Any]) -> dict[str, Any]:
        for name in ("task", "kind"):
            if not payload.get(name):
                raise FakeRefusal(422, "invalid", f"{name} is required", f"/{name}")
        least_cpu = least(payload.get("cost", {}).get("cpu", 0))
        if least_cpu > self._cpu:
            detail = f"{least_cpu:g} cpu never fit: the largest node has {self._cpu:g}"
            raise FakeRefusal(422, "never_fits", detail, "/cost/cpu")
        return self._world.accept(payload)

    def _get(self, request: httpx.Request, action_id: str) -> FakeAnswer:
        view = self._action(action_id)
        self._pass(request, view)
        return FakeAnswer.json(view)

    def _pass(self, request: httpx.Request, view: dict[str, Any]) -> None:
        if view["state"] != "finished":
            self._world.clock.advance(float(request.url.params.get("wait", 0)))

    def _cancel(self, request: httpx.Request, action_id: str) -> FakeAnswer:
        view = self._action(action_id)
        reason = _body(request).get("reason", "cancelled by request")
        self._world.finish(action_id, Ran(outcome="cancelled", seconds=0.0, detail=reason))
        return FakeAnswer.json(view, 202)

    def _renew(self, request: httpx.Request, action_id: str) -> FakeAnswer:
        self._held(action_id)
        self._world.renew(action_id, _body(request).get("ttl_seconds"))
        return FakeAnswer.json(self._action(action_id))

    def _release(self, request: httpx.Request, action_id: str) -> FakeAnswer:
        self._held(action_id)
        self._world.finish(action_id, Ran(seconds=0.0))
        return FakeAnswer.json(self._action(action_id))

    def _held(self, action_id: str) -> None:
        if self._action(action_id)["state"] != "running":
            raise FakeRefusal(409, "conflict", f"the lease {action_id} is not held")

    def _action(self, action_id: str) -> dict[str, Any]:
        try:
            return self._world.actions[action_id]
        except KeyError:
            raise FakeRefusal(404, "not_found", f"no action {action_id}") from None

    def _completions(self, request: httpx.Request) -> FakeAnswer:
        finished = self._world.completions
        params = request.url.params
        after = params.get("after", "")
        start = len(finished) if after == "now" else int(after or 0)
        end = start + int(params.get("limit", 500))
        items = [self._world.actions[action_id] for action_id in finished[start:end]]
        if not items:
            self._world.clock.advance(float(params.get("wait", 0)))
        cursor = str(start + len(items))
        return FakeAnswer.json({"items": items, "next": cursor, "more": end < len(finished)})

    def _open(self, request: httpx.Request) -> FakeAnswer:
        payload = _body(request)
        trajectory = self._world.open(payload)
        if trajectory.state != "open":
            raise FakeRefusal(
                409, "conflict", f"{payload['id']} is finished: choose another id", "/id"
            )
        return FakeAnswer.json(trajectory.view(), 201)

    def _finish(self, request: httpx.Request, name: str) -> FakeAnswer:
        self._trajectory(name)
        self._world.finish_trajectory(name)
        return FakeAnswer.json(self._world.trajectories[name].view())

    def _put(self, request: httpx.Request, name: str, path: str) -> FakeAnswer:
        self._trajectory(name).files[path] = request.content
        return FakeAnswer.json({"path": path, "bytes": len(request.content)}, 201)

    def _file(self, request: httpx.Request, name: str, path: str) -> FakeAnswer:
        files = self._trajectory(name).files
        if path not in files:
            raise FakeRefusal(404, "not_found", f"no file {path}")
        return FakeAnswer(200, files[path], {"Content-Type": "application/octet-stream"})

    def _trajectory(self, name: str) -> Any:
        try:
            return self._world.trajectories[name]
        except KeyError:
            raise FakeRefusal(404, "not_found", f"no trajectory {name}") from None

    def _list(self, request: httpx.Request, noun: str) -> FakeAnswer:
        rows: dict[str, list[dict[str, Any]]] = {
            "actions": list(reversed(self._world.actions.values())),
            "trajectories": [each.view() for each in self._world.trajectories.values()],
            "nodes": self._status_body()["nodes"],
            "pools": [{"name": "default"}],
            "projects": [{"name": "default"}],
        }
        limit = int(request.url.params.get("limit", 100))
        results = rows.get(noun, [])[:limit]
        return FakeAnswer.json({"next": None, "previous": None, "results": results})

    def _status(self, request: httpx.Request) -> FakeAnswer:
        return FakeAnswer.json(self._status_body())

    def _status_body(self) -> dict[str, Any]:
        states = [view["state"] for view in self._world.actions.values()]
        counts = {name: states.count(name) for name in ("queued", "granted", "running")}
        cpu = {"capacity": self._cpu, "free": self._cpu - counts["running"]}
        return {
            "at": self._world.clock.rfc3339(),
            "version": "0.1.0",
            "leader": "loop-1",
            "epoch": 1,
            "pools": {"default": {**counts, "policy": "malleable", "paused": False}},
            "nodes": [{"name": "n1", "pool": "default", "state": "ready",
                       "isolation": "process", "resources": {"cpu": cpu}}],
            "trajectories": len(self._world.trajectories),
            "workers": [{"name": "loop-1", "role": "loop"}],
        }  # fmt: skip


def _body(request: httpx.Request) -> dict[str, Any]:
    try:
        body = json.loads(request.content)
    except ValueError:
        raise FakeRefusal(400, "malformed", "the body is not JSON") from None
    return dict(body)
