"""Questions of pages to the scheduler: sent through the inbox like everything else, answered once.

Pages are few and people are slow, so a question has a connection of its own for as long as it lasts.
"""

from __future__ import annotations

import secrets
from time import monotonic
from typing import Any, Final

import msgspec
import redis

from contract.responses import ActionResponse, DecisionsResponse, QueuesResponse
from domain.codec import Reply, decode_reply, encode
from domain.errors import Conflict, NotFound, Unavailable
from domain.events import (
    ActionQueried,
    DecisionsQueried,
    NodeForgetAsked,
    QueuesQueried,
    StatusQueried,
)
from domain.ids import ActionId
from tangram_web.lib import bus

ANSWER_SECONDS: Final = 2.0

_action = msgspec.msgpack.Decoder(ActionResponse)
_decisions = msgspec.msgpack.Decoder(DecisionsResponse)
_queues = msgspec.msgpack.Decoder(QueuesResponse)
_status = msgspec.msgpack.Decoder(dict[str, Any])


def live_action(action_id: str) -> ActionResponse | None:
    """Return an action that is not over, with why it waits; None for any other."""
    body = _ask(ActionQueried, action_id=ActionId(action_id), project="")
    return None if body is None else _action.decode(body)


def queues(limit: int = 200, projects: tuple[str, ...] | None = None) -> QueuesResponse:
    """Return what waits and for what, the longest lines first; of some projects, or of all."""
    return _queues.decode(_ask(QueuesQueried, limit=limit, projects=projects) or b"")


def decisions(limit: int = 100) -> DecisionsResponse:
    """Return what policies decided lately, latest first."""
    return _decisions.decode(_ask(DecisionsQueried, limit=limit) or b"")


def status() -> dict[str, Any]:
    """Return how the system stands, as the leader sees it."""
    return _status.decode(_ask(StatusQueried) or b"\x80")


def forget_node(name: str) -> bool:
    """Have a node forgotten that does not come back; False: nobody leads, so it is done later.

    Raises NotFound, Conflict with the reason why it cannot be, and Unavailable when nobody was told.
    """
    try:
        reply = _reply(NodeForgetAsked, node=name)
    except NoAnswer:
        return False
    if not reply.ok:
        raise (NotFound if reply.code == "not_found" else Conflict)(reply.detail)
    return True


class NoAnswer(Unavailable):
    """The scheduler was asked and does not answer."""


def _ask(question: Any, **about: Any) -> bytes | None:
    """Ask, and return the answer's body; None when there is no such thing.

    Raises Unavailable when nobody answers in time.
    """
    reply = _reply(question, **about)
    return bytes(reply.body) if reply.ok else None


def _reply(question: Any, **about: Any) -> Reply:
    client, names, process = bus.redis_client(), bus.keys(), secrets.token_hex(8)
    channel = names.replies(f"page:{process}")
    message = encode(question(request_id=process, reply_to=channel, **about))
    try:
        with client.pubsub(ignore_subscribe_messages=True) as replies:  # type: ignore[no-untyped-call]
            replies.subscribe(channel)
            replies.get_message(timeout=ANSWER_SECONDS)  # the subscription is in place
            client.xadd(names.inbox, {"0": message})
            until = monotonic() + ANSWER_SECONDS
            while (left := until - monotonic()) > 0:
                told = replies.get_message(timeout=left)
                if told is not None:
                    return decode_reply(told["data"])
    except redis.RedisError as error:
        raise Unavailable(f"redis does not answer: {error}") from error
    raise NoAnswer("the scheduler does not answer; is a loop running?")
