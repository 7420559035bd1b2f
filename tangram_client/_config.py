"""The endpoints of the configuration: one function each, which returns the `ApiCall`."""

from __future__ import annotations

from typing import Any

from tangram_client._calls import API, _post, json_of
from tangram_client._core import ApiCall

_YAML = "application/yaml"


def export_config() -> ApiCall[str]:
    """Read the configuration in force as YAML."""
    headers = {"Accept": _YAML}
    return ApiCall("GET", f"{API}/config", lambda answer: answer.content.decode(), headers=headers)


def diff_config(text: str, *, prune: bool = False) -> ApiCall[dict[str, Any]]:
    """Ask what a file would change."""
    params = {"prune": "true"} if prune else {}
    headers = {"Content-Type": _YAML}
    content = text.encode()
    return ApiCall("POST", f"{API}/config/diff", json_of, params, headers, content)


def apply_config(
    text: str, *, prune: bool = False, revision: int | None = None
) -> ApiCall[dict[str, Any]]:
    """Put a file in force; with ``revision`` only if that is the one in force now."""
    call = _post("/config/apply", json_of, text.encode(), params={"prune": "true"} if prune else {})
    headers = {**call.headers, "Content-Type": _YAML}
    if revision is not None:
        headers["If-Match"] = f'"rev-{revision}"'
    return ApiCall(call.method, call.path, call.read, call.params, headers, call.content)
