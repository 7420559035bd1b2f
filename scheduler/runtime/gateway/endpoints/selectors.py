"""Endpoints of selectors: what is in force, decisions, observations, profiles and pins.

Each reads by one query of the scheduler loop, which answers after what was sent before it. Selectors are shared by all projects: tokens of
one project report loads and ask for degrees, but pin nothing and change no profile (403).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from contract.selector_routes import ChangedSelector, DegreePinRequest, StageLoadRequest
from contract.selector_status import (
    NO_PROFILE,
    SelectorList,
    SelectorsStatus,
    SelectorView,
)
from domain.codec import encode
from domain.errors import Conflict, InvalidRequest, NotFound
from domain.event_base import EventBase
from domain.principals import Principal
from domain.selector_events import SelectorObserved, SelectorPinned, SelectorProfiled
from domain.selectors import (
    MOST_TOKENS,
    ParallelismProfile,
    SelectorStage,
    StageLoad,
    check_load,
    check_profile_change,
)
from scheduler.runtime.gateway.authentication import asked_by
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.http import HttpError, HttpRequest, HttpResponse
from scheduler.runtime.gateway.request_parsing import decode, number

_pin = msgspec.json.Decoder(DegreePinRequest)
_observation = msgspec.json.Decoder(StageLoadRequest)
_profile = msgspec.json.Decoder(ParallelismProfile)


class SelectorEndpoints:
    """Handlers of ``/selectors``."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def list(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """GET /selectors."""
        found = await self._context.queries.selectors()
        return HttpResponse(200, SelectorList(found.selectors))

    async def show(self, request: HttpRequest, principal: Principal, selector: str) -> HttpResponse:
        """GET /selectors/{selector}: with its latest loads and switches."""
        found = await self._context.queries.selectors(selector, history=True)
        return HttpResponse(200, _only(found, selector))

    async def profile(
        self, request: HttpRequest, principal: Principal, selector: str
    ) -> HttpResponse:
        """GET /selectors/{selector}/profile."""
        found = await self._context.queries.selectors(selector, cells=True)
        _only(found, selector)
        if found.profile is None:
            raise Conflict(f"selector {selector!r} has no profile that fits", code=NO_PROFILE)
        return HttpResponse(200, found.profile)

    async def put_profile(
        self, request: HttpRequest, principal: Principal, selector: str
    ) -> HttpResponse:
        """PUT /selectors/{selector}/profile: cells are added, or replaced."""
        change = decode(_profile, await request.body())
        _check_all_projects(principal)
        check_profile_change(change)
        change = msgspec.structs.replace(change, revision=0)
        await self._check(selector)
        event = SelectorProfiled(
            selector=selector, change=change, asked=asked_by(request, principal)
        )
        await self._append(event)
        return HttpResponse(202, ChangedSelector(selector, len(change.cells)))

    async def decision(
        self, request: HttpRequest, principal: Principal, selector: str
    ) -> HttpResponse:
        """GET /selectors/{selector}/decision: the degree of a stage that begins now."""
        query = request.query()
        stage, load = _stage(query.get("stage", "rollout")), _load(query)
        observed = query.get("dry_run", "false") not in ("true", "1")
        found = await self._context.queries.selectors(selector, load=load, stage=stage)
        _only(found, selector)
        if observed and not found.problem:
            step = query.get("step")
            event = SelectorObserved(
                selector=selector, load=load, stage=stage, begins=True,
                step=None if step is None else int(number(step, "step", MOST_TOKENS)),
                asked=asked_by(request, principal),
            )  # fmt: skip
            await self._append(event)
            found = await self._context.queries.selectors(
                selector, load=load, stage=stage, observed=True
            )
            _only(found, selector)
        if found.problem == NO_PROFILE:
            raise Conflict(found.detail, code=NO_PROFILE)
        if found.decision is None:
            raise InvalidRequest(found.detail, code=found.problem)
        return HttpResponse(200, found.decision)

    async def observe(
        self, request: HttpRequest, principal: Principal, selector: str
    ) -> HttpResponse:
        """POST /selectors/{selector}/observations."""
        payload = decode(_observation, await request.body())
        load = StageLoad(
            payload.context, payload.context_p95, payload.context_longest, payload.responses,
            payload.queue, payload.tokens,
        )  # fmt: skip
        check_load(load)
        view = await self._check(selector)
        if payload.stage not in {each.stage for each in view.stages}:
            known = ", ".join(each.stage for each in view.stages)
            raise InvalidRequest(f"selector {selector!r} decides about {known}", pointer="/stage")
        event = SelectorObserved(
            selector=selector, load=load, stage=payload.stage, step=payload.step,
            asked=asked_by(request, principal),
        )  # fmt: skip
        await self._append(event)
        return HttpResponse(202, ChangedSelector(selector))

    async def pin(self, request: HttpRequest, principal: Principal, selector: str) -> HttpResponse:
        """POST /selectors/{selector}/pin: refused where it would run out of memory, unless it is forced."""
        payload = decode(_pin, await request.body())
        _check_all_projects(principal)
        found = await self._context.queries.selectors(
            selector, pin=payload.parallelism, forced=payload.force
        )
        _only(found, selector)
        if found.problem:
            raise InvalidRequest(found.detail, pointer="/parallelism", code=found.problem)
        event = SelectorPinned(
            selector=selector, parallelism=payload.parallelism, forced=payload.force,
            asked=asked_by(request, principal),
        )  # fmt: skip
        await self._append(event)
        return HttpResponse(202, ChangedSelector(selector, parallelism=payload.parallelism))

    async def unpin(
        self, request: HttpRequest, principal: Principal, selector: str
    ) -> HttpResponse:
        """POST /selectors/{selector}/unpin."""
        await request.body()
        _check_all_projects(principal)
        await self._check(selector)
        event = SelectorPinned(selector=selector, asked=asked_by(request, principal))
        await self._append(event)
        return HttpResponse(202, ChangedSelector(selector))

    async def _check(self, selector: str) -> SelectorView:
        """Return a selector. Raises NotFound, Unavailable."""
        return _only(await self._context.queries.selectors(selector), selector)

    async def _append(self, event: EventBase) -> None:
        await self._context.submitter.append([encode(event)])


def _only(found: SelectorsStatus, selector: str) -> SelectorView:
    if not found.selectors:
        raise NotFound(f"there is no selector {selector[:128]!r}: declare one of kind Selector")
    return found.selectors[0]


def _stage(text: str) -> SelectorStage:
    try:
        return SelectorStage(text)
    except ValueError:
        known = ", ".join(SelectorStage)
        raise InvalidRequest(f"{text[:64]!r} is no stage: give {known}", pointer="/stage") from None


def _load(query: Mapping[str, str]) -> StageLoad:
    def of(name: str, default: str) -> float:
        return number(query.get(name, default), name, MOST_TOKENS)

    if "context" not in query:
        raise InvalidRequest("give context: tokens of a response", pointer="/context")
    load = StageLoad(
        of("context", "0"),
        context_longest=of("longest", "0"),
        responses=int(of("responses", "1")),
        queue=int(of("queue", "0")),
        tokens=of("tokens", "0"),
    )
    check_load(load)
    return load


def _check_all_projects(principal: Principal) -> None:
    if principal.project is not None:
        raise HttpError(
            403,
            "all_projects",
            "selectors are shared by all projects: use a token that is not bound to a project",
        )
