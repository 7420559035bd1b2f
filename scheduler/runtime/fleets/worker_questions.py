"""Questions to a worker over HTTP: whether it answers, the version of its weights, and what it does with priorities.

| question | vllm, openai | sglang | torch |
|---|---|---|---|
| health | ``GET /health``; a page that is not there (404) is an answer | the same | 503 while it sleeps |
| weights | – | ``/get_model_info``: ``weight_version``, if it is a number | ``/tangram/state``: ``weights_version`` |
| priorities | one token with ``priority`` 1 is asked for: 400 that names it means that they are off. A 200 proves nothing, since an engine may ignore them: ``accepted`` | ``/get_server_info``: ``enable_priority_scheduling``, ``schedule_low_priority_values_first`` | ``ignored``: it runs one after the other |
"""

from __future__ import annotations

from typing import Any, Final

import httpx
import msgspec

from domain.fleets import FleetEngine, FleetWorker, PriorityUse

ANSWER_SECONDS: Final = 5.0
#: A token waits for the batch that runs.
TOKEN_SECONDS: Final = 30.0
_SHOWN_CHARACTERS: Final = 200


class WorkerControls(msgspec.Struct, frozen=True):
    """What a worker said of itself; None: it did not."""

    weights_version: int | None = None
    priorities: PriorityUse = PriorityUse.UNKNOWN


async def failing(client: httpx.AsyncClient, url: str, seconds: float = ANSWER_SECONDS) -> str:
    """Return why a worker does not answer its health check; empty: it does."""
    try:
        answer = await client.get(f"{url}/health", timeout=seconds)
    except httpx.TimeoutException:
        return f"no answer within {seconds:g} s"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"{type(error).__name__}: {error}".rstrip(": ")[:_SHOWN_CHARACTERS]
    return f"HTTP {answer.status_code}" if answer.status_code >= 500 else ""


async def controls(
    client: httpx.AsyncClient, engine: FleetEngine, worker: FleetWorker, model: str
) -> WorkerControls:
    """Return the controls of a worker; ``model``: its name in requests. Raises nothing for what it answers."""
    if engine is FleetEngine.TORCH:
        state = await _object(client, f"{worker.url}/tangram/state")
        return WorkerControls(_version(state.get("weights_version")), PriorityUse.IGNORED)
    if engine is FleetEngine.SGLANG:
        info = await _object(client, f"{worker.url}/get_model_info")
        settings = await _object(client, f"{worker.url}/get_server_info")
        return WorkerControls(_version(info.get("weight_version")), _sglang(settings))
    if engine is FleetEngine.VLLM:
        return WorkerControls(None, await _asked(client, worker.url, model))
    return WorkerControls(None, PriorityUse.IGNORED)


def _sglang(settings: dict[str, Any]) -> PriorityUse:
    if not settings:
        return PriorityUse.UNKNOWN
    if not settings.get("enable_priority_scheduling"):
        refuses = settings.get("abort_on_priority_when_disabled")
        return PriorityUse.REFUSED if refuses else PriorityUse.IGNORED
    lower = settings.get("schedule_low_priority_values_first")
    return PriorityUse.LOWER_FIRST if lower else PriorityUse.GREATER_FIRST


async def _asked(client: httpx.AsyncClient, url: str, model: str) -> PriorityUse:
    """Ask for one token with a priority."""
    body = {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0, "priority": 1}
    try:
        answer = await client.post(f"{url}/v1/completions", json=body, timeout=TOKEN_SECONDS)
    except httpx.HTTPError:
        return PriorityUse.UNKNOWN
    if answer.is_success:
        return PriorityUse.ACCEPTED
    named = answer.status_code == 400 and "priority" in answer.text.lower()
    return PriorityUse.REFUSED if named else PriorityUse.UNKNOWN


def _version(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
    return value if known else None


async def _object(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    """Return the JSON object of a page; empty where there is none."""
    try:
        answer = await client.get(url, timeout=ANSWER_SECONDS)
        found = answer.json() if answer.is_success else None
    except (httpx.HTTPError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
