"""Verbs on rollouts, on backends of language models, and on their pools.

Pools of backends belong to all projects, so their verbs need the role in every project; those of a pool ``NAME@PROJECT`` need it in that
project, whose servers have addresses that `check_own_address` permits. What these verbs change is live state of the
scheduler (`domain.backends`), no configuration.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from django.http import HttpRequest

from contract.rollout_requests import BackendRequest
from domain.backend_addresses import base_address, check_own_address, name_of
from domain.backends import MAX_POOLS, MAX_POOLS_OF_PROJECT, LlmBackend, check_backend
from domain.errors import Conflict, InvalidRequest
from domain.rollout_events import (
    BackendsChanged,
    RolloutCancelRequested,
    RolloutParkRequested,
    RolloutResumeRequested,
)
from domain.rollouts import RolloutId
from tangram_web.accounts.access import role_everywhere
from tangram_web.accounts.models import Role
from tangram_web.operations import forms
from tangram_web.operations.audited_events import record_and_send
from tangram_web.operations.verb import Effect, Target, Values, Verb, shell_line

#: What a backend declares; the rest is the scheduler's.
_DECLARED: Final = ("name", "address", "seats", "dialect", "model", "weights_version")
_EFFECTS: Final = {
    "cancel": "It ends as cancelled, without a reward: its actions end and its environments are removed.",
    "park": "Its leases end. Its environments stay for 105 minutes at least; resumed, it continues at its last turn.",
    "resume": "It waits for a worker at the place of its arrival, and continues at its last turn.",
}


def _of_rollout(verb: str) -> Any:
    def effect(target: Target, _: Values) -> Effect:
        now = target.now
        stage = f", in {now['stage'].upper()}" if now["stage"] else ""
        return Effect(
            {"turns": now["turns"]}, f"The rollout is {now['state']}{stage}. {_EFFECTS[verb]}"
        )

    return effect


def _cancel(request: HttpRequest, target: Target, values: Values) -> None:
    reason = values["reason"] or f"cancelled by {request.user.get_username()}"
    event = RolloutCancelRequested(
        rollout_id=RolloutId(target.name), project=target.project, reason=reason
    )
    _send(request, "cancel", target, {"reason": reason}, event)


def _park(request: HttpRequest, target: Target, values: Values) -> None:
    if target.now["state"] == "parked":
        raise Conflict("the rollout is parked already")
    reason = values["reason"] or f"parked by {request.user.get_username()}"
    event = RolloutParkRequested(
        rollout_id=RolloutId(target.name), project=target.project, reason=reason
    )
    _send(request, "park", target, {"reason": reason}, event)


def _resume(request: HttpRequest, target: Target, _: Values) -> None:
    if target.now["state"] != "parked":
        raise Conflict("the rollout is not parked: nothing has to be resumed")
    event = RolloutResumeRequested(rollout_id=RolloutId(target.name), project=target.project)
    _send(request, "resume", target, {}, event)


def _send(request: HttpRequest, verb: str, target: Target, after: Any, event: Any) -> None:
    record_and_send(request, verb, target, {"state": target.now["state"]}, after, event)


def _line(verb: str) -> Any:
    def line(target: Target, values: Values) -> str:
        because = ["--reason", values["reason"]] if values.get("reason") else []
        return shell_line("tangram", "rollout", verb, target.name, *because)

    return line


def _of_backend(says: str) -> Any:
    return lambda target, _: Effect({"seats taken": target.now["taken"]}, says)


def _set_drained(request: HttpRequest, target: Target, *, drained: bool) -> None:
    before = {"drained": target.now["drained"]}
    if before["drained"] == drained:
        return
    kept = {member: target.now[member] for member in _DECLARED}
    backend = LlmBackend(**kept, drained=drained)
    event = BackendsChanged(pool=target.now["pool"], put=(backend,))
    verb = "drain" if drained else "resume"
    record_and_send(request, verb, target, before, {"drained": drained}, event)


def _remove(request: HttpRequest, target: Target, _: Values) -> None:
    declared = {member: target.now[member] for member in _DECLARED}
    event = BackendsChanged(pool=target.now["pool"], removed=(target.now["name"],))
    record_and_send(request, "remove", target, declared, {}, event)


def _backend_line(verb: str) -> Any:
    def line(target: Target, _: Values) -> str:
        pool, name = target.name.split("/", 1)
        return shell_line("tangram", "backend", verb, name, "--pool", pool)

    return line


def _of_pool(target: Target, _: Values) -> Effect:
    now = target.now
    says = (
        f"All backends of llm:{target.name} are removed. Calls in flight end on their weights; later turns wait for"
        f" backends that are added next, which serve weights version {now['weights_version'] + 1}."
    )
    return Effect({"backends": len(now["backends"]), "seats taken": now["taken"]}, says)


def _clear(request: HttpRequest, target: Target, _: Values) -> None:
    if not target.now["known"]:
        raise Conflict(f"there is no pool of backends {target.name!r}")
    before = {"backends": target.now["backends"]}
    event = BackendsChanged(pool=target.name, clear=True)
    record_and_send(request, "clear", target, before, {}, event)


def _of_addition(target: Target, _: Values) -> Effect:
    known = target.now["known"]
    pool = f"llm:{target.name}" if known else f"llm:{target.name}, which begins to exist"
    says = f"Rollouts take seats on it at once, in {pool}. A backend of the same name is changed."
    return Effect({"backends": len(target.now["backends"])}, says)


def _add(request: HttpRequest, target: Target, values: Values) -> None:
    full = target.now["pools"] >= MAX_POOLS
    if target.project:
        full = full or target.now["of_project"] >= MAX_POOLS_OF_PROJECT
    if not target.now["known"] and full:
        raise Conflict("as many pools of backends are known as may be: add it to one of them")
    backend = backend_of(target.name, values)
    if role_everywhere(request.user) is None:
        check_own_address(backend.address)
    after = msgspec.to_builtins(backend)
    event = BackendsChanged(pool=target.name, put=(backend,))
    record_and_send(request, "add", target, None, after, event)


def backend_of(pool: str, values: Values) -> LlmBackend:
    """Return the backend that a form declares. Raises InvalidRequest."""
    given = {name: value for name, value in values.items() if value not in ("", None)}
    try:
        stated = msgspec.convert({**given, "pool": pool}, BackendRequest)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None
    address = base_address(stated.address)
    backend = LlmBackend(
        name=stated.name or name_of(address),
        address=address,
        seats=stated.seats,
        dialect=stated.dialect,
        model=stated.model,
    )
    check_backend(backend)
    return backend


def _addition_line(target: Target, values: Values) -> str:
    options = [
        word
        for name in ("name", "seats", "dialect", "model")
        if values.get(name)
        for word in (f"--{name}", str(values[name]))
    ]
    address = values.get("address") or "http://HOST:PORT"
    return shell_line("tangram", "backend", "add", address, "--pool", target.name, *options)


ON_ROLLOUTS: Final = (
    Verb(kind="rollout", name="cancel", title="Cancel", role=Role.SUBMITTER, effect=_of_rollout("cancel"),
         do=_cancel, form=forms.ReasonForm, line=_line("cancel")),
    Verb(kind="rollout", name="park", title="Park", role=Role.SUBMITTER, undo="resume",
         effect=_of_rollout("park"), do=_park, form=forms.ReasonForm, line=_line("park")),
    Verb(kind="rollout", name="resume", title="Resume", role=Role.SUBMITTER, undo="park",
         effect=_of_rollout("resume"), do=_resume, line=_line("resume")),
    Verb(kind="backend", name="drain", title="Drain", role=Role.OPERATOR, undo="resume",
         effect=_of_backend("It gets no new rollouts; those that hold a seat keep it."),
         do=lambda r, t, v: _set_drained(r, t, drained=True), line=_backend_line("drain")),
    Verb(kind="backend", name="resume", title="Resume", role=Role.OPERATOR, undo="drain",
         effect=_of_backend("It takes new rollouts again."),
         do=lambda r, t, v: _set_drained(r, t, drained=False), line=_backend_line("resume")),
    Verb(kind="backend", name="remove", title="Remove", role=Role.OPERATOR, heavy=True,
         effect=_of_backend("Its rollouts sample elsewhere from their next turn; calls in flight at it are repeated."),
         do=_remove, line=_backend_line("rm")),
    Verb(kind="backends", name="add", title="Add a backend", role=Role.OPERATOR, effect=_of_addition,
         do=_add, form=forms.BackendForm, line=_addition_line),
    Verb(kind="backends", name="clear", title="Clear", role=Role.OPERATOR, heavy=True, effect=_of_pool,
         do=_clear, line=lambda target, _: shell_line("tangram", "backend", "clear", "--pool", target.name)),
)  # fmt: skip
