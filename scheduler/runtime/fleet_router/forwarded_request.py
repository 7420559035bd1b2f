"""ForwardedRequest: the body of a generation as its worker takes it.

Three members are changed, and nothing else:

| member | what becomes of it |
|---|---|
| ``model`` | the ``source`` of the fleet, where it declares one |
| ``priority`` | set for engines that have priorities; one of the client is refused, since it would pass all other trajectories |
| ``stream_options`` | asks for the usage of a stream; its event is not passed on to a client that did not ask (`StreamUsage`) |

Where none of the members that a client sent is changed, its bytes are sent on as they are, with further members before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from domain.errors import InvalidRequest
from domain.fleets import FleetEngine

#: Code of the refusal of a client's own ``priority``.
ENGINE_PRIORITY: Final = "engine_priority"
#: Characters, and bytes of JSON, that count as one token of a prompt.
CHARACTERS_PER_TOKEN: Final = 4
_encode: Final = msgspec.json.Encoder().encode
#: Engines that report the usage of a stream when they are asked; others may refuse the member.
_REPORTS_USAGE: Final = frozenset({FleetEngine.VLLM, FleetEngine.SGLANG, FleetEngine.TORCH})


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """One request to a worker of a fleet."""

    path: str
    #: A JSON object in UTF-8, without its opening brace.
    members: bytes
    streams: bool
    #: The client did not ask for the usage that its worker reports.
    hides_usage: bool
    #: Estimate of the tokens of its prompt.
    prompt_tokens: int

    def body(self, priority: int | None) -> bytes:
        """Return the body; ``priority``: the engine's, None where it has none."""
        begin = b"{" if priority is None else b'{"priority":%d,' % priority
        return begin + self.members


def forwarded(
    asked: Mapping[str, Any], raw: bytes | None, path: str, engine: FleetEngine, source: str
) -> ForwardedRequest:
    """Return the request for ``asked``, a JSON object without ``tangram``.

    ``raw``: the bytes that it was decoded from; None where they have other members. Raises InvalidRequest for a
    ``priority``.
    """
    if asked.get("priority") is not None:
        raise InvalidRequest(
            "the order of generations is decided here, and an engine's priority would pass all others: leave it out, or"
            ' give a priority of the action, greater first: "tangram": {"priority": 1}',
            pointer="/priority",
            code=ENGINE_PRIORITY,
        )
    members = dict(asked)
    streams = bool(asked.get("stream"))
    hides, added = False, b""
    if "priority" in members:  # null
        raw = None
        del members["priority"]
    if streams and engine in _REPORTS_USAGE:
        options = members.get("stream_options")
        hides = not (isinstance(options, dict) and options.get("include_usage"))
        if hides and "stream_options" in members:
            members["stream_options"] = {**(options or {}), "include_usage": True}
            raw = None
        elif hides:
            added = b'"stream_options":{"include_usage":true},'
    if source and "model" in members:  # SGLang's own protocol names none
        members["model"], raw = source, None
    content = raw.strip() if raw is not None else _encode(members)
    size = len(content)
    prompt = asked.get("input_ids") or asked.get("prompt")
    return ForwardedRequest(path, added + content[1:], streams, hides, _estimate(prompt, size))


def _estimate(prompt: Any, size: int) -> int:
    """Return about how many tokens a prompt has; ids are counted, text is measured."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], list):
        return sum(map(len, prompt))
    return max(1, size // CHARACTERS_PER_TOKEN)
