"""Queries and commands of pages to the scheduler loop, sent through its inbox.

A reply to a query arrives on a pub/sub channel. Page views are rare, so each query uses a connection
of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

import msgspec
import redis

from contract.fleet_status import FleetsStatus
from contract.responses import ActionResponse, DecisionsResponse, QueuesResponse
from contract.rollout_status import RolloutsStatus, RolloutStatus
from contract.selector_status import SelectorsStatus
from domain.codec import Reply, decode_reply, encode
from domain.errors import Conflict, NotFound, Unavailable
from domain.events import (
    ActionQueried,
    DecisionsQueried,
    NodeForgetAsked,
    QueuesQueried,
    StatusQueried,
)
from domain.fleet_events import FleetsQueried
from domain.ids import ActionId
from domain.redis_keys import QUESTIONS
from domain.rollout_events import RolloutsQueried
from domain.selector_events import SelectorsQueried
from domain.selectors import Parallelism
from tangram_web.lib import bus

ANSWER_SECONDS: Final = 2.0

_action = msgspec.msgpack.Decoder(ActionResponse)
_decisions = msgspec.msgpack.Decoder(DecisionsResponse)
_fleets = msgspec.msgpack.Decoder(FleetsStatus)
_queues = msgspec.msgpack.Decoder(QueuesResponse)
_rollouts = msgspec.msgpack.Decoder(RolloutsStatus)
_selectors = msgspec.msgpack.Decoder(SelectorsStatus)
_status = msgspec.msgpack.Decoder(dict[str, Any])


def live_action(action_id: str) -> ActionResponse | None:
    """Return an unfinished action with the reason it waits; None for any other."""
    body = _ask(ActionQueried, action_id=ActionId(action_id), project="")
    return None if body is None else _action.decode(body)


def live_actions(action_ids: Sequence[str], project: str = "") -> dict[str, ActionResponse]:
    """Return those of the actions that are unfinished; of ``project``, or of any.

    Raises Unavailable when not all replies arrive in time.
    """
    questions = [
        partial(ActionQueried, action_id=ActionId(each), project=project) for each in action_ids
    ]
    replies = _replies(questions) if questions else []
    bodies = [bytes(reply.body) for reply in replies if reply.ok]
    return {view.id: view for view in map(_action.decode, bodies)}


def queues(limit: int = 200, projects: tuple[str, ...] | None = None) -> QueuesResponse:
    """Return waiting actions by queue, the longest queues first; of ``projects``, or of all."""
    return _queues.decode(_ask(QueuesQueried, limit=limit, projects=projects) or b"")


def decisions(limit: int = 100) -> DecisionsResponse:
    """Return recent decisions of the policies, latest first."""
    return _decisions.decode(_ask(DecisionsQueried, limit=limit) or b"")


def rollouts(
    *, project: str = "", rollout_id: str = "", workers: bool = False, backends: tuple[str, ...] = (),
    limit: int = 1,
) -> RolloutsStatus:  # fmt: skip
    """Return live rollouts by arrival, of a project or of all, with workers and the backends of pools (``*``: of all)."""
    about = {"project": project, "rollout_id": rollout_id, "workers": workers, "backends": backends}
    return _rollouts.decode(_ask(RolloutsQueried, **about, limit=limit) or b"\x80")


def live_rollouts(rollout_ids: Sequence[str]) -> dict[str, RolloutStatus]:
    """Return those of the rollouts that are not finished, of any project. Raises Unavailable."""
    questions = [partial(RolloutsQueried, rollout_id=each, limit=1) for each in rollout_ids]
    replies = _replies(questions) if questions else []
    found = [_rollouts.decode(bytes(reply.body)) for reply in replies if reply.ok]
    return {live.id: live for status in found for live in status.rollouts}


def fleets(
    fleet: str = "", *, limit: int = 0, projects: tuple[str, ...] | None = None, trajectory: str = "",
    plan: bool = False, plan_limit: int = 100,
) -> FleetsStatus:  # fmt: skip
    """Return the fleets by name, or one of them, with trajectories of ``projects`` or of all. Raises Unavailable."""
    about = {
        "fleet": fleet, "projects": projects, "trajectory": trajectory, "plan": plan, "plan_limit": plan_limit,
    }  # fmt: skip
    return _fleets.decode(_ask(FleetsQueried, **about, limit=limit) or b"\x80")


def selectors(
    selector: str = "", *, cells: bool = False, history: bool = False, pin: Parallelism | None = None,
    forced: bool = False,
) -> SelectorsStatus:  # fmt: skip
    """Return the selectors by name, or one with its cells, its history, and whether a pin would be refused. Raises Unavailable."""
    about = {
        "selector": selector, "cells": cells, "history": history, "pin": pin, "forced": forced,
    }  # fmt: skip
    return _selectors.decode(_ask(SelectorsQueried, **about) or b"\x80")


def status() -> dict[str, Any]:
    """Return the leader's view of pools, nodes, resources and the loop."""
    return _status.decode(_ask(StatusQueried) or b"\x80")


def standing(limit: int) -> tuple[dict[str, Any], QueuesResponse, FleetsStatus]:
    """Return what `status`, `queues` and `fleets` do, by one question. Raises Unavailable."""
    asked = (StatusQueried, partial(QueuesQueried, limit=limit), FleetsQueried)
    replies = sorted(_replies(asked, ahead=True), key=lambda reply: reply.request_id)
    of_status, of_queues, of_fleets = (bytes(each.body) if each.ok else b"" for each in replies)
    return (
        _status.decode(of_status or b"\x80"),
        _queues.decode(of_queues),
        _fleets.decode(of_fleets or b"\x80"),
    )


def forget_node(name: str) -> bool:
    """Forget a node that does not come back; return False without a leader: the next one does it.

    Raises NotFound, Conflict with the reason of the refusal, Unavailable when Redis does not answer.
    """
    try:
        reply = _reply(NodeForgetAsked, node=name)
    except NoAnswer:
        return False
    if not reply.ok:
        raise (NotFound if reply.code == "not_found" else Conflict)(reply.detail)
    return True


class NoAnswer(Unavailable):
    """The query is in the inbox and the scheduler does not answer."""


def _ask(question: Callable[..., object], **about: Any) -> bytes | None:
    """Send a query and return the body of its reply; None when its subject does not exist.

    Raises Unavailable when no reply arrives in time.
    """
    reply = _reply(question, **about)
    return bytes(reply.body) if reply.ok else None


def _reply(question: Callable[..., object], **about: Any) -> Reply:
    (reply,) = _replies(
        [partial(question, **about)],
        ahead=question in _AHEAD,
        confirmed=question is NodeForgetAsked,
    )
    return reply


#: Queries about the whole system: they wait for no submission.
_AHEAD: Final = (StatusQueried, QueuesQueried, DecisionsQueried)


def _replies(
    questions: Sequence[Callable[..., object]], *, ahead: bool = False, confirmed: bool = False
) -> list[Reply]:
    """Send queries as one entry and return their replies, in any order; ``ahead`` of the submissions.

    ``confirmed``: they change something, whether or not a reply comes.
    """
    client, names, process = bus.redis_client(), bus.keys(), secrets.token_hex(8)
    channel = names.replies(f"page:{process}")
    packed = {
        str(number): encode(question(request_id=f"{process}:{number}", reply_to=channel))
        for number, question in enumerate(questions)
    }
    found: list[Reply] = []
    try:
        with client.pubsub(ignore_subscribe_messages=True) as replies:  # type: ignore[no-untyped-call]
            replies.subscribe(channel)
            replies.get_message(timeout=ANSWER_SECONDS)  # the subscription is in place
            stream = names.questions if ahead else names.inbox
            limit = QUESTIONS if ahead else None
            if confirmed:
                _append(packed)
            else:
                client.xadd(stream, packed, maxlen=limit)  # type: ignore[arg-type]
            until = monotonic() + ANSWER_SECONDS
            while (left := until - monotonic()) > 0:
                message = replies.get_message(timeout=left)
                if message is not None:
                    found.append(decode_reply(message["data"]))
                if len(found) == len(packed):
                    return found
    except redis.RedisError as error:
        raise bus.unavailable(error) from error
    raise NoAnswer("the scheduler does not answer; is a loop running?")


def send_commands(*events: object) -> None:
    """Append events to the inbox as one entry.

    Raises Unavailable: none of them is appended then, unless it says that too few replicas have confirmed (`bus.write`).
    """
    packed = {str(number): encode(event) for number, event in enumerate(events)}
    if not packed:
        return
    _append(packed)


def _append(packed: dict[str, bytes]) -> None:
    bus.write("XADD", bus.keys().inbox, "*", *(word for field in packed.items() for word in field))
