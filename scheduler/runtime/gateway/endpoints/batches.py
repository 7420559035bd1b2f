"""Endpoints of batches: manifests of finished rollouts for the ranks of a trainer.

Rules
1. A manifest is metadata: rows go from rollout workers to ranks. `BatchEndpoints.rows` serves them where no worker can be reached.
2. An Idempotency-Key is that of its batch: the same request gets the same batch while that lives, and another one after it.
3. A group has all of its rollouts or none: one that is not finished is refused, or left out where the request says so.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime
from time import time
from typing import Any, Final, cast

import msgspec
import redis
from msgspec.structs import replace

from contract.batch_requests import MAX_BATCH_ROLLOUTS, BatchCreation
from contract.batch_routes import MAX_LISTED_BATCHES, ROWS_TYPE
from contract.batch_views import BatchList, BatchManifest
from contract.rollout_views import RolloutView
from domain.errors import InvalidRequest, NotFound, Unavailable
from domain.principals import Principal
from domain.rollouts import RolloutState
from scheduler.runtime.batches.batch_store import BatchStore
from scheduler.runtime.batches.manifests import FoundRows, found_rows, manifest_of, new_batch_id
from scheduler.runtime.batches.owners import asked_owners
from scheduler.runtime.batches.row_addresses import RowAddresses
from scheduler.runtime.batches.row_reader import RowReader
from scheduler.runtime.batches.row_streams import ExpiredBatch, RowsRequest, RowStreams
from scheduler.runtime.batches.row_tokens import RowTokens
from scheduler.runtime.gateway.authentication import bearer_token
from scheduler.runtime.gateway.context import ROW_POLL_SECONDS, ROW_SECONDS, GatewayContext
from scheduler.runtime.gateway.http import HttpError, HttpRequest, HttpResponse, Send
from scheduler.runtime.gateway.idempotency import idempotency_key, reused
from scheduler.runtime.gateway.request_parsing import decode, number
from scheduler.runtime.gateway.rollout_lookup import RolloutLookup, checked_rollout
from scheduler.runtime.node.door.routes import DoorError
from scheduler.runtime.redis.confirmation import unavailable
from scheduler.runtime.redis.facade_records import FacadeRecords
from scheduler.runtime.rollouts.chat_tokens import SECRET_OF

_creations: Final = msgspec.json.Decoder(BatchCreation)
#: Look-ups of rollouts that rows do not show yet, at once.
_LOOKUPS: Final = 16


class BatchEndpoints:
    """Handlers of ``/batches``."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._lookup = RolloutLookup(context)
        self._store = BatchStore(context.client, context.keys, context.confirmed)
        self._addresses = RowAddresses(context.client, context.keys)
        self._records = FacadeRecords(context.client, context.keys, SECRET_OF, context.confirmed)
        self._streams: RowStreams | None = None

    async def create(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """POST /batches: the rows of finished rollouts, by rank."""
        content = await request.body()
        asked, key = decode(_creations, content), idempotency_key(request)
        context = self._context
        project = await context.admitted(
            lambda: context.admission.project(principal, asked.project)
        )
        digest = hashlib.sha256(content).hexdigest()[:32]
        if key:
            before = await self._before(project, key, digest)
            if before is not None:
                return HttpResponse(201, await self._shown(before, None))
        owners = await asyncio.to_thread(asked_owners, asked.layout)
        views = await self._rollouts(request, principal, project, asked)
        logs = context.rollout_logs
        found = await asyncio.to_thread(found_rows, views, RowReader(logs))
        _check(found, asked)
        now = time()
        expires = now + asked.expires_seconds
        manifest = manifest_of(new_batch_id(), project, found, owners, now, expires)
        await self._store.put(manifest, now, expires)
        if key:
            first = await self._store.first_of(
                project, key, manifest.id, digest, asked.expires_seconds
            )
            if first.partition(" ")[0] != manifest.id:  # an equal request was answered meanwhile
                manifest = await self._before(project, key, digest) or manifest
        return HttpResponse(201, await self._shown(manifest, None))

    async def listed(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """GET /batches: newest first."""
        query = request.query()
        limit = int(number(query.get("limit", "100"), "limit", MAX_LISTED_BATCHES)) or 1
        projects: list[str] | None = None if principal.project is None else [principal.project]
        if query.get("project"):
            projects = [await self._context.project(request, principal)]
        return HttpResponse(200, BatchList(await self._store.listed(projects, limit)))

    async def show(self, request: HttpRequest, principal: Principal, batch: str) -> HttpResponse:
        """GET /batches/{id}[?rank=]: the manifest again."""
        manifest = await self._store.manifest(batch)
        if manifest is None:
            project = await self._context.project(request, principal)
            if await self._store.is_known(project, batch):
                raise ExpiredBatch(batch)
        if manifest is None or not principal.sees(manifest.project):
            raise NotFound(f"there is no batch {batch[:64]!r}")
        text = request.query().get("rank")
        rank = None if text is None else int(number(text, "rank"))
        if rank is not None and all(owner.rank != rank for owner in manifest.owners):
            known = ", ".join(str(owner.rank) for owner in manifest.owners[:8])
            raise InvalidRequest(
                f"batch {batch} has no rank {rank}; it has {known}", pointer="?rank"
            )
        return HttpResponse(200, await self._shown(manifest, rank))

    async def rows(self, request: HttpRequest, batch: str, send: Send) -> None:
        """GET /batches/{id}/rows: rows of a rank, by its token."""
        streams, query = await self._row_streams(), request.query()
        asked = RowsRequest(
            batch, query.get("rank", ""), query.get("rows", ""), bearer_token(request)
        )
        try:
            found = await streams.checked(asked)
        except DoorError as error:
            raise HttpError(error.status, error.code, str(error)) from None
        kind = (b"content-type", ROWS_TYPE.encode())
        head = [kind, (b"x-request-id", request.id.encode("latin-1"))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        async with aclosing(cast("Any", streams.frames(found))) as frames:
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _before(self, project: str, key: str, digest: str) -> BatchManifest | None:
        """Return the batch of an earlier request with ``key``; None: there is none any more. Raises Conflict."""
        text = await self._store.first_of(project, key, "", "", 0)
        batch, _, of = text.partition(" ")
        if batch and of != digest:
            raise reused()
        return await self._store.manifest(batch) if batch else None

    async def _rollouts(
        self, request: HttpRequest, principal: Principal, project: str, asked: BatchCreation
    ) -> list[RolloutView]:
        """Return the rollouts of a request, in its order. Raises NotFound, InvalidRequest, Unavailable."""
        if (asked.group is None) == (asked.rollouts is None):
            raise InvalidRequest(
                "name the rollouts of the batch by group or by rollouts, one of them",
                pointer="/rollouts",
            )
        if asked.rollouts is None:
            groups = [asked.group] if isinstance(asked.group, str) else asked.group or []
            views = await self._of_groups(project, groups, asked.task or "")
        else:
            ids = [checked_rollout(each) for each in dict.fromkeys(asked.rollouts)]
            views = await self._of_ids(ids)
        late = [view for view in views if view.outcome is None]
        limit = asyncio.Semaphore(_LOOKUPS)

        async def now(view: RolloutView) -> RolloutView:
            async with limit:
                return await self._lookup.find(request, principal, view.id)

        newer = {view.id: view for view in await asyncio.gather(*map(now, late))}
        found = [newer.get(view.id, view) for view in views]
        for view in found:
            if view.project != project:
                raise NotFound(f"there is no rollout {view.id!r} in project {project!r}")
        return found

    async def _of_ids(self, ids: Sequence[str]) -> list[RolloutView]:
        """Return rollouts by their rows; one that has none yet is looked for by its id alone."""
        known = {view.id: view for view in await self._context.backend.rollouts(ids, (), "", "")}
        return [known.get(each) or _unknown(each) for each in ids]

    async def _of_groups(self, project: str, groups: Sequence[str], task: str) -> list[RolloutView]:
        """Return the rollouts of groups, by group, then by sample. Raises NotFound, Unavailable."""
        for _ in range(int(ROW_SECONDS / ROW_POLL_SECONDS)):
            if await self._context.rows_are_current():
                break
            await asyncio.sleep(ROW_POLL_SECONDS)
        else:
            raise Unavailable("the rows of these rollouts are not written yet; try again")
        found = await self._context.backend.rollouts((), groups, project, task)
        if len(found) > MAX_BATCH_ROLLOUTS:
            raise InvalidRequest(
                f"the groups have more than {MAX_BATCH_ROLLOUTS} rollouts: divide the batch",
                pointer="/group",
            )
        place = {group: at for at, group in enumerate(groups)}
        missing = place.keys() - {view.group for view in found}
        if missing:
            name = min(missing, key=place.__getitem__)
            raise NotFound(f"project {project!r} has no rollouts of group {name[:128]!r}")
        return sorted(found, key=lambda view: (place[view.group or ""], view.sample, view.id))

    async def _shown(self, manifest: BatchManifest, rank: int | None) -> BatchManifest:
        """Return a manifest with the workers that live, and the tokens of its ranks, or of one."""
        tokens = RowTokens(await self._records.secret())
        expires = datetime.fromisoformat(manifest.expires_at).timestamp()
        owners = [
            replace(owner, token=tokens.token(manifest.id, manifest.project, owner.rank, expires))
            if rank in (None, owner.rank)
            else owner
            for owner in manifest.owners
        ]
        try:
            workers = await self._addresses.living()
        except redis.RedisError as error:
            raise unavailable(error) from None
        return replace(manifest, owners=owners, workers=workers)

    async def _row_streams(self) -> RowStreams:
        if self._streams is None:
            tokens = RowTokens(await self._records.secret())
            self._streams = RowStreams(self._store, tokens, self._context.rollout_logs)
        return self._streams


def _unknown(rollout: str) -> RolloutView:
    """Return a stand-in for a rollout that has no row yet."""
    return RolloutView(id=rollout, state=RolloutState.WAITING)


def _check(found: FoundRows, asked: BatchCreation) -> None:
    """Raise HttpError 409, which names each rollout, for rollouts that cannot train."""
    if found.refused and not asked.leave_out:
        first = found.refused[0]
        more = f" (and {len(found.refused) - 1} others, see errors)" if found.refused[1:] else ""
        error = HttpError(
            409, "batch_incomplete",
            f"{first.detail}{more}. leave_out makes a batch without such rollouts",
        )  # fmt: skip
        error.errors = [msgspec.to_builtins(each) for each in found.refused]
        raise error
    if not found.rows:
        raise HttpError(
            409, "batch_empty", "none of the rollouts can train: nothing is left for a batch"
        )
