"""Hooks of the fuzzer: it must not wait long, and not revoke the token it uses."""

from __future__ import annotations

from typing import Any

import schemathesis
import yaml


@schemathesis.hook
def map_query(context: Any, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """Wait a moment at most."""
    if query and "wait" in query:
        query["wait"] = 0.01
    return query


@schemathesis.serializer("application/x-tar")
def archive(_context: Any, value: Any) -> bytes:
    """Send what is generated as it is: hardly ever an archive."""
    raw = getattr(value, "data", value)
    return raw if isinstance(raw, bytes) else str(raw).encode(errors="replace")


@schemathesis.deserializer("application/yaml")
def manifests(_context: Any, response: Any) -> Any:
    """Read an export, which is several documents."""
    return list(yaml.safe_load_all(response.content))
