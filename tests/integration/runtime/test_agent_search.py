"""Web search of an agent through the API manager: a declared API, its quota, its secret, and its failures."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from domain.errors import Unavailable
from domain.rollouts import Stage
from rollout.agent.web_search import WebSearchTool
from rollout.core.calls import call_key
from rollout.core.records import RolloutRequest
from rollout.worker.remote_job import RemoteJob
from tests.api_server import answer
from tests.integration.runtime.call_rig import SECRET, CallRig, finished, running
from tests.unit.rollout.builders import a_rollout

FOUND = {"results": [{"title": "Tangram", "url": "https://t", "content": "Seven pieces."}]}


class JobOverHttp(RemoteJob):
    """A rollout in RUN whose actions a real system runs."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        super().__init__(self._answer, a_rollout(), 1, RolloutRequest(), [])
        self.begin(Stage.RUN, None)
        self._client = client

    async def _answer(self, method: str, name: str, members: dict[str, Any]) -> Any:
        assert method == "execute"
        view = await finished(self._client, {"task": "t", **members})
        end = {
            "id": view["id"], "outcome": view["outcome"], "result": view["result"], "reward": None,
            "detail": view.get("detail") or "", "queue_seconds": 0.0, "execution_seconds": 0.0,
        }  # fmt: skip
        key = call_key(self.rollout.id, 0, Stage.RUN, name)
        return {"key": key, "end": end, "new": True}


async def test_a_search_is_asked_with_the_secret_that_nodes_have(calls: CallRig) -> None:
    calls.api.says(answer(200, json.dumps(FOUND).encode()))
    declared = {
        "secret": "search-key",
        "secret_header": "Authorization",
        "secret_prefix": "Bearer ",
    }
    async with running(calls, **declared) as client:
        seen = await WebSearchTool(results=3).call(JobOverHttp(client), {"query": "é"}, "0.0")
    assert seen == "1. Tangram\nhttps://t\nSeven pieces."
    [asked] = calls.api.asked
    assert (asked.method, asked.path) == ("POST", "/search")
    assert json.loads(asked.body) == {"max_results": 3, "query": "é"}
    assert asked.headers["authorization"] == f"Bearer {SECRET}"


async def test_an_api_that_fails_is_no_observation(calls: CallRig) -> None:
    calls.api.says(answer(503, b"busy", reason="Busy"))
    async with running(calls) as client:
        with pytest.raises(Unavailable, match="api:search"):
            await WebSearchTool().call(JobOverHttp(client), {"query": "q"}, "0.0")
