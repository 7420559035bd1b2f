"""Leases of stages: one that ends is followed by another, whatever fails meanwhile; a cancelled one cancels its rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from domain.action import ActionState, Outcome
from domain.backends import BackendPool, LlmBackend
from domain.errors import Unavailable
from domain.rollout_events import RolloutCancelRequested
from domain.rollouts import Stage
from rollout.ports import Seat, Superseded
from scheduler.runtime.rollouts.assignments import Assignments
from scheduler.runtime.rollouts.lease_grants import LeaseGrants
from scheduler.runtime.rollouts.stage_leases import StageLeases
from tests.unit.rollout.builders import a_rollout

ROLLOUT = a_rollout("rol_1", stages=(Stage.RUN,))
WITH_MODEL = a_rollout("rol_1", stages=(Stage.RUN,), llm="policy")


def view(state: ActionState, outcome: Outcome | None = None) -> Any:
    return SimpleNamespace(id="act", state=state, outcome=outcome, detail="", placement=None)


def on_backend(number: int) -> Any:
    held = view(ActionState.RUNNING)
    held.placement = SimpleNamespace(units={"llm:policy": (number,)})
    return held


HELD = view(ActionState.RUNNING)
EXPIRED = view(ActionState.FINISHED, Outcome.TIMEOUT)
CANCELLED = view(ActionState.FINISHED, Outcome.CANCELLED)


class ScriptedCalls:
    """Calls whose looks at leases are given by a test: a view, or an error."""

    def __init__(self, looks: list[Any], ends: list[Any]) -> None:
        self.looks, self.ends = looks, ends
        self.submitted: list[str] = []
        self.members: list[Any] = []
        self.sent: list[Any] = []
        self.context = SimpleNamespace(
            tail=SimpleNamespace(finish_of=self._end, discard=lambda *_: None)
        )

    async def submit(self, rollout: Any, key: str, members: Any) -> str:
        self.submitted.append(key)
        self.members.append(members)
        return f"act_{len(self.submitted)}"

    async def settled(self, rollout: Any, action: str, seconds: float = 0.0) -> Any:
        return self.looks.pop(0)

    async def ended(self, rollout: Any, action: str) -> Any:
        if not self.ends:
            await asyncio.Event().wait()
        if isinstance(found := self.ends.pop(0), Exception):
            raise found
        return found

    async def send(self, event: Any) -> None:
        self.sent.append(event)

    def _end(self, action: str) -> Any:
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0)


def leases_of(calls: Any) -> StageLeases:
    async def pause(_: float) -> None:
        await asyncio.sleep(0)

    assignments = Assignments("w1", 1)
    assignments.held[ROLLOUT.id] = 1
    return StageLeases(calls, assignments, LeaseGrants(), pause)


async def test_a_lease_is_watched_after_a_failure_too() -> None:
    calls = ScriptedCalls([HELD, HELD], [Unavailable("redis does not answer"), EXPIRED])
    leases = leases_of(calls)
    await leases.take(ROLLOUT, 1, Stage.RUN, 0)

    await until(lambda: len(calls.submitted) == 2)

    assert calls.submitted == ["lease/run/0", "lease/run/0/1.1"]
    await leases.close()


async def test_a_lease_that_ends_before_it_is_seen_is_submitted_again() -> None:
    calls = ScriptedCalls([EXPIRED, HELD], [])
    leases = leases_of(calls)

    lease = await leases.take(ROLLOUT, 1, Stage.RUN, 0)

    assert (lease.id, calls.sent) == ("act_2", [])
    await leases.close()


async def test_a_cancelled_lease_cancels_its_rollout() -> None:
    calls = ScriptedCalls([CANCELLED], [])

    with pytest.raises(Superseded):
        await leases_of(calls).take(ROLLOUT, 1, Stage.RUN, 0)

    [event] = calls.sent
    assert isinstance(event, RolloutCancelRequested)


async def test_the_seat_of_a_lease_that_follows_reaches_the_stage() -> None:
    """Else it samples at a backend whose seat another rollout has."""
    calls = ScriptedCalls([on_backend(1), on_backend(2)], [EXPIRED])
    leases = leases_of(calls)
    backends = tuple(
        LlmBackend(name=f"b{n}", address=f"http://b{n}", seats=4, number=n) for n in (1, 2)
    )
    leases._assignments.pools["policy"] = BackendPool(backends)
    moved: list[Seat | None] = []

    lease = await leases.take(WITH_MODEL, 1, Stage.RUN, 0, moved.append)
    await until(lambda: bool(moved))

    assert lease.seat is not None
    assert lease.seat.backend == "b1"
    assert [seat and seat.backend for seat in moved] == ["b2"]
    await leases.close()


async def test_leases_have_a_trajectory_that_no_node_can_lose() -> None:
    calls = ScriptedCalls([HELD], [])
    leases = leases_of(calls)

    await leases.take(ROLLOUT, 1, Stage.RUN, 0)

    [members] = calls.members
    assert members["trajectory"] == f"{ROLLOUT.id}.stages"
    await leases.close()
