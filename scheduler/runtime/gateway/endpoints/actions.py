"""Endpoints of actions: submit one or a batch, retrieve with or without waiting, cancel."""

from __future__ import annotations

import asyncio
import hashlib
from math import inf
from time import time
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from contract.receipts import AcceptedAction
from contract.requests import DOOR, MAX_BATCH, ActionRequest, BatchRequest, CancelRequest
from contract.responses import ActionResponse, BatchItemResponse, BatchResponse, ProblemDetails
from contract.routes import API_PREFIX
from domain.action import Action, ActionState
from domain.codec import encode
from domain.errors import InvalidRequest, NotFound, TangramError
from domain.events import ActionCancelRequested, ActionSubmitted
from domain.ids import ActionId
from domain.principals import Principal
from domain.project_limits import loads_of
from scheduler.runtime.gateway.authentication import asked_by
from scheduler.runtime.gateway.context import GatewayContext, is_settled
from scheduler.runtime.gateway.fair_turns import SLICE, turn_of
from scheduler.runtime.gateway.http import HttpRequest, HttpResponse, encode_json, problem_of
from scheduler.runtime.gateway.idempotency import idempotency_key, reused
from scheduler.runtime.gateway.request_parsing import (
    check_batch,
    decode,
    decode_unchecked,
    largest_result,
    wait_seconds,
)
from scheduler.runtime.gateway.session_checks import session_refusal
from scheduler.runtime.stored_actions import with_stored_inputs

_payload = msgspec.json.Decoder(ActionRequest)
_batch = msgspec.json.Decoder(BatchRequest)
_cancel = msgspec.json.Decoder(CancelRequest)
_problem = msgspec.json.Decoder(ProblemDetails)

HASH_BYTES = 16


class _Submission(NamedTuple):
    """The actions of one request, their messages, and what a repetition of the request gets."""

    actions: list[Action]
    messages: list[bytes]
    remember: bytes


class _Item(NamedTuple):
    """An accepted item of a batch."""

    number: int
    action: Action
    message: bytes


class Actions:
    """Handlers of ``/actions``."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def submit(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """POST /actions[?wait=]."""
        body = await request.body()
        seconds = wait_seconds(request.query(), request.header(b"prefer"))
        largest = self._largest_result(request)
        payload = decode(_payload, body)
        context, door = self._context, request.scope.get(DOOR, "")
        try:
            action = context.admission.action(payload, principal, door)
        except (InvalidRequest, NotFound):
            action = await self._admitted(payload, principal, door)
        if action.exec is not None or action.call is not None:
            action = await with_stored_inputs(action, context.bodies)
            await self._check_session(request, action)
        new = _Submission([action], [submission(action)], action.id.encode())
        future = context.tail.finish_of(action.id) if seconds else None
        try:
            before = await self._append_once(request, turn_of(principal), action.project, body, new)
            if before is not None:
                view = await context.find(request, principal, before.decode(), seconds, largest)
                return _shown(view, seconds, replayed=True)
            if future is not None:
                settled = await context.settled(
                    request, principal, action.id, future, seconds, largest
                )
                if settled is not None:
                    return _shown(settled, seconds)
        finally:
            if future is not None:
                context.tail.discard(action.id, future)
        return _accepted(action.id, ActionState.QUEUED)

    def _largest_result(self, request: HttpRequest) -> float:
        """Return the size above which the client reads a result from the object store, where there is one."""
        return inf if self._context.objects is None else largest_result(request.header(b"prefer"))

    async def _check_session(self, request: HttpRequest, action: Action) -> None:
        """Raise 404 or 409 when its session cannot take it, unless the request is a repetition."""
        if action.exec is None or action.exec.session is None:
            return
        refusal = await session_refusal(self._context.node_door, action)
        if refusal is None:
            return
        key = idempotency_key(request)
        stored = self._context.keys.idempotency(action.project, key)
        if not key or not await self._context.client.exists(stored):
            raise refusal

    async def _admitted(
        self, payload: ActionRequest, principal: Principal, door: str = ""
    ) -> Action:
        context = self._context
        return await context.admitted(lambda: context.admission.action(payload, principal, door))

    async def _append_once(
        self, request: HttpRequest, turn: str, project: str, body: bytes, new: _Submission
    ) -> bytes | None:
        """Append; return what the first request with this Idempotency-Key stored, if any."""
        turns, ids = self._context.turns, [action.id for action in new.actions]
        if not turns.passes(turn, submits=True):
            await turns.take(turn, submits=True)
        # Before: the journal may have the actions before the answer of Redis is here.
        turns.sent(turn, ids)
        before: bytes | None = b""
        try:
            if b"idempotency-key" in request.headers:
                before = await self._append_unless_known(request, project, body, new)
            else:
                loads = loads_of(new.actions)
                before = await self._context.submitter.append(new.messages, loads=loads)
        finally:
            if before is not None:
                for action_id in ids:
                    turns.arrived(action_id)
        return before

    async def _append_unless_known(
        self, request: HttpRequest, project: str, body: bytes, new: _Submission
    ) -> bytes | None:
        key, loads = idempotency_key(request), loads_of(new.actions)
        if not key:
            await self._context.submitter.append(new.messages, loads=loads)
            return None
        digest = hashlib.sha256(request.path.encode() + b"\0" + body).digest()[:HASH_BYTES]
        before = await self._context.submitter.append(
            new.messages,
            key=self._context.keys.idempotency(project, key),
            remember=digest + new.remember,
            loads=loads,
        )
        if before is None:
            return None
        if before[:HASH_BYTES] != digest:
            raise reused()
        return before[HASH_BYTES:]

    async def batch(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """POST /actions/batch: each item is accepted or refused on its own."""
        body = await request.body()
        items = [bytes(item) for item in decode_unchecked(_batch, body).actions]
        check_batch(body, items)
        if not 0 < len(items) <= MAX_BATCH:
            raise InvalidRequest(f"give 1 to {MAX_BATCH} actions", pointer="/actions")
        turn = turn_of(principal)
        results: list[BatchItemResponse] = []
        accepted: list[_Item] = []
        for number, item in enumerate(items):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)  # other requests arrive meanwhile
                await self._context.turns.take(turn)
            try:
                action = await self._admitted(decode(_payload, item), principal)
                action = await with_stored_inputs(action, self._context.bodies)
                accepted.append(_Item(number, action, submission(action)))
                results.append(BatchItemResponse(202, action.id, ActionState.QUEUED))
            except TangramError as error:
                results.append(_refused(error, request))
        accepted.sort(key=lambda item: item.action.project)
        if not idempotency_key(request):
            await self._append_in_turns(request, turn, accepted, results)
            return HttpResponse(202, raw=_answer(results))
        answer = _answer(results)
        new = _Submission(
            [item.action for item in accepted], [item.message for item in accepted], answer
        )
        project = principal.project or f"*{principal.name}"
        before = await self._append_once(request, turn, project, body, new)
        headers = {"Idempotent-Replayed": "true"} if before is not None else {}
        return HttpResponse(202, raw=before or answer, headers=headers)

    async def _append_in_turns(
        self,
        request: HttpRequest,
        turn: str,
        accepted: list[_Item],
        results: list[BatchItemResponse],
    ) -> None:
        """Append a batch that no request repeats: in parts, while other projects send requests too.

        When a part is refused, so is the rest of the batch, in ``results``. Raises TangramError when
        it is the first one: then the request has done nothing.
        """
        done = 0
        while done < len(accepted):
            part = accepted[done : done + self._context.turns.share(turn, len(accepted) - done)]
            new = _Submission([item.action for item in part], [item.message for item in part], b"")
            try:
                await self._append_once(request, turn, "", b"", new)
            except TangramError as error:
                if not done:
                    raise
                for item in accepted[done:]:
                    results[item.number] = _refused(error, request)
                return
            done += len(part)

    async def show(
        self, request: HttpRequest, principal: Principal, action_id: str
    ) -> HttpResponse:
        """GET /actions/{id}[?wait=][&include=request]."""
        query = request.query()
        seconds, included = wait_seconds(query, request.header(b"prefer")), query.get("include", "")
        if included not in ("", "request"):
            raise InvalidRequest("include=request is all there is", pointer="?include")
        largest = self._largest_result(request)
        view = await self._context.find(request, principal, action_id, seconds, largest)
        if included:
            view = replace(view, request=await self._context.request_of(action_id))
        return HttpResponse(200, view)

    async def cancel(
        self, request: HttpRequest, principal: Principal, action_id: str
    ) -> HttpResponse:
        """POST /actions/{id}/cancel. A repetition, or the cancel of a finished action, changes nothing."""
        body = await request.body()
        reason = decode(_cancel, body).reason if body.strip() else CancelRequest().reason
        view = await self._context.find(request, principal, action_id)
        if view.state is ActionState.FINISHED:
            return HttpResponse(200, view)
        event = ActionCancelRequested(
            action_id=ActionId(action_id),
            project=view.project,
            reason=reason,
            asked=asked_by(request, principal),
        )
        await self._context.submitter.append([encode(event)], follows=view.project)
        return HttpResponse(202, AcceptedAction(action_id, view.state, cancelling=True))


def submission(action: Action) -> bytes:
    """Return the inbox message of ``action``. Raises InvalidRequest for metadata that it cannot hold."""
    try:
        return encode(ActionSubmitted(action=action, accepted_at=time()))
    except (OverflowError, TypeError, RecursionError) as error:
        raise InvalidRequest(
            f"metadata holds a value that cannot be stored: {error}", pointer="/metadata"
        ) from None


def _refused(error: TangramError, request: HttpRequest) -> BatchItemResponse:
    refused = problem_of(error, request)
    return BatchItemResponse(refused.status, problem=_problem.decode(refused.content))


def _answer(results: list[BatchItemResponse]) -> bytes:
    accepted = sum(one.problem is None for one in results)
    return encode_json(BatchResponse(results, accepted, len(results) - accepted))


def _accepted(action_id: str, state: ActionState) -> HttpResponse:
    headers = {"Location": f"{API_PREFIX}/actions/{action_id}"}
    return HttpResponse(202, AcceptedAction(action_id, state), headers=headers)


def _shown(view: ActionResponse, waited: float, *, replayed: bool = False) -> HttpResponse:
    headers = {"Idempotent-Replayed": "true"} if replayed else {}
    return HttpResponse(200 if waited and is_settled(view) else 202, view, headers=headers)
