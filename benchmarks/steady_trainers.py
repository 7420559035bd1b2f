"""Trainers that submit without a pause: open a trajectory, run its actions one after the other, finish it, open the next one.

Each action adds a line with its number to a file, so that what ran twice is counted on disk, whatever the system says; the
commands run as plain processes for that. Nothing is retried but by the SDK.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tangram_client import AsyncClient, RetryPolicy, TangramClientError, exec_action


@dataclass
class SteadyTrainers:
    """So many trainers, each with one trajectory at a time of so many actions."""

    urls: Sequence[str]
    token: str
    ran: Path
    trainers: int = 16
    actions: int = 10
    seconds: float = 0.1
    timeout_seconds: float = 600.0
    #: Longest wait for an end of an action.
    patience_seconds: float = 300.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    accepted: set[str] = field(default_factory=set)
    outcomes: dict[str, str] = field(default_factory=dict)
    failures: list[TangramClientError] = field(default_factory=list)
    #: When actions ended at their trainers, and how long each took there; seconds, monotonic.
    ends: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    #: How long each submission took, until it was accepted.
    submit_seconds: list[float] = field(default_factory=list)
    #: Node → trajectories that are open there.
    open_on: Counter[str] = field(default_factory=Counter)
    #: Trajectories with actions on more than one node.
    moved: set[str] = field(default_factory=set)
    #: Where the file is one of the environment: trajectories that did not find the lines of all their former actions there, once each.
    torn: set[str] = field(default_factory=set)

    def start(self) -> None:
        """Begin, in a thread."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._play()), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let every trainer end after its trajectory; return once all have."""
        self._ending.set()
        self._thread.join(self.patience_seconds)
        if self._thread.is_alive():
            raise SystemExit(f"{len(self.accepted) - len(self.outcomes)} actions do not end")

    def wait_for(self, count: int) -> None:
        """Wait until so many more actions have ended."""
        goal, until = len(self.outcomes) + count, time.monotonic() + self.patience_seconds
        while len(self.outcomes) < goal:
            if time.monotonic() > until:
                raise SystemExit(f"no action ends: {self.failures[:3]}")
            time.sleep(0.05)

    def longest_stall(self, since: float, until: float) -> float:
        """Return the longest time between two ends of actions, of all trainers together."""
        moments = [since, *(at for at in sorted(self.ends) if since < at < until), until]
        return max(after - before for before, after in itertools.pairwise(moments))

    def ran_twice(self) -> list[str]:
        """Return actions whose command ran more than once."""
        lines = Counter(self.ran.read_text().split()) if self.ran.exists() else Counter[str]()
        return [name for name, count in lines.items() if count > 1]

    def never_ran(self) -> int:
        """Return how many completed actions left no line."""
        lines = set(self.ran.read_text().split()) if self.ran.exists() else set[str]()
        return sum(each == "completed" for each in self.outcomes.values()) - len(lines)

    async def _play(self) -> None:
        await asyncio.gather(*map(self._trainer, range(self.trainers)))

    async def _trainer(self, number: int) -> None:
        turn = number % len(self.urls)
        urls = [*self.urls[turn:], *self.urls[:turn]]
        async with AsyncClient(urls, self.token, retry=self.retry) as client:
            for round_ in itertools.count():
                if self._ending.is_set():
                    return
                await self._trajectory(client, f"t{number}-{round_}")

    async def _trajectory(self, client: AsyncClient, name: str) -> None:
        node = ""
        try:
            for number in range(self.actions):
                command = f"echo {name}.{number} >> {self.ran}; sleep {self.seconds}"
                if not self.ran.is_absolute():
                    command += f"; [ $(wc -l < {self.ran}) = {number + 1} ]"
                action = exec_action(
                    "upgrade", command, trajectory=name, timeout_seconds=self.timeout_seconds
                )
                began = time.monotonic()
                view = await client.submit(action)
                self.submit_seconds.append(time.monotonic() - began)
                self.accepted.add(view.id)
                done = await client.wait(view.id)
                self.ends.append(time.monotonic())
                self.took.append(self.ends[-1] - began)
                self.outcomes[view.id] = str(done.outcome)
                if done.exit_code:
                    self.torn.add(name)
                where = str(done.placement["node"]) if done.placement is not None else node
                if not node and where:
                    self.open_on[where] += 1
                elif where != node:
                    self.moved.add(name)
                node = node or where
            await client.finish_trajectory(name)
        except TangramClientError as error:
            self.failures.append(error)
        if node:
            self.open_on[node] -= 1
