"""ProRL door: the rollout server of ProRL Agent (its first version), for its published clients.

server URL   http://HOST/prorl, through ``tangram door prorl``

    POST /start, /stop       begin and end the session of the task: 400 when it runs, 503 when it does not
    POST /process            a job → its result, once it is finished
    POST /cancel             end a job
    GET  /status             the jobs of the task by stage
    POST /add_llm_server     a server of the language model for the jobs of the task, with or without a session
    POST /clear_llm_server   remove all of them: those added next serve other weights

Rules
1. A job is a rollout of the task that the settings of the door name. Its model is sampled from a pool of the task's own.
2. The same ``job_id`` in a session is the same job, and 400 with another body. Without one, a request adopts an equal job whose
   client is gone, else it is a job of its own: equal samples of a group stay apart (`scheduler.runtime.redis.facade_records`).
3. A client that disconnects ends nothing: its job goes on, for its repetition.
4. ``/stop`` cancels the jobs that came through this door with the task's name, and nothing else (I7). Without a session it does too,
   before its 503: an earlier ``/stop`` may have failed after the end of the session.
5. A finished job is answered 200, with the turns that it has; 504 and 503 are time-outs and failures of Tangram that came before
   the first turn. The clients repeat what is not 200, and 200 without messages, at most twice.
6. A job whose tokens are deleted is answered 410, never as one that had no turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from contract.routes import Route
from domain.errors import InvalidRequest, NotFound, TangramError
from domain.principals import Principal, Scope
from domain.rollouts import RolloutOutcome
from facades.door_settings import DoorSettings
from facades.prorl.answers import TokenIds, pieces, status_of
from facades.prorl.jobs import finished, patch_of, turns_of_job
from facades.prorl.messages import (
    JobCancelRequest,
    JobRequest,
    LlmServerRequest,
    read,
    request_digest,
    submission,
    trajectory_of,
)
from facades.prorl.sessions import ProrlClient, ProrlSessions, not_running
from scheduler.runtime.gateway.facade import Facade, FacadePort
from scheduler.runtime.gateway.http import (
    ClientGone,
    HttpError,
    HttpRequest,
    HttpResponse,
    Send,
    problem_of,
)
from scheduler.runtime.gateway.native_rollouts import NativeRollouts
from scheduler.runtime.gateway.route_table import Handler

DEFAULT_TASK: Final = "prorl"
#: Settings of the door in headers, beside those of `facades.door_settings`.
TOKEN_IDS: Final = b"x-tangram-token-ids"
TIMEOUT: Final = b"x-tangram-timeout"
#: Answered jobs of a task whose tokens a web process keeps, for pages; these clients acknowledge none.
KEPT_ANSWERS: Final = 1000
#: Tasks that a web process remembers; the tokens of one that is forgotten are deleted by their retention.
KEPT_TASKS: Final = 1000
#: A pool that had a server is not asked again for so long.
KNOWN_SECONDS: Final = 1.0
_PIECE_BYTES: Final = 64 * 1024

_OBJECT: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}


_STOPPED: Final = "the session was stopped"
K = TypeVar("K")
V = TypeVar("V")


def _route(method: str, name: str, scope: Scope, summary: str, **members: Any) -> Route:
    return Route(
        method=method,
        path=f"/prorl/{name}",
        operation=f"prorl_{name}",
        summary=summary,
        scope=scope,
        responses={200: _OBJECT},
        errors=(400, 503),
        **members,
    )


ROUTES: Final = (
    _route("POST", "start", Scope.SUBMIT, "Begin the session of the task"),
    _route("POST", "stop", Scope.SUBMIT, "End the session of the task, and its jobs"),
    _route("GET", "status", Scope.READ, "The jobs of the task by stage"),
    _route("POST", "process", Scope.SUBMIT, "Run a job", body=JobRequest, streams=True),
    _route("POST", "cancel", Scope.SUBMIT, "End a job", body=JobCancelRequest),
    _route("POST", "add_llm_server", Scope.OPERATE, "Add a server", body=LlmServerRequest),
    _route("POST", "clear_llm_server", Scope.OPERATE, "Remove all servers"),
)


class ProrlEndpoints:
    """Handlers of ``/prorl``."""

    def __init__(self, port: FacadePort) -> None:
        self._port = port
        self._sessions = ProrlSessions(port)
        #: Pool → when it had a server.
        self._served: dict[str, float] = {}
        #: Project and task → jobs that were answered, the oldest first.
        self._answered: dict[tuple[str, str], deque[str]] = {}

    async def start(
        self, request: HttpRequest, principal: Principal, _: str | None
    ) -> HttpResponse:
        """POST /start."""
        await request.body()
        client = await self._client(request, principal)
        if await self._sessions.start(client.project, client.task) is None:
            raise HttpError(400, "running", "Server is already running")
        return HttpResponse(200, {"status": "Server started successfully"})

    async def stop(self, request: HttpRequest, principal: Principal, _: str | None) -> HttpResponse:
        """POST /stop. A job that is submitted meanwhile ends itself: it finds no session."""
        await request.body()
        client = await self._client(request, principal)
        ran = await self._sessions.stop(client.project, client.task)
        while True:
            page = await client.rollouts.live(client.task)
            await client.rollouts.cancel_all([view.id for view in page.items], _STOPPED)
            if not page.more:
                break
        if not ran:
            raise not_running()
        return HttpResponse(200, {"status": "Server stopped successfully"})

    async def status(
        self, request: HttpRequest, principal: Principal, _: str | None
    ) -> HttpResponse:
        """GET /status, as both engines of ProRL's server answer it."""
        client = await self._client(request, principal)
        _ = client.started.id
        found = await self._port.rollout_counts(client.project, client.task)
        return HttpResponse(200, status_of(found.total, found.stages))

    async def add_server(
        self, request: HttpRequest, principal: Principal, _: str | None
    ) -> HttpResponse:
        """POST /add_llm_server; one that is there already stays as it is."""
        asked = read(LlmServerRequest, await request.body())
        client = await self._client(request, principal)
        if client.fleet:
            said = f"LLM servers are the workers of fleet {client.fleet}; not used: {asked.address}"
            return HttpResponse(200, {"status": said})
        in_use = partial(self._sessions.pools, client.project)
        await client.rollouts.add_backend(client.pool, asked.address, in_use)
        done = "Buffered" if client.session is None else "Added"
        return HttpResponse(200, {"status": f"{done} LLM server address: {asked.address}"})

    async def clear_servers(
        self, request: HttpRequest, principal: Principal, _: str | None
    ) -> HttpResponse:
        """POST /clear_llm_server."""
        await request.body()
        client = await self._client(request, principal)
        if client.fleet:
            said = f"LLM servers are the workers of fleet {client.fleet}; none is cleared"
            return HttpResponse(200, {"status": said})
        await client.rollouts.clear_backends(client.pool)
        self._served.pop(client.pool, None)
        return HttpResponse(200, {"status": "Cleared all LLM server addresses"})

    async def cancel(
        self, request: HttpRequest, principal: Principal, _: str | None
    ) -> HttpResponse:
        """POST /cancel: a job by its ``job_id``, or by the one that its result has."""
        asked = read(JobCancelRequest, await request.body())
        client = await self._client(request, principal)
        rollout = await self._rollout_of(client, asked.job_id)
        view = await client.rollouts.get(rollout)
        if view.outcome is not None:
            said = f"Job {asked.job_id} is finished: {view.outcome}"
            return HttpResponse(200, {"status": said})
        await client.rollouts.cancel(rollout, "cancelled by its client")
        return HttpResponse(200, {"status": f"Cancel requested for job {asked.job_id}"})

    async def process(
        self, request: HttpRequest, principal: Principal, _: str | None, send: Send
    ) -> None:
        """POST /process."""
        asked = read(JobRequest, await request.body())
        client = await self._client(request, principal)
        session = client.started
        seconds = _seconds(request)
        members = submission(
            asked,
            session=session.id,
            task=client.task,
            pool=client.pool,
            handler=client.settings.handler,
            environment=client.settings.environment,
            seconds=seconds,
        )
        await self._check_servers(client)
        digest = request_digest(session.id, asked)
        if asked.job_id is not None:
            rollout = await self._submit(client, members, f"job/{asked.job_id}", digest)
            await self._answer(request, client, asked, rollout, send)
            return
        topic, claims = f"{client.project}:{digest.hex()}", self._port.claims
        slot = await claims.claim(topic)
        end = claims.let_go
        try:
            rollout = await self._submit(client, members, f"slot/{slot}", digest)
            try:
                await self._answer(
                    request, client, asked, rollout, claims.while_held(topic, slot, send)
                )
                end = claims.settle
            except (HttpError, InvalidRequest):  # this is the answer
                end = claims.settle
                raise
        finally:
            await asyncio.shield(end(topic, slot))

    # Jobs

    async def _submit(
        self, client: ProrlClient, members: Mapping[str, Any], key: str, digest: bytes
    ) -> str:
        """Return the rollout of a job: a new one, or that of an earlier request with its key."""
        session = client.started
        try:
            [made] = await client.rollouts.submit(members, key=f"{session.id}/{key}", digest=digest)
        except InvalidRequest as error:
            if error.code != "unknown_handler":
                raise
            said = f"Invalid dataset type or function not registered: {error}"
            raise HttpError(400, error.code, said) from None
        if await self._is_over(client):
            await client.rollouts.cancel_all([made.id], _STOPPED)
            raise not_running()
        return made.id

    async def _answer(
        self,
        request: HttpRequest,
        client: ProrlClient,
        asked: JobRequest,
        rollout: str,
        send: Send,
    ) -> None:
        """Wait for a job, and send its result. Raises HttpError 503, 504, ClientGone."""
        view = await finished(client.rollouts, rollout)
        if view.outcome is RolloutOutcome.CANCELLED and await self._is_over(client):
            raise not_running()
        turns = await turns_of_job(client.rollouts, view)
        if not turns.turns and view.outcome is RolloutOutcome.TIMEOUT:
            raise HttpError(504, "timeout", f"Processing timed out: {view.reason}")
        if not turns.turns and view.outcome is RolloutOutcome.INFRA_FAILED:
            raise HttpError(503, "infra_failed", view.reason or "Tangram could not run the job")
        result = pieces(
            view,
            turns,
            instance_id=asked.instance.get("instance_id", view.instance),
            trajectory_id=trajectory_of(asked.instance),
            patch=await patch_of(client.rollouts, view, turns),
            token_ids=_token_ids(request),
        )
        await _send(request, result, send)
        await self._forget_oldest(client, rollout)

    async def _forget_oldest(self, client: ProrlClient, answered: str) -> None:
        """Delete the tokens of jobs that were answered long ago, which would fill the disk during a training run."""
        task = (client.project, client.task)
        kept = _remember(self._answered, task, self._answered.get(task) or deque())
        with suppress(ValueError):  # a repetition was answered
            kept.remove(answered)
        kept.append(answered)
        if len(kept) > KEPT_ANSWERS:
            oldest = [kept.popleft() for _ in range(max(1, KEPT_ANSWERS // 10))]
            with suppress(TangramError):  # they are deleted later, as of all who acknowledge none
                await client.rollouts.acknowledge(oldest)

    async def _is_over(self, client: ProrlClient) -> bool:
        """Say whether the session of a client was stopped meanwhile."""
        return await self._sessions.running(client.project, client.task) != client.session

    async def _rollout_of(self, client: ProrlClient, job: str) -> str:
        """Return the rollout of a job of this task. Raises HttpError 404, 503."""
        session = client.started
        known = await client.rollouts.remembered(f"{session.id}/job/{job}")
        if known:
            return known[0].id
        with suppress(NotFound):
            view = await client.rollouts.get(job)
            if view.task == client.task and view.door == client.rollouts.native.door:
                return view.id
        raise HttpError(404, "unknown_job", f"there is no job {job[:128]!r} in this session")

    async def _check_servers(self, client: ProrlClient) -> None:
        """Raise HttpError 503 when the task has no LLM server; a fleet without a worker lets its rollouts wait."""
        if client.fleet:
            return
        now = asyncio.get_running_loop().time()
        if now - self._served.get(client.pool, float("-inf")) < KNOWN_SECONDS:
            return
        if not await client.rollouts.backends(client.pool):
            raise HttpError(
                503,
                "no_llm_server",
                "No LLM server addresses configured. Please add at least one LLM server address.",
            )
        _remember(self._served, client.pool, now)

    async def _client(self, request: HttpRequest, principal: Principal) -> ProrlClient:
        settings = DoorSettings.of(request, DEFAULT_TASK)
        rollouts = NativeRollouts(self._port.native(request, principal))
        project = await rollouts.native.project()
        session = await self._sessions.running(project, settings.task)
        return ProrlClient(project, settings.task, settings, rollouts, session)


def _remember(found: dict[K, V], key: K, value: V) -> V:
    """Store a value as the newest of `KEPT_TASKS`, and return it; the oldest is forgotten."""
    found.pop(key, None)
    found[key] = value
    if len(found) > KEPT_TASKS:
        del found[next(iter(found))]
    return value


async def _send(request: HttpRequest, result: Iterator[bytes], send: Send) -> None:
    """Send a result piece by piece. Raises ClientGone when the client left before its end."""
    headers = [(b"content-type", b"application/json"), (b"x-request-id", request.id.encode())]
    gone = asyncio.ensure_future(request.disconnected())
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        unsent = bytearray()
        for piece in result:
            unsent += piece
            if len(unsent) >= _PIECE_BYTES:
                await send(
                    {"type": "http.response.body", "body": bytes(unsent[:-1]), "more_body": True}
                )
                del unsent[:-1]
        await asyncio.sleep(0)  # the server notes a disconnect
        if gone.done():
            raise ClientGone
        await send({"type": "http.response.body", "body": bytes(unsent)})
    finally:
        gone.cancel()


def _token_ids(request: HttpRequest) -> TokenIds:
    stated = request.header(TOKEN_IDS)
    try:
        return TokenIds(stated or TokenIds.RESPONSE)
    except ValueError:
        known = ", ".join(TokenIds)
        raise InvalidRequest(f"X-Tangram-Token-Ids is one of {known}") from None


def _seconds(request: HttpRequest) -> float | None:
    stated = request.header(TIMEOUT)
    try:
        return float(stated) if stated else None
    except ValueError:
        raise InvalidRequest("X-Tangram-Timeout is a number of seconds") from None


def handlers(port: FacadePort) -> Mapping[str, Handler]:
    """Return the handlers of the door's routes."""
    endpoints = ProrlEndpoints(port)
    return {
        "prorl_start": endpoints.start,
        "prorl_stop": endpoints.stop,
        "prorl_status": endpoints.status,
        "prorl_process": endpoints.process,
        "prorl_cancel": endpoints.cancel,
        "prorl_add_llm_server": endpoints.add_server,
        "prorl_clear_llm_server": endpoints.clear_servers,
    }


#: Statuses of the native API that this protocol has others for.
_STATUSES: Final = {409: 400, 422: 400, 429: 503}


def refusal(error: TangramError, request: HttpRequest) -> HttpResponse:
    """Return an error in the shape that FastAPI gives it, with its type in ``code``."""
    problem = problem_of(error, request)
    code = error.code if isinstance(error, HttpError | InvalidRequest) else "unavailable"
    status = _STATUSES.get(problem.status, problem.status)
    return HttpResponse(status, {"detail": str(error), "code": code}, headers=problem.headers)


FACADE: Final = Facade("/prorl", ROUTES, handlers, refusal, _OBJECT)
