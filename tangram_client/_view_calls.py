"""The endpoints of saved views: one function each, which returns the `ApiCall`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from tangram_client._calls import API, encode, json_of
from tangram_client._core import ApiCall
from tangram_client.models import Json

_VIEWS: Final = f"{API}/views"


def views_list(list_name: str | None) -> ApiCall[tuple[Json, ...]]:
    """List views of projects and of the caller's account."""
    params = {"mine": "true"} | ({"list": list_name} if list_name else {})
    return ApiCall("GET", _VIEWS, lambda response: tuple(response.json()["views"]), params)


def save_view(given: Mapping[str, Any]) -> ApiCall[Json]:
    """Save a view, or replace it; members that are None are left out."""
    return _write("POST", _VIEWS, {key: each for key, each in given.items() if each is not None})


def change_view(view: str, changes: Mapping[str, Any]) -> ApiCall[Json]:
    """Change members of a view."""
    return _write("PATCH", f"{_VIEWS}/{quote(view, safe='')}", changes)


def delete_view(view: str) -> ApiCall[None]:
    """Delete a view."""
    return ApiCall("DELETE", f"{_VIEWS}/{quote(view, safe='')}", lambda _: None)


def _write(method: str, path: str, payload: Mapping[str, Any]) -> ApiCall[Json]:
    headers = {"Content-Type": "application/json"}
    if method == "POST":
        headers["Idempotency-Key"] = uuid4().hex
    return ApiCall(method, path, json_of, headers=headers, content=encode(dict(payload)))
