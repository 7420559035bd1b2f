"""Verbs on GPU services."""

from __future__ import annotations

import shlex
from typing import Any, Final

import msgspec
from django.http import HttpRequest

from domain.errors import Conflict
from domain.events import ServiceEvictionAsked
from domain.services import GpuService
from tangram_web.accounts.models import Role
from tangram_web.audit.services import actor_at
from tangram_web.operations.counting import calls, live_that
from tangram_web.operations.lines import applied, fixed
from tangram_web.operations.restoring import TASK, warming
from tangram_web.operations.telling import tell_of
from tangram_web.operations.verbs import Effect, Target, Values, Verb, said
from tangram_web.pools import applying


def _of_service(says: str) -> Any:
    def effect(target: Target, _: Values) -> Effect:
        return Effect(live_that(lambda row: calls(row, f"service:{target.name}")), says)

    return effect


def _quarantine(verb: str, *, shut: bool) -> Any:
    def do(request: HttpRequest, target: Target, _: Values) -> None:
        spec = msgspec.convert({**target.now, "quarantined": shut}, GpuService)
        note = applying.AuditNote(verb, f"service/{target.name}")
        applying.apply({("GpuService", target.name): spec}, actor=actor_at(request), note=note)

    return do


def _restore(request: HttpRequest, target: Target, _: Values) -> None:
    if target.now["quarantined"]:
        raise Conflict("it is quarantined; lift that first")
    event = warming(target.name, msgspec.convert(target.now, GpuService))
    tell_of(request, "restore", target, None, {"action": event.action.id}, event)


def _evict(request: HttpRequest, target: Target, _: Values) -> None:
    tell_of(request, "evict", target, None, {}, ServiceEvictionAsked(service=target.name))


def _restoring(target: Target, _: Values) -> str:
    call = {"target": f"service:{target.name}", **target.now.get("warm_up", {"path": "/health"})}
    degrees = [each["gpus"] for each in target.now["degrees"]]
    body = {"task": TASK, "kind": "call", "cost": {"gpu": degrees}, "key": "gpu", "call": call}
    return (
        f"echo {shlex.quote(msgspec.json.encode(body).decode())} | tangram submit --file - --wait"
    )


ON_SERVICES: Final = (
    Verb(kind="service", name="quarantine", title="Quarantine", role=Role.ADMIN, heavy=True,
         undo="release", do=_quarantine("quarantine", shut=True),
         line=applied("GpuService", fixed(quarantined=True)),
         effect=_of_service("Calls that run go on; others wait, and its chunks go to others.")),
    Verb(kind="service", name="restore", title="Restore", role=Role.OPERATOR, undo="evict",
         do=_restore, line=_restoring,
         effect=_of_service("One call warms it up, waiting for its turn as every call does.")),
    Verb(kind="service", name="evict", title="Evict", role=Role.OPERATOR, undo="restore", do=_evict,
         line=lambda target, _: said("tangram", "service", "evict", target.name),
         effect=_of_service("It leaves the chunks where it does not work; its next call restores it.")),
    Verb(kind="service", name="release", title="Lift the quarantine", role=Role.ADMIN,
         undo="quarantine", do=_quarantine("release", shut=False),
         line=applied("GpuService", fixed(quarantined=False)),
         effect=_of_service("Calls are made again; the first one restores the service.")),
)  # fmt: skip
