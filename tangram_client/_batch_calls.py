"""The endpoints of batches: one function each, which returns the `ApiCall`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from tangram_client._calls import API, encode, json_of
from tangram_client._core import ApiCall, ApiResponse
from tangram_client.models import Json

_BATCHES: Final = f"{API}/batches"


def create_batch(payload: Mapping[str, Any], key: str | None) -> ApiCall[dict[str, Any]]:
    """Make a batch."""
    headers = {"Idempotency-Key": key or uuid4().hex, "Content-Type": "application/json"}
    return ApiCall("POST", _BATCHES, json_of, {}, headers=headers, content=encode(payload))


def get_batch(batch: str, rank: int | None, project: str | None) -> ApiCall[dict[str, Any]]:
    """Ask for a manifest."""
    given = {"rank": rank, "project": project}
    params = {name: str(value) for name, value in given.items() if value is not None}
    return ApiCall("GET", f"{_BATCHES}/{quote(batch, safe='')}", json_of, params)


def list_batches(limit: int | None, project: str | None) -> ApiCall[list[Json]]:
    """Ask for batches."""
    given = {"limit": limit, "project": project}
    params = {name: str(value) for name, value in given.items() if value is not None}
    return ApiCall("GET", _BATCHES, _items, params)


def _items(response: ApiResponse) -> list[Json]:
    found: list[Json] = response.json()["items"]
    return found
