"""An operator who changes the priority of a task without a pause, each time to the next number, so that a lost change is found in the journal."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from domain.events import TaskPrioritised
from scheduler.runtime.redis.journal import START, Journal
from tangram_client import Client, RetryPolicy, TangramClientError
from tests.faults.system import System


@dataclass
class SteadyOperator:
    """Sends one verb after the other, and remembers which were answered."""

    url: str
    token: str
    task: str
    retry: RetryPolicy
    #: Between two verbs.
    seconds: float = 0.1
    #: Priorities whose change was answered.
    answered: list[int] = field(default_factory=list)
    failures: list[TangramClientError] = field(default_factory=list)

    def start(self) -> None:
        """Begin, in a thread."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._steer, daemon=True)
        self._thread.start()

    def stop(self, patience_seconds: float) -> None:
        """Send no more; return once the last verb has its answer."""
        self._ending.set()
        self._thread.join(patience_seconds)
        if self._thread.is_alive():
            raise SystemExit("a verb has no answer")

    def lost(self, system: System) -> list[int]:
        """Return answered priorities that the journal does not have."""
        with system.client() as client:
            kept = {
                event.priority
                for _, entry in Journal(client, system.keys).after(START)
                for event in entry.events
                if isinstance(event, TaskPrioritised)
            }
        return [each for each in self.answered if each not in kept]

    def _steer(self) -> None:
        priority = 0
        with Client(self.url, self.token, retry=self.retry) as client:
            while not self._ending.wait(self.seconds):
                priority += 1
                try:
                    client.prioritise_task(self.task, priority)
                except TangramClientError as error:
                    self.failures.append(error)
                else:
                    self.answered.append(priority)
