"""Rollouts of the handlers that come with Tangram, on a fake port, with a model that follows a script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from domain.rollouts import Rollout, RolloutResult
from examples.rollouts.scripted_llm import TOKENIZER
from rollout.core.records import ARTEFACT, RESULT
from rollout.handlers.model_access import ModelAccess, share_models
from rollout.llm.engine_client import EngineClient
from rollout.llm.sampler import SamplerLimits
from rollout.testing.local_handlers import local_pool
from rollout.tokens.tokenizer_folders import TokenizerFolders
from rollout.worker.worker import RolloutWorker
from tests.scripted_backends import Backends, FaultyBackend, scripted_model, seat_of
from tests.unit.rollout.conftest import Bench, places

SAMPLING = {"custom_tokenizer": "tokenizer", "seed": 3, "max_tokens": 512}


def call(name: str, **arguments: Any) -> str:
    """Return an answer that calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class HandlerBench:
    """Rollouts of one handler, whose model gives the same answers to each."""

    def __init__(self, bench: Bench, handler: str) -> None:
        self.bench = bench
        self.port = bench.port
        self.handler = handler
        self.backend = FaultyBackend("vllm")
        client = EngineClient(transport=Backends(b1=self.backend))
        folders = TokenizerFolders([TOKENIZER.parent])
        share_models(ModelAccess(folders, client, SamplerLimits(attempts=2)))
        self.port.seats = [seat_of("b1")]

    async def start(self, *answers: str) -> RolloutWorker:
        """Start a worker; the model gives these answers."""
        self.backend.served.model = scripted_model(*(answers or ("Nothing.",)))
        bench = self.bench
        worker = RolloutWorker(
            bench.port, places(), 9, pool=local_pool(), now=bench.now, pause=bench.pause
        )
        return await bench.run(worker)

    def submit(
        self, instance: Mapping[str, Any], options: Mapping[str, Any] | None = None, **request: Any
    ) -> Rollout:
        """Submit a rollout."""
        given = {"sampling": SAMPLING, "instance": instance, "options": options or {}, **request}
        return self.bench.submit(self.handler, llm="policy", request=given)

    async def result(self, *answers: str, **submitted: Any) -> RolloutResult:
        """Start a worker and return the end of a rollout."""
        await self.start(*answers)
        return await self.bench.result(self.submit(**submitted))

    def artefacts(self, rollout: str) -> dict[str, bytes]:
        """Return the artefacts of a rollout."""
        log = self.port.log(rollout)
        return {
            each.header["name"]: each.arrays["content"] for each in log if each.kind == ARTEFACT
        }

    def detail(self, rollout: str) -> Mapping[str, Any]:
        """Return what the handler added to the result."""
        [record] = [each for each in self.port.log(rollout) if each.kind == RESULT]
        detail: Mapping[str, Any] = record.header["detail"]
        return detail
