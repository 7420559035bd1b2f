"""Probe of a backend: which dialect it speaks, the name of its model, and the size of its context.

Rules
1. The first sign decides: ``/get_model_info`` is SGLang's, ``/version`` is vLLM's, ``/generate`` with ``prompt_ids`` in its
   OpenAPI document is ProRL's, ``/v1/models`` is every server of OpenAI's protocol.
2. A backend without any sign that answers ``POST /generate {"prompt_ids"}`` with ``response_ids`` speaks ProRL's dialect: its server
   has only that page.
3. A registration may state the dialect; then the backend is asked for its model alone.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from domain.errors import InvalidRequest
from rollout.llm.dialects import DIALECTS
from rollout.llm.engine_client import BackendFailed, EngineClient, RequestRefused
from rollout.llm.sampling_options import ContextOverflow

_PROBE_IDS: Final = [0]


class ProbedBackend(msgspec.Struct, frozen=True):
    """What is known about a backend before its first call."""

    dialect: str
    #: Names of the models that it lists.
    models: tuple[str, ...] = ()
    max_context_tokens: int | None = None

    def model(self, declared: str, wanted: str) -> str:
        """Return the name for requests: the declared one, else the wanted one where it is listed, else the first.

        Empty: requests name none. A trainer's name for a model is often not that of its engine.
        """
        if declared or wanted in self.models or not self.models:
            return declared or wanted
        return self.models[0]


async def probe(client: EngineClient, address: str, dialect: str = "") -> ProbedBackend:
    """Return what a backend is; ``dialect``: as it was registered, empty: found out. Raises BackendFailed, InvalidRequest."""
    if dialect and dialect not in DIALECTS:
        raise InvalidRequest(f"dialect is one of {', '.join(DIALECTS)}, not {dialect!r}")
    if not dialect:
        dialect = await _dialect_of(client, address)
    listed = await client.get_json(f"{address}/v1/models")
    models, limit = _models(listed)
    if limit is None and dialect == "sglang":
        limit = _context_of(await client.get_json(f"{address}/get_server_info"))
    return ProbedBackend(dialect, models, limit)


async def _dialect_of(client: EngineClient, address: str) -> str:
    if _has(await client.get_json(f"{address}/get_model_info"), "model_path"):
        return "sglang"
    if _has(await client.get_json(f"{address}/version"), "version"):
        return "vllm"
    if "prompt_ids" in _members_of_generate(await client.get_json(f"{address}/openapi.json")):
        return "prorl"
    if _has(await client.get_json(f"{address}/v1/models"), "data"):
        return "openai"
    if await _answers_generate(client, address):
        return "prorl"
    raise BackendFailed(
        f"it answers, but is no engine that is known: state its dialect ({', '.join(DIALECTS)})"
    )


async def _answers_generate(client: EngineClient, address: str) -> bool:
    body = {"prompt_ids": _PROBE_IDS, "max_tokens": 1}
    try:
        data = await client.generate(address, "/generate", body, most_tokens=1)
        return _has(msgspec.json.decode(data), "response_ids")
    except (BackendFailed, RequestRefused, ContextOverflow, msgspec.DecodeError):
        return False


def _has(document: Any, member: str) -> bool:
    return isinstance(document, dict) and member in document


def _members_of_generate(document: Any) -> set[str]:
    """Return the members of the body of ``/generate`` in an OpenAPI document, by whichever schema has them."""
    if not _has(document, "paths") or "/generate" not in document["paths"]:
        return set()
    found: set[str] = set()
    schemas = (document.get("components") or {}).get("schemas") or {}
    for schema in schemas.values() if isinstance(schemas, dict) else ():
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if isinstance(properties, dict):
            found |= properties.keys()
    return found


def _models(listed: Any) -> tuple[tuple[str, ...], int | None]:
    """Return the names of the listed models, and the context of the first."""
    data = listed.get("data") if isinstance(listed, dict) else None
    each = [model for model in data if isinstance(model, dict)] if isinstance(data, list) else []
    names = tuple(model["id"] for model in each if isinstance(model.get("id"), str))
    limit = each[0].get("max_model_len") if each else None
    return names, limit if isinstance(limit, int) and limit > 1 else None


def _context_of(info: Any) -> int | None:
    found = info.get("context_length") if isinstance(info, dict) else None
    return found if isinstance(found, int) and found > 1 else None
