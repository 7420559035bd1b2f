"""OpenAI requests to fleets: what a body says of a generation, and the ways in which its answer reaches the client.

Members of ``tangram`` in the body, beside those of every action:

| member | means |
|---|---|
| ``group`` | rollouts of one prompt: their lengths predict each other |
| ``batch``, ``batch_size`` | trajectories that are trained on together, and how many there are: they are arranged on workers together |

A request without a trajectory goes to the worker with the least load.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from contract.requests import ActionRequest, Label
from domain.errors import InvalidRequest
from domain.fleets import FLEET, GenerationSpec
from domain.manifest import read
from scheduler.runtime.capacity import FleetCapacity
from scheduler.runtime.fleet_router.forwarded_request import ForwardedRequest, forwarded
from scheduler.runtime.gateway.http import Send

_IDENTITY: Final = ("batch", "batch_size")


class BatchIdentity(msgspec.Struct, forbid_unknown_fields=True):
    """The batch of a generation, as the member ``tangram`` names it."""

    batch: Label = ""
    batch_size: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


@dataclass(frozen=True)
class OpenAiGeneration:
    """A request to a fleet, as the router takes it."""

    payload: ActionRequest
    generation: GenerationSpec
    asked: ForwardedRequest


def generation_of(
    fleet: FleetCapacity,
    asked: Mapping[str, Any],
    raw: bytes | None,
    path: str,
    named: Mapping[str, Any],
) -> OpenAiGeneration:
    """Return the generation of a body; ``named``: members of the action from outside the body.

    ``raw``: the bytes of the body, None where ``asked`` is a translation. Raises InvalidRequest that names the member.
    """
    members = dict(asked)
    own = members.pop("tangram", None)
    if not isinstance(own, (dict, type(None))):
        raise InvalidRequest("give members of an action", pointer="/tangram")
    if not isinstance(members.get("stream"), (bool, type(None))):
        raise InvalidRequest("give true or false", pointer="/stream")
    own = dict(own or {})
    identity = read(BatchIdentity, {name: own.pop(name) for name in _IDENTITY if name in own})
    if identity.batch_size and not identity.batch:
        raise InvalidRequest("name the batch that has this size", pointer="/batch")
    if own.get("reward") is not None:
        raise InvalidRequest(
            "a generation has no reward: its answer passes to the client alone", pointer="/reward"
        )
    unchanged = raw if "tangram" not in asked else None
    request = forwarded(members, unchanged, path, fleet.engine, fleet.source)
    call = {"target": f"{FLEET}{asked['model']}", "path": path, "stream": request.streams}
    return OpenAiGeneration(
        read(ActionRequest, {**named, **own, "kind": "call", "call": call}),
        GenerationSpec(identity.batch, identity.batch_size, request.prompt_tokens),
        request,
    )


class TranslatedAnswer:
    """Takes an answer: events go to ``events`` while they arrive, another answer is kept whole for its translation."""

    def __init__(self, events: Send) -> None:
        self._events = events
        self._streams = False
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.content = b""

    @property
    def streamed(self) -> bool:
        """Whether the client has got the answer as events."""
        return self._streams

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
            kind = self.headers.get(b"content-type", b"")
            self._streams = self.status == 200 and kind.startswith(b"text/event-stream")
        if self._streams:
            await self._events(message)
        elif message["type"] == "http.response.body":
            self.content += message.get("body", b"")
