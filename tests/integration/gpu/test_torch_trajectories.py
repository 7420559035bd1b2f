"""Calls of a service of engine torch, by the node's driver: the cache of a trajectory is that of its action, and sleep voids it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from domain.apis import CallSpec, ServiceResult
from domain.services import Degree, Engine, GpuService
from managers.gpu.driver import GpuDriver
from tests.integration.gpu.test_driver_on_a_node import a_driver, an_order
from tests.torch_workers import PYTHON, VARIABLES, write_config

pytestmark = pytest.mark.slow

PROMPT = list(range(3, 43))


class Calls:
    """Completions of one service, each an action."""

    def __init__(self, driver: GpuDriver, source: Path) -> None:
        self._driver = driver
        self._asked = 0
        self._service = GpuService(
            Engine.TORCH, (Degree(1, 2**30),), source=str(source), python=PYTHON, env=VARIABLES
        )

    async def __call__(
        self, prompt: list[int], project: str, trajectory: str | None, *evicted: str, **members: Any
    ) -> tuple[list[int], int]:
        """Return the sampled tokens, and how many of the prompt were cached."""
        self._asked += 1
        order = an_order(str(self._asked), "a", self._service, *evicted)
        body = json.dumps({"prompt": prompt, "max_tokens": 6, **members})
        call = CallSpec("service:a", path="/v1/completions", body=body)
        order.action = replace(order.action, project=project, trajectory=trajectory, call=call)
        report = await self._driver.run(order, lambda: None)
        assert isinstance(report.answer, ServiceResult), report.detail
        answer = json.loads(report.answer.body)
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["token_ids"], cached

    async def another_service(self) -> None:
        """Call a service that takes the memory of this one."""
        other = replace(self._service, source=self._service.source)
        order = an_order("other", "b", other, "a")
        call = CallSpec("service:b", path="/v1/score", body='{"input": [1, 2]}')
        order.action = replace(order.action, call=call)
        report = await self._driver.run(order, lambda: None)
        assert isinstance(report.answer, ServiceResult), report.detail


@pytest.fixture
async def complete(tmp_path: Path) -> AsyncIterator[Calls]:
    driver = a_driver(tmp_path / "node")
    await driver.open()
    yield Calls(driver, write_config(tmp_path / "model"))
    await driver.close()


async def test_a_step_continues_from_the_cache_of_its_own_trajectory_alone(
    complete: Calls,
) -> None:
    sampled, cached = await complete(PROMPT, "p", "t1")
    assert cached == 0
    longer = [*PROMPT, *sampled, 7, 8, 9]
    assert (await complete(longer, "other", "t1"))[1] == 0, "another project's t1"
    theirs = {"tangram": {"trajectory": "p/t1"}}
    assert (await complete(longer, "other", None, **theirs))[1] == 0, "named in the body"
    assert (await complete(longer, "p", "t1"))[1] == len(longer) - 4


async def test_a_service_that_slept_computes_the_whole_prompt_and_answers_alike(
    complete: Calls,
) -> None:
    """I12 holds for caches as well: none is left over from before."""
    sampled, _ = await complete(PROMPT, "p", "t1")
    longer = [*PROMPT, *sampled, 7, 8, 9]
    before, cached = await complete(longer, "p", "t1")
    assert cached > 0
    await complete.another_service()
    assert await complete(longer, "p", "t1", "b") == (before, 0)
