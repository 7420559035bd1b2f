"""The in-memory server: requests in, answers out, faults on demand."""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import httpx

from tangram_client.testing.answers import FakeAnswer, FakeRefusal
from tangram_client.testing.clock import VirtualClock
from tangram_client.testing.files import FakeFiles
from tangram_client.testing.rollouts import FakeRollouts
from tangram_client.testing.state import Ran, Run, World, least


class Routes:
    """Finds the endpoint of a request and answers it."""

    def __init__(self, world: World, rollouts: FakeRollouts, *, cpu: float) -> None:
        self._world = world
        self._cpu = cpu
        self._files = FakeFiles(self._trajectory)
        routes: tuple[tuple[str, str, Callable[..., FakeAnswer]], ...] = (
            ("POST", "/actions", self._submit),
            ("POST", "/actions/batch", self._batch),
            ("GET", "/actions/([^/]+)", self._get),
            ("POST", "/actions/([^/]+)/cancel", self._cancel),
            ("POST", "/leases/([^/]+)/renew", self._renew),
            ("POST", "/leases/([^/]+)/release", self._release),
            ("GET", "/completions", self._completions),
            ("POST", "/trajectories", self._open),
            ("POST", "/trajectories/([^/]+)/finish", self._finish),
            ("POST", "/trajectories/([^/]+)/renew", self._move_end),
            ("POST", "/trajectories/([^/]+)/snapshots", self._take_snapshot),
            ("POST", "/trajectories/([^/]+)/park", self._park),
            ("GET", "/snapshots", self._snapshots),
            ("DELETE", "/snapshots/([^/]+)", self._remove_snapshot),
            *self._files.table(),
            *rollouts.table(),
            ("GET", "/status", self._status),
            ("GET", "/problems", self._problems),
            ("GET", "/tasks/([^/]+)/report", self._report),
            ("GET", "/(actions|trajectories|nodes|pools|projects|tasks)", self._list),
        )
        self._table = [
            (verb, re.compile(f"/api/v1{pattern}"), function) for verb, pattern, function in routes
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
        if request.url.params.get("include") == "request":
            view = {**view, "request": _request_of(self._world.payloads[action_id])}
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
        if "from" in payload:
            return self._fork(payload)
        trajectory = self._world.open(payload)
        if trajectory.state != "open":
            raise FakeRefusal(
                409, "conflict", f"{payload['id']} is finished: choose another id", "/id"
            )
        view = trajectory.view()
        if view["task"] != payload["task"]:
            detail = f"{payload['id']} is open and belongs to task {view['task']}"
            raise FakeRefusal(409, "conflict", detail, "/task")
        return FakeAnswer.json(view, 201)

    def _fork(self, payload: dict[str, Any]) -> FakeAnswer:
        source = payload["from"]
        self._trajectory(source)
        count = payload.get("count", 1)
        names = payload.get("names") or [f"{source}-fork-{number}" for number in range(count)]
        for name in names:
            if name in self._world.trajectories:
                raise FakeRefusal(409, "conflict", f"a trajectory {name!r} exists already")
        self._world.fork(source, names)
        views = [self._world.trajectories[name].view() for name in names]
        made = {"way": "sealed", "seconds": 0.01, "frozen_seconds": 0.0}
        return FakeAnswer.json({"from": source, "node": "n1", "trajectories": views, **made}, 201)

    def _take_snapshot(self, request: httpx.Request, trajectory: str) -> FakeAnswer:
        self._trajectory(trajectory)
        name = _body(request)["name"]
        if name in self._world.snapshots:
            raise FakeRefusal(409, "exists", f"there is a snapshot {name!r} already", "/name")
        self._world.take_snapshot(trajectory, name)
        return FakeAnswer.json(self._snapshot(name), 201)

    def _snapshot(self, name: str) -> dict[str, Any]:
        files = self._world.snapshots[name]
        made = {"node": "n1", "made_at": "2026-01-01T00:00:00Z"}
        return {"name": name, "size_bytes": sum(map(len, files.values())), **made}

    def _park(self, request: httpx.Request, name: str) -> FakeAnswer:
        self._trajectory(name)
        return FakeAnswer.json({"id": name, "reclaimed_bytes": 0, "seconds": 0.0})

    def _snapshots(self, request: httpx.Request) -> FakeAnswer:
        return FakeAnswer.json({"items": [self._snapshot(name) for name in self._world.snapshots]})

    def _remove_snapshot(self, request: httpx.Request, name: str) -> FakeAnswer:
        if self._world.snapshots.pop(name, None) is None:
            raise FakeRefusal(404, "not_found", f"there is no snapshot {name!r}")
        return FakeAnswer.json({"name": name, "removed": True})

    def _move_end(self, request: httpx.Request, name: str) -> FakeAnswer:
        trajectory, asked = self._trajectory(name), _body(request)
        if trajectory.state != "open":
            detail = f"trajectory {name!r} is {trajectory.state}: only an open one is renewed"
            raise FakeRefusal(409, "conflict", detail)
        return FakeAnswer.json(trajectory.renewed(self._world.clock.now(), asked))

    def _finish(self, request: httpx.Request, name: str) -> FakeAnswer:
        self._trajectory(name)
        self._world.finish_trajectory(name)
        return FakeAnswer.json(self._world.trajectories[name].view())

    def _trajectory(self, name: str) -> Any:
        try:
            return self._world.trajectories[name]
        except KeyError:
            raise FakeRefusal(404, "not_found", f"there is no trajectory {name!r}") from None

    def _list(self, request: httpx.Request, noun: str) -> FakeAnswer:
        rows: dict[str, list[dict[str, Any]]] = {
            "actions": list(reversed(self._world.actions.values())),
            "trajectories": [each.view() for each in self._world.trajectories.values()],
            "nodes": self._status_body()["nodes"],
            "tasks": [
                {"id": name} for name in dict.fromkeys(map(_task, self._world.actions.values()))
            ],
            "pools": [{"name": "default", "policy": "malleable", "paused": False}],
            "projects": [{"name": "default"}],
        }
        limit = int(request.url.params.get("limit", 100))
        results = rows.get(noun, [])[:limit]
        return FakeAnswer.json({"next": None, "previous": None, "results": results})

    def _problems(self, request: httpx.Request) -> FakeAnswer:
        found = self._world.problems
        health = found[0]["severity"] if found else "ok"
        headline = f"{len(found)} problems." if found else "Everything works."
        return FakeAnswer.json(
            {"health": health, "headline": headline, "detail": "", "problems": found}
        )

    def _report(self, request: httpx.Request, task: str) -> FakeAnswer:
        found = self._world.reports.get(task)
        if found is None:
            raise FakeRefusal(404, "not_found", f"there is no task {task!r}")
        return FakeAnswer.json(found)

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


def _task(view: Mapping[str, Any]) -> str:
    return str(view["task"])


def _request_of(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request of an action as ``include=request`` has it; no secret is recognised here."""
    command = " ".join(payload.get("exec", {}).get("command", ()))
    return {
        "command": command, "submitted_by": "test", "files": [], "body": dict(payload), "masked": [],
        "obstacle": None,
    }  # fmt: skip


def _body(request: httpx.Request) -> dict[str, Any]:
    try:
        body = json.loads(request.content)
    except ValueError:
        raise FakeRefusal(400, "malformed", "the body is not JSON") from None
    return dict(body)


TOKEN = "tgm_test"


@dataclass(frozen=True)
class Sent:
    """A request that reached the server."""

    method: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


class FakeServer:
    """A Tangram in one object; see the package's docstring."""

    url = "http://tangram.test"

    def __init__(
        self,
        run: Run | None = None,
        *,
        token: str = TOKEN,
        cpu: float = 8,
        clock: VirtualClock | None = None,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.token = token
        self.world = World(self.clock, run or (lambda payload: Ran()))
        #: Everything that arrived, faults included.
        self.sent: list[Sent] = []
        self.transport = httpx.MockTransport(self.handle)
        #: Rollouts and backends: how many run at once, and how they end.
        self.rollouts = FakeRollouts(self.clock)
        self._routes = Routes(self.world, self.rollouts, cpu=cpu)
        self._answered: dict[str, tuple[str, FakeAnswer]] = {}
        self._faults: deque[Callable[[httpx.Request], httpx.Response]] = deque()
        self._break_after: deque[int] = deque()

    @property
    def executed(self) -> list[str]:
        """Ids of actions whose work was done, once per time that it was done."""
        return self.world.executed

    def finish(self, action_id: str, ran: Ran | None = None) -> None:
        """End an action that is held."""
        if self.world.actions[action_id]["state"] == "queued":
            self.world.grant(action_id)
        self.world.finish(action_id, ran or Ran())

    def lose_answers(self, times: int = 1) -> None:
        """Do what the next requests ask, and lose the connection before the answer."""
        self._faults.extend([self._lost_answer] * times)

    def lose_requests(self, times: int = 1) -> None:
        """Refuse the next connections."""
        self._faults.extend([self._lost_request] * times)

    def be_busy(self, times: int = 1, *, retry_after: str | None = "1", status: int = 503) -> None:
        """Answer the next requests with 503 (or another status) and ``Retry-After``."""
        problem = {"title": "Busy", "status": status, "code": "busy", "detail": "try later"}
        headers = {"Content-Type": "application/problem+json"}
        if retry_after is not None:
            headers["Retry-After"] = retry_after

        def busy(request: httpx.Request) -> httpx.Response:
            return httpx.Response(status, headers=headers, content=json.dumps(problem))

        self._faults.extend([busy] * times)

    def break_streams(self, *after_bytes: int) -> None:
        """Cut the next event streams after so many bytes."""
        self._break_after.extend(after_bytes)

    def handle(self, request: httpx.Request) -> httpx.Response:
        """Answer one request; the handler of `transport`."""
        request.read()
        self.sent.append(
            Sent(
                request.method,
                request.url.path,
                dict(request.url.params),
                request.headers,
                request.content,
            )
        )
        return self._faults.popleft()(request) if self._faults else self._perform(request)

    def _lost_answer(self, request: httpx.Request) -> httpx.Response:
        self._perform(request)
        raise httpx.ReadError("connection reset by peer", request=request)

    def _lost_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    def _perform(self, request: httpx.Request) -> httpx.Response:
        self.world.tick()
        try:
            if request.url.path in {"/livez", "/readyz"}:
                return httpx.Response(200, json={"status": "ok"})
            self._authenticate(request)
            if request.url.path == "/api/v1/events":
                return self._stream(request)
            if request.url.path.endswith("/stream"):
                return self._output(request)
            answer = self._once(request)
        except FakeRefusal as refusal:
            answer = refusal.answer()
        return httpx.Response(answer.status, headers=answer.headers, content=answer.content)

    def _authenticate(self, request: httpx.Request) -> None:
        if request.headers.get("authorization") != f"Bearer {self.token}":
            raise FakeRefusal(401, "unauthorized", "give a token: Authorization: Bearer tgm_…")

    def _once(self, request: httpx.Request) -> FakeAnswer:
        key = request.headers.get("idempotency-key")
        if request.method != "POST" or key is None:
            return self._routes.answer(request)
        body = request.method.encode() + request.url.path.encode() + request.content
        digest = hashlib.sha256(body).hexdigest()
        known = self._answered.get(key)
        if known is None:
            self._answered[key] = known = (digest, self._routes.answer(request))
        if known[0] != digest:
            raise FakeRefusal(409, "key_reused", "this Idempotency-Key came with another body")
        return known[1]

    def _output(self, request: httpx.Request) -> httpx.Response:
        """Answer with the output of an action; it ends at once, so all of it is there."""
        action_id = request.url.path.split("/")[-2]
        found = self.world.actions.get(action_id)
        if found is None:
            raise FakeRefusal(404, "not_found", f"there is no action {action_id!r}")
        result = found.get("result") or {}
        after = request.headers.get("last-event-id") or "1.0.0"
        read = dict(zip(("stdout", "stderr"), map(int, after.split(".")[1:3]), strict=True))
        text = ""
        for stream in ("stdout", "stderr"):
            rest = result.get(stream, "").encode()[read[stream] :]
            for line in rest.decode().splitlines(keepends=True):
                data = json.dumps({"offset": read[stream], "text": line})
                read[stream] += len(line.encode())
                cursor = f"1.{read['stdout']}.{read['stderr']}"
                text += f"id: {cursor}\nevent: {stream}\ndata: {data}\n\n"
        end = json.dumps({"id": action_id, "outcome": found.get("outcome")})
        text += f"id: 1.{read['stdout']}.{read['stderr']}.end\nevent: end\ndata: {end}\n\n"
        cut = self._break_after.popleft() if self._break_after else None
        headers = {"Content-Type": "text/event-stream"}
        return httpx.Response(200, headers=headers, stream=_Stream(text.encode(), cut))

    def _stream(self, request: httpx.Request) -> httpx.Response:
        events = self.world.events
        cursor = int(request.headers.get("last-event-id") or len(events))
        text = f"id: {cursor}\n\n: heartbeat\n\n"
        for number, (kind, action_id) in enumerate(events[cursor:], start=cursor + 1):
            view = json.dumps(self.world.actions[action_id])
            text += f"event: {kind}\nid: {number}\ndata: {view}\n\n"
        cut = self._break_after.popleft() if self._break_after else None
        headers = {"Content-Type": "text/event-stream"}
        return httpx.Response(200, headers=headers, stream=_Stream(text.encode(), cut))


class _Stream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Bytes in small pieces, with a broken connection where asked."""

    PIECE = 37

    def __init__(self, content: bytes, cut: int | None) -> None:
        self._content = content if cut is None else content[:cut]
        self._broken = cut is not None

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._content), self.PIECE):
            yield self._content[start : start + self.PIECE]
        if self._broken:
            raise httpx.ReadError("connection reset by peer")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece
