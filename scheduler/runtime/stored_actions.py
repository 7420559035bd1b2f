"""Actions and results with large bodies: stored before they enter a message, filled in where they are used."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from msgspec.structs import replace

from contract.responses import ActionResponse
from domain.action import Action
from domain.bodies import INLINE_BYTES, preview_of, stored_in
from domain.codec import encode
from domain.ports import RunOrder
from scheduler.runtime.body_store import BodyStore

_decode = msgspec.msgpack.Decoder().decode


async def with_stored_inputs(action: Action, bodies: BodyStore) -> Action:
    """Return ``action`` with references in place of large inputs."""
    work, call = action.exec, action.call
    if work is not None and work.stdin is not None and len(work.stdin) > INLINE_BYTES:
        stored = await bodies.put(work.stdin.encode(errors="surrogatepass"))
        if stored is not None:
            return replace(action, exec=replace(work, stdin=None, stored_stdin=stored))
    if call is not None and len(call.body) > INLINE_BYTES:
        stored = await bodies.put(call.body.encode(errors="surrogatepass"))
        if stored is not None:
            return replace(action, call=replace(call, body="", stored_body=stored))
    return action


async def with_inputs(order: RunOrder, bodies: BodyStore) -> RunOrder:
    """Return ``order`` with the inputs that its action refers to. Raises BodyLost."""
    work, call = order.action.exec, order.action.call
    if work is not None and work.stored_stdin is not None:
        text = (await bodies.get(work.stored_stdin)).decode(errors="surrogatepass")
        whole = replace(order.action, exec=replace(work, stdin=text, stored_stdin=None))
        return replace(order, action=whole)
    if call is not None and call.stored_body is not None:
        text = (await bodies.get(call.stored_body)).decode(errors="surrogatepass")
        whole = replace(order.action, call=replace(call, body=text, stored_body=None))
        return replace(order, action=whole)
    return order


async def stored_result(result: Any, bodies: BodyStore) -> msgspec.Raw:
    """Return a result as a report has it: whole, or a preview that refers to the stored one."""
    whole = encode(result)
    if len(whole) <= INLINE_BYTES:
        return msgspec.Raw(whole)
    stored = await bodies.put(whole)
    return msgspec.Raw(whole if stored is None else encode(preview_of(_decode(whole), stored)))


async def with_result(
    view: ActionResponse, bodies: BodyStore, largest_bytes: float = math.inf
) -> ActionResponse:
    """Return ``view`` with its whole result; a larger one stays a preview with its reference. Raises BodyLost."""
    stored = stored_in(view.result)
    if stored is None or stored.bytes > largest_bytes:
        return view
    return replace(view, result=_decode(await bodies.get(stored)))


def whole_result(result: Any, bodies: BodyStore) -> Any:
    """Return a decoded result with its whole content. Raises BodyLost."""
    stored = stored_in(result)
    return result if stored is None else _decode(bodies.read(stored))
