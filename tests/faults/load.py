"""Load of trainers during a fault: trajectories that submit, wait, and submit again, through the SDK.

Each action writes one line into its trajectory's workspace when it runs, so that what happened can
be counted on disk, whatever anybody says.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from tangram_client.aio import AsyncClient
from tangram_client.errors import TangramClientError
from tangram_client.payloads import exec_action
from tangram_client.retry import RetryPolicy
from tests.faults.system import System

PATIENT = RetryPolicy(attempts=1000, total_seconds=400.0, max_delay_seconds=1.0)
_rounds = itertools.count()


@dataclass
class Load:
    """One round of so many trajectories with so many actions each."""

    trajectories: int
    actions: int
    seconds: float = 0.3
    number: int = field(default_factory=lambda: next(_rounds))
    #: Action id → (trajectory, number of the action in it).
    accepted: dict[str, tuple[str, int]] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    #: What the SDK gave up on; nothing, unless a fault outlasts its patience.
    failures: list[TangramClientError] = field(default_factory=list)
    retry: RetryPolicy = PATIENT
    #: Seconds of each submission, and when it was accepted (monotonic).
    submit_seconds: list[float] = field(default_factory=list)
    accepted_at: list[float] = field(default_factory=list)
    _ending: threading.Event = field(default_factory=threading.Event)
    #: `wait_until_in_flight` waits: trajectories go on until it returns, however long that takes.
    _awaited: bool = False

    def end_early(self) -> None:
        """Let every trajectory end after the action that it is at."""
        self._ending.set()

    def start(self, system: System) -> None:
        """Begin to play, in a thread."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._play(system)), daemon=True)
        self._moved = threading.Condition()
        self._thread.start()

    def wait_until_in_flight(self, count: int, timeout_seconds: float = 240.0) -> None:
        """Return once ``count`` actions are accepted and not finished, and some are finished."""
        with self._moved:
            self._awaited = True
            reached = self._moved.wait_for(
                lambda: len(self.accepted) - len(self.outcomes) >= count, timeout_seconds
            )
            self._awaited = False
        assert reached, f"{len(self.accepted)} accepted, {len(self.outcomes)} finished"

    def join(self, timeout_seconds: float = 480.0) -> None:
        """Wait until every trajectory has ended."""
        self._thread.join(timeout_seconds)
        assert not self._thread.is_alive(), (
            f"{len(self.accepted)} accepted, {len(self.outcomes)} finished"
        )

    def finish(self, system: System) -> None:
        """Finish its trajectories, as trainers do; what they wrote is gone then."""
        asyncio.run(self._finish(system))

    async def _finish(self, system: System) -> None:
        async with AsyncClient(system.addresses[0].url, system.token, retry=PATIENT) as client:
            for name in {name for name, _ in self.accepted.values()}:
                await client.finish_trajectory(name)

    async def _play(self, system: System) -> None:
        async with AsyncExitStack() as stack:
            # Each knows all web processes, and begins with its own.
            clients = [
                await stack.enter_async_context(AsyncClient(urls, system.token, retry=self.retry))
                for urls in _turns([at.url for at in system.addresses])
            ]
            await asyncio.gather(
                *(
                    self._trajectory(clients[n % len(clients)], f"r{self.number}-{n}")
                    for n in range(self.trajectories)
                )
            )

    async def _trajectory(self, client: AsyncClient, name: str) -> None:
        for number in itertools.count():
            if self._ending.is_set() or (number >= self.actions and not self._awaited):
                return
            command = f"echo ran >> ran.{number}; sleep {self.seconds}"
            action = exec_action(
                "faults", command, trajectory=name, timeout_seconds=600 + self.seconds
            )
            try:
                began = time.monotonic()
                view = await client.submit(action)
                self.accepted_at.append(time.monotonic())
                self.submit_seconds.append(self.accepted_at[-1] - began)
                self._note(self.accepted, view.id, (name, number))
                done = await client.wait(view.id)
                self._note(self.outcomes, view.id, str(done.outcome))
            except TangramClientError as error:
                self.failures.append(error)

    def _note(self, where: dict[str, Any], action_id: str, what: object) -> None:
        with self._moved:
            where[action_id] = what
            self._moved.notify_all()


def _turns(urls: list[str]) -> list[list[str]]:
    """Return the list once for each of its members, which is the first one then."""
    return [urls[n:] + urls[:n] for n in range(len(urls))]
