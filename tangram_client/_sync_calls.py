"""Every call of the client, blocking. Generated from `_async_calls`: change that one.

``python -m tests.architecture.sync_client`` writes this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import httpx

from tangram_client import _calls, _core, _http, _session_calls
from tangram_client._sse import EVENTS_PATH, EventReader, OutputReader, SseReader
from tangram_client._sync_files import TrajectoryFiles
from tangram_client._sync_objects import whole_action
from tangram_client._sync_sessions import TrajectorySession
from tangram_client._sync_snapshots import SnapshotCalls
from tangram_client.clock import Clock, SystemClock
from tangram_client.context import find_context
from tangram_client.errors import (
    NotFoundError,
    Refused,
    StillRunning,
    TangramClientError,
    Unreachable,
)
from tangram_client.lease import HeldLease, ThreadKeeper, grant_pauses, refused_grant
from tangram_client.models import (
    ActionView,
    Batch,
    Completions,
    Event,
    Forks,
    OutputEvent,
    Page,
    SessionInfo,
)
from tangram_client.payloads import ActionPayload, Units, call_action, exec_action, lease_action
from tangram_client.retry import RetryPolicy
from tangram_client.trajectory import OpenTrajectory

T = TypeVar("T")
AnyAction = ActionPayload | Mapping[str, Any]


class SyncCalls:
    """The calls of one Tangram. Without arguments: the one that `context.find_context` finds."""

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        token: str | None = None,
        *,
        project: str | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
        transport: httpx.BaseTransport | None = None,
        agent: str | None = None,
    ) -> None:
        context = find_context(url, token)
        #: The first web process that was given.
        self.url = context.url
        self._named = ", ".join(context.urls)
        self._project = project
        self._retry = retry or RetryPolicy()
        self._clock = clock or SystemClock()
        self._http = _http.sync_client(context, transport, agent)
        self._sender = _http.sync_sender(self._http, context, transport, agent)

    @property
    def snapshots(self) -> SnapshotCalls:
        """The snapshots of the client's project."""
        return SnapshotCalls(self, self._project)

    def close(self) -> None:
        """Close all connections."""
        self._sender.close()

    def submit(
        self, action: AnyAction, *, wait_seconds: float | None = None,
        idempotency_key: str | None = None,
    ) -> ActionView:  # fmt: skip
        """Submit an action; return how it stands after at most ``wait_seconds``. An ``idempotency_key`` makes a repeat by another process harmless."""
        item = _calls.encode(self._owned(action))
        return whole_action(self, _calls.submit_action(item, wait_seconds, idempotency_key))

    def submit_batch(
        self, actions: Sequence[AnyAction], *, idempotency_key: str | None = None
    ) -> Batch:
        """Submit up to 1,000 actions at once; each is accepted or refused on its own."""
        items = [_calls.encode(self._owned(action)) for action in actions]
        return self.send(_calls.submit_batch(items, key=idempotency_key))

    def run(self, action: AnyAction, *, patience_seconds: float | None = None) -> ActionView:
        """Submit an action and wait for its end.

        Raises StillRunning when ``patience_seconds`` are over first: the action goes on. They are the caller's and count from now,
        queueing included; the action's own limits are ``timeout_seconds`` (execution) and ``queue_timeout_seconds`` (waiting).
        """
        patience = _core.Patience(patience_seconds, at=self._clock.now())
        wait = patience.next_wait(at=self._clock.now())
        return self._finished(self.submit(action, wait_seconds=wait), patience)

    def wait(self, action_id: str, *, patience_seconds: float | None = None) -> ActionView:
        """Wait for the end of an action. Raises StillRunning like `run`."""
        patience = _core.Patience(patience_seconds, at=self._clock.now())
        wait = patience.next_wait(at=self._clock.now())
        return self._finished(self.get(action_id, wait_seconds=wait), patience)

    def get(
        self, action_id: str, *, wait_seconds: float | None = None, include: str | None = None
    ) -> ActionView:
        """Return how an action stands, after at most ``wait_seconds``; ``include="request"``: with its request."""
        return whole_action(self, _calls.get_action(action_id, wait_seconds, include))

    def cancel(self, action_id: str, *, reason: str | None = None) -> ActionView:
        """End an action; a repeat changes nothing."""
        return self.send(_calls.cancel_action(action_id, reason=reason))

    @contextmanager
    def lease(
        self, task: str, cost: Mapping[str, Units], *, ttl_seconds: float = 30.0, **fields: Any
    ) -> Iterator[HeldLease]:
        """Hold resources for work done here; waits until they are granted.

        Raises LeaseLost when it was never granted, or at the end when it was lost meanwhile.
        """
        waiting = self.submit(lease_action(task, cost, ttl_seconds=ttl_seconds, **fields))
        try:
            lease = HeldLease(self._granted(waiting), ttl_seconds, self._clock)
        except BaseException:
            with suppress(TangramClientError):
                self.cancel(waiting.id)
            raise
        keeper = ThreadKeeper(lease, self._clock, self._renew)
        try:
            yield lease
            lease.check()
        finally:
            keeper.stop()
            self._release(lease)

    @contextmanager
    def trajectory(self, trajectory: str, *, task: str, **fields: Any) -> Iterator[Trajectory]:
        """Open a trajectory, and finish it at the end of the block.

        ``fields``: ``environment``, ``pool``, ``project``, ``metadata``.
        """
        self.open_trajectory(trajectory, task=task, **fields)
        project = fields.get("project")
        try:
            yield Trajectory(self, trajectory, task, project)
        except BaseException:
            # What went wrong in the block matters more than a failed farewell.
            with suppress(TangramClientError):
                self.finish_trajectory(trajectory, project=project)
            raise
        self.finish_trajectory(trajectory, project=project)

    def open_trajectory(self, trajectory: str, *, task: str, **fields: Any) -> dict[str, Any]:
        """Declare a trajectory before its first action."""
        payload = self._owned({"id": trajectory, "task": task, **fields})
        return self.send(_calls.open_trajectory(payload))

    def fork_trajectory(self, trajectory: str, count: int | None = None, **fields: Any) -> Forks:
        """Open ``count`` trajectories with the files of another one's environment; finish each.

        ``fields``: ``names`` instead of a count, ``project``, ``metadata``, and ``on_busy``: ``wait`` makes
        the forks after the actions submitted before, ``copy`` copies files that a program holds open.
        Raises Conflict while a command runs or a program writes.
        """
        given = {"from": trajectory, "count": count, **fields}
        payload = {name: value for name, value in given.items() if value is not None}
        return self.send(_calls.fork_trajectory(self._owned(payload)))

    def pause_task(self, task: str) -> None:
        """Grant a task nothing; what runs goes on."""
        self.send(_calls.steer_task(task, "pause", project=self._project))

    def resume_task(self, task: str) -> None:
        """Go on with a task."""
        self.send(_calls.steer_task(task, "resume", project=self._project))

    def prioritise_task(self, task: str, priority: int | None) -> None:
        """Serve all actions of a task at one priority; None: each at its own."""
        body = {"priority": priority}
        self.send(_calls.steer_task(task, "priority", project=self._project, body=body))

    def cancel_task(self, task: str) -> None:
        """End what a task has now."""
        self.send(_calls.steer_task(task, "cancel", project=self._project))

    def evict_service(self, service: str) -> None:
        """Let a GPU service leave the chunks where it does not work."""
        self.send(_calls.evict_service(service))

    def drain_node(self, node: str, *, reason: str | None = None, finishing: bool = False) -> None:  # fmt: skip
        """Let a node take no new actions; what runs there goes on, and if ``finishing``, so do its trajectories."""
        self.send(_calls.control_node(node, "drain", reason=reason, finishing=finishing))

    def resume_node(self, node: str) -> None:
        """Let a node take actions again."""
        self.send(_calls.control_node(node, "resume"))

    def forget_node(self, node: str) -> None:
        """Forget a node that shows no life and holds no work."""
        self.send(_calls.control_node(node, "forget"))

    def revoke_node(self, node: str) -> bool:
        """Shut a node out, and end what runs there. False: its user of Redis is deleted once its keeper runs."""
        return self.send(_calls.revoke_node(node))

    def finish_trajectory(self, trajectory: str, *, project: str | None = None) -> None:
        """End a trajectory: its actions are cancelled, its environment goes."""
        self.send(_calls.finish_trajectory(trajectory, project=project or self._project))

    def renew_trajectory(self, trajectory: str, **fields: Any) -> dict[str, Any]:
        """Move the end of a trajectory to ``ttl_seconds`` from now, with ``only_later`` never nearer."""
        owner = fields.pop("project", None) or self._project
        return self.send(_calls.renew_trajectory(trajectory, fields, project=owner))

    def put_file(
        self, trajectory: str, path: str, content: bytes | str, *, project: str | None = None
    ) -> None:
        """Write a file below the workspace of a trajectory."""
        raw = content.encode() if isinstance(content, str) else content
        self.send(_calls.put_file(trajectory, path, raw, project=project or self._project))

    def get_file(self, trajectory: str, path: str, *, project: str | None = None) -> bytes:
        """Read a file below the workspace of a trajectory."""
        return self.send(_calls.get_file(trajectory, path, project=project or self._project))

    def completions(
        self, after: str = "", *, limit: int | None = None, wait_seconds: float | None = None
    ) -> Completions:
        """Return a page of the log of finished actions, at most 500; ``after="now"`` is its end."""
        call = _calls.completions_after(after, limit=limit, wait_seconds=wait_seconds)
        return self.send(call)

    def follow_completions(self, after: str = "now") -> Iterator[Completions]:
        """Yield page after page for ever; keep ``next`` of the last one to go on from there."""
        while True:
            page = self.completions(after, wait_seconds=_core.Patience.SLICE_SECONDS)
            after = page.next
            if page.items:
                yield page

    def events(self, after: str = "", **filters: str) -> Iterator[Event]:
        """Yield events for ever, over reconnects; ``after``: the cursor of the last one seen."""
        reader = EventReader(after)
        attempts = _core.Attempts(self._retry, at=self._clock.now())
        while True:
            try:
                for chunk in self._chunks(EVENTS_PATH, reader, filters):
                    attempts.succeeded(at=self._clock.now())
                    yield from reader.feed(chunk)
                failure: TangramClientError = Unreachable(f"{self._named} closed the stream")
            except httpx.TransportError as error:
                failure = Unreachable(_http.reason_of(error, self._named))
            except Refused as error:
                failure = error
            self._clock.sleep(attempts.failed(failure, at=self._clock.now()).seconds)

    def output(
        self, action_id: str, *, after: str = "", follow: bool = True
    ) -> Iterator[OutputEvent]:
        """Yield the output of a command from its start to its end, over reconnects; the last event is ``end``.

        Without ``follow``: what there is now. ``after``: the cursor of the last event that was read.
        """
        reader = OutputReader(after)
        attempts = _core.Attempts(self._retry, at=self._clock.now())
        filters = {} if follow else {"follow": "false"}
        while True:
            try:
                for chunk in self._chunks(_calls.stream_path(action_id), reader, filters):
                    attempts.succeeded(at=self._clock.now())
                    for event in reader.feed(chunk):
                        yield event
                        if event.kind == "end":
                            return
                if not follow:
                    return
                failure: TangramClientError = Unreachable(f"{self._named} closed the stream")
            except httpx.TransportError as error:
                failure = Unreachable(_http.reason_of(error, self._named))
            except Refused as error:
                failure = error
            self._clock.sleep(attempts.failed(failure, at=self._clock.now()).seconds)

    def stream(self, action_id: str) -> Iterator[bytes]:
        """Yield the answer of a call with ``stream``, as it comes; once, to one reader.

        Raises Conflict when the action ended without one, and Unreachable when it breaks off.
        """
        return self._body(_http.stream_of(_calls.stream_path(action_id), {}, {}))

    def files(self, trajectory: str, *, project: str | None = None) -> TrajectoryFiles:
        """Return the files of a trajectory's environment."""
        return TrajectoryFiles(self, trajectory, project or self._project)

    def sessions(self, trajectory: str, *, project: str | None = None) -> Sequence[SessionInfo]:
        """Return the sessions of a trajectory, ended ones too."""
        owner = {} if project is None else {"project": project}
        return self.send(_session_calls.list_sessions(trajectory, owner))

    def download(self, call: _core.ApiCall[Any]) -> Iterator[bytes]:
        """Yield the body of an answer as it arrives. Raises Unreachable when it breaks off."""
        return self._body(_http.request_of(call) | {"timeout": _http.STREAM_TIMEOUT})

    def _body(self, request: dict[str, Any]) -> Iterator[bytes]:
        try:
            with self._http.stream(**request) as response:
                if response.status_code >= 400:
                    response.read()
                    raise _core.problem_of(_http.response_of(response))
                yield from response.iter_bytes()
        except httpx.TransportError as error:
            raise Unreachable(_http.reason_of(error, self._named)) from error

    def status(self) -> dict[str, Any]:
        """Return the state of the whole system."""
        return self.send(_calls.status())

    def list(self, noun: str, **filters: object) -> Page:
        """Return a page of ``actions``, ``trajectories``, ``tasks``, ``nodes``, ``pools``, …"""
        return self.send(_calls.list_page(noun, **filters))

    def send(self, call: _core.ApiCall[T], *, retry: RetryPolicy | None = None) -> T:
        """Carry a call of the core to its end; for calls that have no method here."""
        exchange = _core.Exchange(call, retry or self._retry, at=self._clock.now())
        while True:
            step: _core.Done[T] | _core.RetryPause
            try:
                response = self._sender.answer(call)
            except httpx.TransportError as error:
                step = exchange.failed(_http.reason_of(error, self._named), at=self._clock.now())
            else:
                step = exchange.answered(response, at=self._clock.now())
            if isinstance(step, _core.Done):
                return step.value
            self._clock.sleep(step.seconds)

    def _owned(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        return payload if self._project is None else {"project": self._project, **payload}

    def _finished(self, view: ActionView, patience: _core.Patience) -> ActionView:
        while not view.finished:
            wait = patience.next_wait(at=self._clock.now())
            if wait == 0.0:
                raise StillRunning(view.id, view.state)
            view = self._after_wait(view.id, wait)
        return view

    def _granted(self, view: ActionView) -> ActionView:
        pauses = grant_pauses()
        while view.state == "queued":
            self._clock.sleep(next(pauses))
            view = self.get(view.id)
        if view.finished:
            raise refused_grant(view)
        return view

    def _after_wait(self, action_id: str, wait_seconds: float) -> ActionView:
        asked_at = self._clock.now()
        view = self.get(action_id, wait_seconds=wait_seconds)
        if view.state in {"queued", "granted", "running"}:
            took = self._clock.now() - asked_at
            self._clock.sleep(_core.Patience.pause_after(wait_seconds, took_seconds=took))
        return view

    def _renew(self, action_id: str, retry: RetryPolicy) -> None:
        self.send(_calls.renew_lease(action_id), retry=retry)

    def _release(self, lease: HeldLease) -> None:
        # It is over, or the server is unreachable and frees the lease when its ttl expires.
        with suppress(TangramClientError):
            self.send(_calls.release_lease(lease.id, lease.said))

    def _chunks(
        self, path: str, reader: SseReader[Any], filters: Mapping[str, str]
    ) -> Iterator[bytes]:
        request = _http.stream_of(path, reader.connected(), filters)
        with self._http.stream(**request) as response:
            if response.status_code != 200:
                response.read()
                raise _core.problem_of(_http.response_of(response))
            yield from response.iter_bytes()


class Trajectory(OpenTrajectory):
    """An open trajectory: commands run in its environment, one after the other."""

    def __init__(
        self, client: SyncCalls, trajectory: str, task: str, project: str | None = None
    ) -> None:
        super().__init__(trajectory, task, project)
        self._client = client

    def exec(
        self,
        command: str | Sequence[str],
        *,
        patience_seconds: float | None = None,
        **fields: Any,
    ) -> ActionView:
        """Run a command and wait for its end; ``fields`` as in `payloads.exec_action`."""
        action = exec_action(self.task, command, trajectory=self.id, **self._owned(fields))
        return self._client.run(action, patience_seconds=patience_seconds)

    def call(
        self, target: str, path: str = "/", *, patience_seconds: float | None = None, **fields: Any
    ) -> ActionView:
        """Call a declared API and wait for its answer; ``fields`` as in `payloads.call_action`."""
        action = call_action(self.task, target, path, trajectory=self.id, **self._owned(fields))
        return self._client.run(action, patience_seconds=patience_seconds)

    def fork(self, count: int = 1, **fields: Any) -> list[Trajectory]:
        """Open ``count`` forks; ``fields`` as in `SyncCalls.fork_trajectory`. Finish each of them."""
        given = {**({} if "names" in fields else {"count": count}), **self._owned(fields)}
        forks = self._client.fork_trajectory(self.id, **given)
        own = self._client, self.task, self.project
        return [Trajectory(own[0], name, *own[1:]) for name in forks.names]

    @contextmanager
    def session(
        self,
        name: str = "main",
        *,
        shell: str | Sequence[str] = "bash",
        pty: bool = True,
        size: tuple[int, int] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Iterator[TrajectorySession]:
        """Open a session, and close it at the end. ``size``: rows and columns of its terminal."""
        shown = None if size is None else {"rows": size[0], "columns": size[1]}
        given = {"shell": shell, "pty": pty, "size": shown, "env": env, "cwd": cwd}
        body = {"name": name, **{key: each for key, each in given.items() if each is not None}}
        owner = {} if self.project is None else {"project": self.project}
        self._client.send(_session_calls.open_session(self.id, body, owner))
        session = self.attached_session(name)
        try:
            yield session
        finally:
            with suppress(NotFoundError):  # it has ended by itself
                session.close()

    def attached_session(self, name: str = "main") -> TrajectorySession:
        """Return a session that is open already; it stays open."""
        return TrajectorySession(self._client, self.id, self.task, self.project, name)

    def snapshot(self, name: str, *, on_busy: str = "refuse") -> dict[str, Any]:
        """Keep its files under ``name``, as `SnapshotCalls.take`."""
        snapshots = SnapshotCalls(self._client, self.project)
        return snapshots.take(self.id, name, on_busy=on_busy)

    def renew(self, **fields: Any) -> dict[str, Any]:
        """Move its end; ``fields`` as in `SyncCalls.renew_trajectory`."""
        return self._client.renew_trajectory(self.id, **self._owned(fields))

    def finish(self) -> None:
        """End it: its actions are cancelled, its environment is removed."""
        self._client.finish_trajectory(self.id, project=self.project)

    @property
    def files(self) -> TrajectoryFiles:
        """The files of its environment."""
        return self._client.files(self.id, project=self.project)

    def put(self, path: str, content: bytes | str) -> None:
        """Write a file below the workspace."""
        self._client.put_file(self.id, path, content, project=self.project)

    def get(self, path: str) -> bytes:
        """Read a file below the workspace."""
        return self._client.get_file(self.id, path, project=self.project)
