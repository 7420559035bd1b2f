"""Fair turns: requests of different projects alternate in one web process, however many each sends.

A process serves requests in the order in which they arrive, so a project that sends a hundred at once
would delay all others by their sum. While requests of several projects arrive, each waits in a line of
its project, and one of each line is let through in each round of the event loop. A batch takes a turn
for every few of its actions, and appends them in as many parts unless it has an Idempotency-Key: that
is stored with all of its actions or with none. A project that is alone takes no turns.

The scheduler reads the inbox in order as well. So of a project that is not alone, only a window of actions
of this process is between the gateway and the journal. More wait here, but one passes every
`PATIENCE_SECONDS`: a leader that is away delays submissions, and does not refuse them. The window grows while actions reach
the journal almost as soon as the quickest of late, and shrinks when they take longer (additive increase,
multiplicative decrease, as in TCP): a busy machine is not filled by one project while another is present. Behind
several actions that were appended at once, a project rests for three times as long as they took: then others
find the scheduler free most of the time.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection
from time import monotonic
from typing import Final

from domain.principals import Principal

#: A project counts as present for so long after its last request.
PRESENT_SECONDS: Final = 1.0
#: Actions that one project has on their way to the journal, at least and at most.
LEAST_WINDOW: Final = 2
MOST_WINDOW: Final = 64
#: Time to the journal below which the window grows, at least; and in multiples of the quickest.
GOOD_SECONDS: Final = 0.0015
GOOD_FACTOR: Final = 1.5
#: Growth of the quickest time with each action: what was quick once is forgotten.
FORGETTING: Final = 1.01
#: What is left of the window after an action that took longer.
SHRINK: Final = 0.8
PATIENCE_SECONDS: Final = 0.25
#: Rest behind a batch, in multiples of its time to the journal, and the longest.
REST_FACTOR: Final = 3.0
MOST_REST_SECONDS: Final = 1.0
#: Actions of a batch in one turn.
SLICE: Final = 16
#: Actions whose way is followed; beyond that the oldest are forgotten.
MAX_FOLLOWED: Final = 50_000


def turn_of(principal: Principal) -> str:
    """Return the line of a caller: its project, or itself where its token is bound to none."""
    return principal.project or f"*{principal.name}"


class FairTurns:
    """The lines of one web process."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        #: Project → when its last submission passed, and until when it rests.
        self._passed: dict[str, float] = {}
        self._rests: dict[str, float] = {}
        #: Project → time of its last request.
        self._present: dict[str, float] = {}
        #: (project, whether they submit) → requests in line: a submission holds up no question.
        self._lines: dict[tuple[str, bool], deque[asyncio.Future[None]]] = {}
        #: Action on its way to the journal → its project, and when it was sent.
        self._followed: dict[str, tuple[str, float]] = {}
        self._window = float(LEAST_WINDOW)
        self._quickest = GOOD_SECONDS
        self._on_the_way: Counter[str] = Counter()
        #: Projects with a batch on its way.
        self._batches: set[str] = set()
        self._pump: asyncio.Handle | None = None
        self._waking: asyncio.TimerHandle | None = None

    def passes(self, project: str, *, submits: bool = False) -> bool:
        """Record a request of ``project``, and return whether it waits for no other: else `take` its turn."""
        self._present[project] = now = self._clock()
        return (not self._lines or (project, submits) not in self._lines) and (
            len(self._present) == 1 or self._alone(now)
        )

    async def take(self, project: str, *, submits: bool = False) -> None:
        """Wait for the turn of a request of ``project``; ``submits``: it is about to append actions."""
        if self.passes(project, submits=submits):
            return
        line = project, submits
        done = asyncio.get_running_loop().create_future()
        self._lines.setdefault(line, deque()).append(done)
        self._run_soon()
        await done

    def share(self, project: str, wanted: int) -> int:
        """Return how many of ``wanted`` actions ``project`` appends in one turn: all while it is alone."""
        self._present[project] = now = self._clock()
        return wanted if self._alone(now) else min(wanted, SLICE)

    def sent(self, project: str, action_ids: Collection[str]) -> None:
        """Record that actions are appended to the inbox."""
        now = self._clock()
        for action_id in action_ids:
            self._followed[action_id] = project, now
        self._on_the_way[project] += len(action_ids)
        if len(action_ids) > 1:
            self._batches.add(project)
        while len(self._followed) > MAX_FOLLOWED:
            self.arrived(next(iter(self._followed)))

    def arrived(self, action_id: str) -> None:
        """Record that an action is in the journal, or will not get there."""
        found = self._followed.pop(action_id, None)
        if found is None:
            return
        project, since = found
        self._on_the_way[project] -= 1
        now = self._clock()
        if not self._on_the_way[project]:
            del self._on_the_way[project]
            if project in self._batches:
                self._batches.discard(project)
                self._rests[project] = now + min(REST_FACTOR * (now - since), MOST_REST_SECONDS)
        self._quickest = min(max(self._quickest, 0.0005) * FORGETTING, now - since)
        if now - since < max(GOOD_SECONDS, GOOD_FACTOR * self._quickest):
            self._window = min(MOST_WINDOW, self._window + 1 / self._window)
        else:
            self._window = max(LEAST_WINDOW, self._window * SHRINK)
        if self._lines:
            self._run_soon()

    def _alone(self, now: float) -> bool:
        if len(self._present) == 1:
            return True
        waiting = {project for project, _ in self._lines}
        for project, seen in list(self._present.items()):
            if now - seen > PRESENT_SECONDS and project not in waiting:
                del self._present[project]
                self._passed.pop(project, None)
                self._rests.pop(project, None)
        return len(self._present) == 1

    def _round(self) -> None:
        """Let one request of each line through."""
        self._pump = None
        now, released = self._clock(), False
        for key, line in list(self._lines.items()):
            project, submits = key
            while line and line[0].done():  # its client has left
                line.popleft()
            if line and (not submits or self._may_submit(project, now)):
                released = True
                line.popleft().set_result(None)
                if submits:
                    self._passed[project] = now
            if not line:
                del self._lines[key]
        if self._lines and released:
            self._run_soon()
        elif self._lines:  # all of them are held: an action that arrives runs a round as well
            ends = (self._rests.get(project, now) - now for project, _ in self._lines)
            pause = min(PATIENCE_SECONDS, *(end for end in ends if end > 0), PATIENCE_SECONDS)
            self._waking = asyncio.get_running_loop().call_later(pause, self._run_soon)

    def _run_soon(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        if self._pump is None:
            self._pump = asyncio.get_running_loop().call_soon(self._round)

    def _may_submit(self, project: str, now: float) -> bool:
        if now < self._rests.get(project, 0.0):
            return False
        if now - self._passed.get(project, -PATIENCE_SECONDS) > PATIENCE_SECONDS:
            return True
        return self._on_the_way[project] < self._window
