"""Load of rollouts during a fault: a trainer that keeps so many in flight, each an agent with a shell that runs its plan.

Each step of a plan appends its number to a file of the environment, and the agent reads the file at its end: the result says which
tools ran, whatever the log says.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from benchmarks.rollouts.agents import HANDLER, SAMPLING
from benchmarks.rollouts.installation import add_backends
from benchmarks.rollouts.plans import PlannedRollout, PlannedStep
from tangram_client._rollout_calls import RolloutInfo
from tangram_client.aio import AsyncClient
from tests.faults.load import PATIENT
from tests.faults.system import System

TASK = "faults"
POOL = "policy"
#: Tokens of a response and seconds of a tool, both short: many steps are in flight at each fault.
TOKENS = 60
TOOL_SECONDS = 0.3
_rounds = itertools.count()


@dataclass
class RolloutLoad:
    """Rollouts of one round."""

    in_flight: int
    steps: Sequence[int] = (6, 14)
    number: int = field(default_factory=lambda: next(_rounds))
    #: Rollout → its plan.
    accepted: dict[str, PlannedRollout] = field(default_factory=dict)
    ended: dict[str, RolloutInfo] = field(default_factory=dict)
    failures: list[BaseException] = field(default_factory=list)
    _ending: threading.Event = field(default_factory=threading.Event)

    def start(self, system: System) -> None:
        """Begin, in a thread."""
        self._moved = threading.Condition()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._play(system)), daemon=True)
        self._thread.start()

    def wait_until_in_flight(self, timeout_seconds: float = 300.0) -> None:
        """Return once enough are accepted, and some have ended."""
        with self._moved:
            reached = self._moved.wait_for(
                lambda: len(self.accepted) >= self.in_flight and len(self.ended) > 0,
                timeout_seconds,
            )
        assert reached, f"{len(self.accepted)} accepted, {len(self.ended)} ended: {self.failures}"

    def end_early(self) -> None:
        """Submit no more."""
        self._ending.set()

    def join(self, timeout_seconds: float = 600.0) -> None:
        """Wait until every rollout has ended."""
        self._thread.join(timeout_seconds)
        assert not self._thread.is_alive(), (
            f"{len(self.accepted)} accepted, {len(self.ended)} ended"
        )
        assert not self.failures, self.failures

    async def _play(self, system: System) -> None:
        async with AsyncClient(system.address.url, system.token, retry=PATIENT) as client:
            await asyncio.gather(*(self._lane(client, lane) for lane in range(self.in_flight)))

    async def _lane(self, client: AsyncClient, lane: int) -> None:
        chance = Random(f"{self.number}/{lane}")
        for count in itertools.count():
            if self._ending.is_set():
                return
            plan = self._plan(f"r{self.number}-{lane}-{count}", chance)
            try:
                await self._run(client, plan)
            except Exception as error:
                self.failures.append(error)
                return

    def _plan(self, name: str, chance: Random) -> PlannedRollout:
        steps = tuple(
            PlannedStep(TOKENS, chance.uniform(0.0, 2 * TOOL_SECONDS))
            for _ in range(chance.randint(*self.steps))
        )
        return PlannedRollout(name, name, steps, float(chance.random() > 0.5))

    async def _run(self, client: AsyncClient, plan: PlannedRollout) -> None:
        data = {"question": plan.question, "reward": plan.reward}
        [rollout] = await client.rollouts.submit(
            TASK, HANDLER, [{"id": plan.name, "data": data}], llm=POOL,
            sampling=SAMPLING, options={"audit": True}, environment={},
        )  # fmt: skip
        self._note(self.accepted, rollout, plan)
        found = await client.rollouts.wait(rollout, tokens=False)
        self._note(self.ended, rollout, found)

    def _note(self, where: dict[str, Any], rollout: str, what: object) -> None:
        with self._moved:
            where[rollout] = what
            self._moved.notify_all()


def declare_backends(system: System, addresses: Sequence[str], seats: int) -> None:
    """Add the backends of the load."""

    async def add() -> None:
        async with AsyncClient(system.address.url, system.operator, retry=PATIENT) as client:
            await add_backends(client, addresses, seats)

    asyncio.run(add())
