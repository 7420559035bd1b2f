"""A project has a bounded number of live rollouts, however many requests arrive at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from contract.rollout_status import RolloutsStatus
from scheduler.runtime.gateway import rollout_bounds
from scheduler.runtime.gateway.http import HttpError
from scheduler.runtime.gateway.rollout_bounds import RolloutBound


class Counted:
    """A loop that has some rollouts, and answers when a test lets it."""

    def __init__(self, present: int = 0) -> None:
        self.present = present
        self.gate = asyncio.Event()
        self.gate.set()

    async def rollouts(self, **query: Any) -> RolloutsStatus:
        await self.gate.wait()
        assert query == {"project": "p", "limit": 0}
        return RolloutsStatus(total=self.present)


def bound_of(loop: Counted, most: int) -> RolloutBound:
    queries: Any = loop
    return RolloutBound(queries, most)


async def test_a_request_above_the_bound_is_refused_with_the_cure() -> None:
    loop = Counted(present=6)
    bound = bound_of(loop, 8)

    async with bound.room("p", 2):
        pass
    with pytest.raises(HttpError) as refused:
        async with bound.room("p", 3):
            raise AssertionError("it is not admitted")

    error = refused.value
    assert (error.status, error.code) == (429, "project_limit_rollouts")
    assert int(error.headers["Retry-After"]) > 0
    assert "has 6 rollouts that are not finished" in str(error)
    assert "TANGRAM_PROJECT_LIVE_ROLLOUTS" in str(error)


async def test_requests_at_once_do_not_pass_the_bound_together() -> None:
    loop = Counted(present=2)
    bound = bound_of(loop, 8)
    admitted = 0

    async def submit() -> None:
        nonlocal admitted
        async with bound.room("p", 4):
            await asyncio.sleep(0)
            loop.present += 4
            admitted += 1

    loop.gate.clear()
    requests = [asyncio.create_task(submit()) for _ in range(5)]
    await asyncio.sleep(0)
    loop.gate.set()
    ends = await asyncio.gather(*requests, return_exceptions=True)

    assert admitted == 1
    assert [isinstance(end, HttpError) for end in ends].count(True) == 4


async def test_what_failed_takes_no_room() -> None:
    bound = bound_of(Counted(), 8)
    for _ in range(3):
        with pytest.raises(OSError, match="disk"):
            async with bound.room("p", 8):
                raise OSError("the disk is full")

    async with bound.room("p", 8):
        pass


async def test_a_loop_that_does_not_answer_refuses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another leader takes over: the inbox keeps what arrives meanwhile."""
    monkeypatch.setattr(rollout_bounds, "ANSWER_SECONDS", 0.001)
    loop = Counted(present=8)
    loop.gate.clear()

    async with bound_of(loop, 8).room("p", 4):
        pass
