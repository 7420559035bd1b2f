"""The endpoints of the configuration: one function each, which returns the `Call`."""

from __future__ import annotations

from typing import Any

from tangram_client._calls import API, _post, json_of
from tangram_client._core import Call

_YAML = "application/yaml"


def export_config() -> Call[str]:
    """Read the configuration in force as YAML."""
    headers = {"Accept": _YAML}
    return Call("GET", f"{API}/config", lambda answer: answer.content.decode(), headers=headers)


def diff_config(text: str, *, prune: bool = False) -> Call[dict[str, Any]]:
    """Ask what a file would change."""
    params = {"prune": "true"} if prune else {}
    headers = {"Content-Type": _YAML}
    content = text.encode()
    return Call("POST", f"{API}/config/diff", json_of, params, headers, content)


def apply_config(
    text: str, *, prune: bool = False, revision: int | None = None
) -> Call[dict[str, Any]]:
    """Put a file in force; with ``revision`` only if that is the one in force now."""
    call = _post("/config/apply", json_of, text.encode(), params={"prune": "true"} if prune else {})
    headers = {**call.headers, "Content-Type": _YAML}
    if revision is not None:
        headers["If-Match"] = f'"rev-{revision}"'
    return Call(call.method, call.path, call.read, call.params, headers, call.content)
