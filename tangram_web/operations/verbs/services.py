"""Verbs on GPU services."""

from __future__ import annotations

import secrets
import shlex
from time import time
from typing import Any, Final

import msgspec
from django.http import HttpRequest

from domain.action import Action, Kind
from domain.apis import CallSpec
from domain.errors import Conflict
from domain.events import ActionSubmitted, ServiceEvictionAsked
from domain.ids import action_id
from domain.services import PREFIX, GpuService
from tangram_web.accounts.models import Role
from tangram_web.audit.services import actor_at
from tangram_web.operations.audited_events import record_and_send
from tangram_web.operations.live_counts import calls, live_that
from tangram_web.operations.shell_lines import applied, fixed
from tangram_web.operations.verb import Effect, Target, Values, Verb, shell_line
from tangram_web.pools import applying

#: Task and project of warm-up calls.
TASK: Final = "operations"
PROJECT: Final = "default"


def _of_service(says: str) -> Any:
    def effect(target: Target, _: Values) -> Effect:
        return Effect(live_that(lambda row: calls(row, f"service:{target.name}")), says)

    return effect


def _quarantine(verb: str, *, quarantined: bool) -> Any:
    def do(request: HttpRequest, target: Target, _: Values) -> None:
        spec = msgspec.convert({**target.now, "quarantined": quarantined}, GpuService)
        note = applying.AuditNote(verb, f"service/{target.name}")
        applying.apply({("GpuService", target.name): spec}, actor=actor_at(request), note=note)

    return do


def warming(name: str, service: GpuService) -> ActionSubmitted:
    """Return the submission of one warm-up call; it waits for a chunk as every call does."""
    warm_up = service.warm_up
    call = CallSpec(PREFIX + name, warm_up.method, warm_up.path, body=warm_up.body)
    now = time()
    action = Action(
        id=action_id(int(now * 1000), secrets.token_bytes(8)),
        project=PROJECT,
        task=TASK,
        kind=Kind.CALL,
        cost={"gpu": service.units},
        key="gpu",
        call=call,
        family="restore",
    )
    return ActionSubmitted(action=action, accepted_at=now)


def _restore(request: HttpRequest, target: Target, _: Values) -> None:
    if target.now["quarantined"]:
        raise Conflict("the service is quarantined: release it first")
    event = warming(target.name, msgspec.convert(target.now, GpuService))
    record_and_send(request, "restore", target, None, {"action": event.action.id}, event)


def _evict(request: HttpRequest, target: Target, _: Values) -> None:
    record_and_send(request, "evict", target, None, {}, ServiceEvictionAsked(service=target.name))


def _restoring(target: Target, _: Values) -> str:
    call = {"target": f"service:{target.name}", **target.now.get("warm_up", {"path": "/health"})}
    degrees = [each["gpus"] for each in target.now["degrees"]]
    body = {"task": TASK, "kind": "call", "cost": {"gpu": degrees}, "key": "gpu", "call": call}
    return (
        f"echo {shlex.quote(msgspec.json.encode(body).decode())} | tangram submit --file - --wait"
    )


ON_SERVICES: Final = (
    Verb(kind="service", name="quarantine", title="Quarantine", role=Role.ADMIN, heavy=True,
         undo="release", do=_quarantine("quarantine", quarantined=True),
         line=applied("GpuService", fixed(quarantined=True)),
         effect=_of_service("Running calls continue; other calls wait, and other services may use its chunks.")),
    Verb(kind="service", name="restore", title="Restore", role=Role.OPERATOR, undo="evict",
         do=_restore, line=_restoring,
         effect=_of_service("One warm-up call is submitted; it waits for a chunk as every call does.")),
    Verb(kind="service", name="evict", title="Evict", role=Role.OPERATOR, undo="restore", do=_evict,
         line=lambda target, _: shell_line("tangram", "service", "evict", target.name),
         effect=_of_service("It is removed from its idle chunks; its next call restores it.")),
    Verb(kind="service", name="release", title="Lift the quarantine", role=Role.ADMIN,
         undo="quarantine", do=_quarantine("release", quarantined=False),
         line=applied("GpuService", fixed(quarantined=False)),
         effect=_of_service("Calls are granted again; the first one restores the service.")),
)  # fmt: skip
