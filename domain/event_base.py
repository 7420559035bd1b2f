"""Base of all events, and the origin of requests that they carry.

Each event carries ``at``, its journal time in seconds. Producers outside the loop leave it 0; the
loop sets it on arrival, so the core sees one clock that never runs backward.
"""

from __future__ import annotations

import msgspec


class EventBase(
    msgspec.Struct, kw_only=True, omit_defaults=True, tag=True, tag_field="event", gc=False
):
    """An event; its stored tag is the name of its class."""

    at: float = 0.0


class RequestOrigin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Origin of a request through the gateway, for the audit."""

    #: Name of the token.
    by: str
    request_id: str = ""
    #: ``api`` or ``cli``.
    via: str = "api"
