"""Endpoints of rollouts: submit, retrieve with or without waiting, completions, acknowledge.

A rollout is accepted (202) once record 0 of its log and then its event are on disk. A log whose event was refused
belongs to no rollout and is deleted later (`scheduler.runtime.rollouts.log_sweeper`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import accumulate
from time import monotonic, time
from typing import Any, Final

import msgspec
import redis

from contract.requests import DOOR
from contract.rollout_requests import (
    AcknowledgeRequest,
    RolloutsRequest,
)
from contract.rollout_routes import MAX_LISTED, MAX_ROLLOUT_COMPLETIONS, PACKED_TYPE
from contract.rollout_status import no_worker_has
from contract.rollout_views import (
    AcceptedRollouts,
    AcknowledgedRollouts,
    RolloutCompletions,
    RolloutList,
    RolloutView,
)
from domain.backends import check_pool_of, owner_of
from domain.codec import encode
from domain.errors import InvalidRequest, NotFound
from domain.fleets import fleet_name
from domain.principals import Principal
from domain.rollout_events import RolloutsSubmitted
from scheduler.runtime.capacity import FleetCapacity
from scheduler.runtime.gateway.admission import check_metadata
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.door_keys import DOOR_KEY, DoorKey
from scheduler.runtime.gateway.endpoints.backends import knows_addresses, visible
from scheduler.runtime.gateway.endpoints.event_feeds import NOW, completions_cursor
from scheduler.runtime.gateway.http import HttpError, HttpRequest, HttpResponse, encode_json
from scheduler.runtime.gateway.request_parsing import decode, number, wait_seconds
from scheduler.runtime.gateway.rollout_bounds import RolloutBound
from scheduler.runtime.gateway.rollout_lookup import RolloutLookup, checked_rollout, live_view_of
from scheduler.runtime.redis.confirmation import unavailable
from scheduler.runtime.rollouts.acceptance import AcceptedRequest, accepted, declared_stages
from scheduler.runtime.rollouts.log_frames import RolloutLogDamaged
from scheduler.runtime.rollouts.membership import ROLE
from scheduler.runtime.rollouts.result_documents import (
    artefact_content,
    document_of,
    turns_document,
)

log = logging.getLogger(__name__)

_rollouts = msgspec.json.Decoder(RolloutsRequest)
_acknowledge = msgspec.json.Decoder(AcknowledgeRequest)
#: A worker that has shown life within this time can run rollouts.
WORKER_SECONDS: Final = 10.0
#: Bytes of the logs whose tokens one page of completions has; one log more than this is a page of its own.
PAGE_BYTES: Final = 64 * 1024**2


class RolloutEndpoints:
    """Handlers of ``/rollouts``."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._lookup = RolloutLookup(context)
        self._bound = RolloutBound(context.queries, context.live_rollouts)

    async def submit(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """POST /rollouts: some samples of each instance."""
        payload = decode(_rollouts, await request.body())
        door = request.scope.get(DOOR, "")
        found = await self._context.admitted(lambda: self._admitted(payload, principal, door))
        await self._check_handler(payload.handler)
        key: DoorKey | None = request.scope.get(DOOR_KEY)
        if key is not None and (before := await self._before(key, found)) is not None:
            return HttpResponse(202, raw=before)
        receipts = encode_json(AcceptedRollouts([each.receipt for each in found]))
        async with self._bound.room(found[0].rollout.project, len(found)):
            await asyncio.to_thread(_store, self._context, found)
            event = RolloutsSubmitted(
                rollouts=tuple(each.rollout for each in found), accepted_at=time()
            )
            if key is None:
                await self._context.submitter.append([encode(event)])
                return HttpResponse(202, raw=receipts)
            stored = await self._context.submitter.append(
                [encode(event)],
                key=key.name(self._context.keys, found[0].rollout.project),
                remember=key.remember(receipts),
            )
        if stored is None:
            return HttpResponse(202, raw=receipts)
        for (
            each
        ) in found:  # the first request was accepted meanwhile: these logs belong to no rollout
            await asyncio.to_thread(self._context.rollout_logs.remove, each.rollout.id)
        return HttpResponse(202, raw=key.receipts(stored))

    async def _before(self, key: DoorKey, found: list[AcceptedRequest]) -> bytes | None:
        """Return the receipts of the first request of a door with ``key``, None for the first. Raises Conflict."""
        name = key.name(self._context.keys, found[0].rollout.project)
        try:
            stored = await self._context.confirmed.call("GET", name)
        except redis.RedisError as error:
            raise unavailable(error) from None
        return key.receipts(stored) if isinstance(stored, bytes) else None

    async def show(self, request: HttpRequest, principal: Principal, rollout: str) -> HttpResponse:
        """GET /rollouts/{id}[?wait=]: its state, and its tokens once it is finished."""
        query, rollout = request.query(), checked_rollout(rollout)
        seconds = wait_seconds(query, request.header(b"prefer"))
        view = await self._lookup.find(request, principal, rollout, seconds)
        packed = _is_packed(request)
        body = await asyncio.to_thread(
            self._document, view, tokens=_with_tokens(query), packed=packed
        )
        return _response(body, packed=packed)

    async def listed(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """GET /rollouts: those that are not finished."""
        query = request.query()
        limit = int(number(query.get("limit", "100"), "limit", MAX_LISTED)) or 1
        project = principal.project or ""
        if query.get("project"):
            project = await self._context.project(request, principal)
        found = await self._context.queries.rollouts(
            project=project,
            task=query.get("task", ""),
            group=query.get("group", ""),
            door=query.get("door", ""),
            limit=limit + 1,
        )
        items = [live_view_of(each) for each in found.rollouts[:limit]]
        return HttpResponse(200, RolloutList(items, len(found.rollouts) > limit))

    async def artefact(
        self, request: HttpRequest, principal: Principal, rollout: str, name: str
    ) -> HttpResponse:
        """GET /rollouts/{id}/artefacts/{name}: the bytes of a file that a stage stored."""
        await self._lookup.find(request, principal, checked_rollout(rollout))
        content = await asyncio.to_thread(self._artefact, rollout, name)
        return HttpResponse(200, raw=content, content_type=b"application/octet-stream")

    def _artefact(self, rollout: str, name: str) -> bytes:
        """Return the bytes of an artefact. Raises NotFound; HttpError 500 where the log has it and it cannot be read."""
        with _readable():
            return artefact_content(self._context.rollout_logs, rollout, name)

    async def turns(self, request: HttpRequest, principal: Principal, rollout: str) -> HttpResponse:
        """GET /rollouts/{id}/turns: each response of the model, with the messages and tokens before it."""
        view = await self._lookup.find(request, principal, checked_rollout(rollout))
        names = await self._names_of_backends(principal, view)
        packed = _is_packed(request)
        body = await asyncio.to_thread(self._turns, rollout, names, packed)
        return _response(body, packed=packed)

    def _turns(self, rollout: str, names: Mapping[str, str] | None, packed: bool) -> bytes:
        with _readable():
            records = self._context.rollout_logs.read(rollout)
        found = turns_document(rollout, records, names=names, packed=packed)
        return _encoded(found, packed=packed)

    async def _names_of_backends(
        self, principal: Principal, view: RolloutView
    ) -> Mapping[str, str] | None:
        """Return the names that ``principal`` may know, by those of the log; None: all of them.

        The end of a rollout names no pool: then a name counts that any pool has now.
        """
        if knows_addresses(principal, view.llm) or fleet_name(view.llm) is not None:
            return None  # names of a fleet's workers are declared, and no addresses
        found = await self._context.queries.rollouts(backends=(view.llm or "*",), limit=0)
        return {
            each.name: visible(each, principal).name
            for each in found.backends
            if owner_of(each.pool) in ("", principal.project)
        }

    async def completions(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """GET /rollouts/completions?after=CURSOR&limit=&wait=: finished rollouts in journal order.

        A page with tokens ends before its limit where their logs pass `PAGE_BYTES`; ``more`` says so.
        """
        query, context = request.query(), self._context
        limit = int(number(query.get("limit", "32"), "limit", MAX_ROLLOUT_COMPLETIONS)) or 1
        start = completions_cursor(query.get("after", ""), context.tail.seq)
        packed = _is_packed(request)
        if query.get("after") == NOW:
            body = self._page(RolloutCompletions([], str(start)), tokens=False, packed=packed)
            return _response(body, packed=packed)
        deadline = monotonic() + wait_seconds(query, request.header(b"prefer"))
        seen = ""
        page = await context.backend.rollout_completions(principal.project, start, limit)
        while not page.items and (left := deadline - monotonic()) > 0:
            seen = await context.newer_rows(seen, left)
            page = await context.backend.rollout_completions(principal.project, start, limit)
        if _with_tokens(query):
            fit = await asyncio.to_thread(self._fit, page)
            if fit < len(page.items):
                page = await context.backend.rollout_completions(principal.project, start, fit)
        body = await asyncio.to_thread(self._page, page, tokens=_with_tokens(query), packed=packed)
        return _response(body, packed=packed)

    async def acknowledge(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """POST /rollouts/acknowledge: delete the logs of finished rollouts."""
        payload = decode(_acknowledge, await request.body())
        done: list[str] = []
        for rollout in dict.fromkeys(payload.ids):
            try:
                view = await self._lookup.find(request, principal, checked_rollout(rollout))
            except NotFound:
                continue
            if view.outcome is not None:
                await asyncio.to_thread(self._context.rollout_logs.remove, rollout)
                done.append(rollout)
        return HttpResponse(200, AcknowledgedRollouts(done))

    def _admitted(
        self, payload: RolloutsRequest, principal: Principal, door: str
    ) -> list[AcceptedRequest]:
        admission = self._context.admission
        project = admission.project(principal, payload.project)
        check_metadata(payload.metadata)
        _check_model(payload, project, admission.view.fleets)
        for environment in (payload.environment, *(i.environment for i in payload.instances)):
            if environment is not None:
                admission.check_environment(environment, project, payload.task, "")
        stages = declared_stages(admission.view.resources)
        return accepted(payload, project, stages, door)

    async def _check_handler(self, handler: str) -> None:
        """Raise InvalidRequest for a handler that no live worker has; without a worker it may come."""
        try:
            rows = await self._context.client.hgetall(self._context.keys.workers)
        except redis.RedisError as error:
            raise unavailable(error) from None
        lives = [json.loads(row) for row in rows.values()]
        having = [
            set(life.get("handlers", ()))
            for life in lives
            if life["role"] == ROLE and time() - life["at"] <= WORKER_SECONDS
        ]
        if having and not any(handler in names for names in having):
            known = ", ".join(sorted(set().union(*having)))
            raise InvalidRequest(
                no_worker_has(handler, known), pointer="/handler", code="unknown_handler"
            )

    def _fit(self, page: RolloutCompletions) -> int:
        """Return how many rollouts of a page have logs of at most `PAGE_BYTES` together; the first one always."""
        sizes = (self._context.rollout_logs.size(view.id) for view in page.items)
        return max(1, sum(total <= PAGE_BYTES for total in accumulate(sizes)))

    def _page(self, page: RolloutCompletions, *, tokens: bool, packed: bool) -> bytes:
        items = [self._document(view, tokens=tokens, packed=packed) for view in page.items]
        found = {"items": list(map(msgspec.Raw, items)), "next": page.next, "more": page.more}
        return _encoded(found, packed=packed)

    def _document(self, view: RolloutView, *, tokens: bool, packed: bool) -> bytes:
        """Return the document of a rollout; of one whose log cannot be read it has the row, and says why."""
        logs = self._context.rollout_logs
        try:
            with suppress(NotFound):
                kept = logs if logs.is_kept else None
                return _encoded(
                    document_of(view, kept, tokens=tokens, packed=packed), packed=packed
                )
        except Exception as error:  # else one log would keep a trainer from all that ended later
            log.exception("the log of %s cannot be read", view.id)
            view.log_problem = str(error) or type(error).__name__
        return _encoded(document_of(view, None, tokens=tokens, packed=packed), packed=packed)


def _check_model(
    payload: RolloutsRequest, project: str, fleets: Mapping[str, FleetCapacity]
) -> None:
    """Raise InvalidRequest, naming the member, for a language model that the rollouts cannot call."""
    llm = payload.llm or ""
    name = fleet_name(llm)
    if name is None:
        check_pool_of(llm, project, "/llm")
        if payload.batch:
            raise InvalidRequest(
                "a fleet alone arranges batches: give fleet:NAME as llm, or leave out batch",
                pointer="/batch",
            )
    elif name not in fleets:
        known = ", ".join(f"fleet:{each}" for each in sorted(fleets)) or "none yet"
        raise InvalidRequest(
            f"there is no fleet {name!r}; there are: {known}. Declare it as a Fleet (docs/fleets.md), or name a"
            " pool of backends, without fleet:",
            pointer="/llm",
        )
    if payload.batch_size and not payload.batch:
        raise InvalidRequest("name the batch that has this size", pointer="/batch")


def _store(context: GatewayContext, found: list[AcceptedRequest]) -> None:
    """Write record 0 of each log. Raises CapacityError, InvalidRequest for what it cannot hold."""
    try:
        context.rollout_logs.create([(each.rollout.id, each.first) for each in found])
    except (OverflowError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"an instance has a value that cannot be stored: {error}") from None


@contextmanager
def _readable() -> Iterator[None]:
    """Raise HttpError 500 for a log that is damaged."""
    try:
        yield
    except RolloutLogDamaged as error:
        raise HttpError(
            500,
            error.code,
            f"{error}; its row is whole, what is in the log cannot be had: submit the instance again",
        ) from error


def _is_packed(request: HttpRequest) -> bool:
    return PACKED_TYPE in request.header(b"accept")


def _with_tokens(query: Mapping[str, str]) -> bool:
    return query.get("segments", "true") != "false"


def _encoded(found: dict[str, Any], *, packed: bool) -> bytes:
    return msgspec.msgpack.encode(found) if packed else encode_json(found)


def _response(body: bytes, *, packed: bool) -> HttpResponse:
    kind = PACKED_TYPE.encode() if packed else b"application/json"
    return HttpResponse(200, raw=body, content_type=kind)
