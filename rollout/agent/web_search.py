"""Web search of an agent: a call of a declared API, under its quota, with a secret that only nodes have.

The API takes ``{"query", "max_results"}`` as JSON and answers ``{"results": [{"title", "url", "content"}], "answer"?}``, as Tavily's
does and as a server of one's own can. A call is an action: its limit is shared by all rollouts, it is retried by the API manager,
and one that fails for good ends the rollout `infra_failed`, never with a worse answer of the agent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from domain.action import Outcome
from domain.errors import Unavailable
from rollout.agent.tools import function_schema, text_argument
from rollout.job import Job

_MAX_QUERY_CHARACTERS: Final = 1000
_DESCRIPTION: Final = (
    "Search the web. Returns titles, addresses and the text that answers the query best."
)


class WebSearchTool:
    """Searches the web."""

    finishing = False

    def __init__(
        self,
        api: str = "api:search",
        name: str = "web_search",
        *,
        path: str = "/search",
        results: int = 5,
        result_characters: int = 2000,
        members: Mapping[str, Any] | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        """``api``: its resource; ``members`` are sent beside the query; ``result_characters`` are shown of each result."""
        self.name = name
        self.schema = function_schema(
            name,
            _DESCRIPTION,
            {"query": {"type": "string", "description": "What is searched for."}},
            ["query"],
        )
        self._api, self._path, self._seconds = api, path, timeout_seconds
        self._characters = result_characters
        self._body = {**(members or {}), "max_results": results}

    async def call(self, job: Job, arguments: Mapping[str, Any], key: str) -> str:
        """Search. Raises ToolRefused, CallRefused; Unavailable when the API fails."""
        query = text_argument(arguments, "query")[:_MAX_QUERY_CHARACTERS]
        members = {
            "kind": "call",
            "cost": {self._api: 1},
            "timeout_seconds": self._seconds,
            # A search changes nothing.
            "replay_safe": True,
            "call": {
                "target": self._api,
                "path": self._path,
                "json": {**self._body, "query": query},
            },
        }
        end = await job.execute(members, name=key)
        result = end.result or {}
        if end.outcome != Outcome.COMPLETED:
            raise Unavailable(
                f"{self._api}: the search ended {end.outcome}: {end.detail or end.id}"
            )
        status = int(result.get("status") or 0)
        if status == 429 or status >= 500:
            raise Unavailable(f"{self._api} answered a search with status {status}")
        if status != 200:
            return f"[The search was answered with status {status}.]"
        return _shown(str(result.get("body") or ""), self._characters)


def _shown(body: str, most: int) -> str:
    """Return the results of an answer as text."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    results = found.get("results") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(results, list):
        return "[The answer of the search cannot be read.]"
    parts = [str(found["answer"])] if found.get("answer") else []
    for number, each in enumerate(results, start=1):
        if isinstance(each, dict):
            text = str(each.get("content") or "")
            text = text if len(text) <= most else f"{text[:most]} […]"
            parts.append(
                f"{number}. {each.get('title') or ''}\n{each.get('url') or ''}\n{text}".rstrip()
            )
    return "\n\n".join(parts) or "[Nothing was found.]"
