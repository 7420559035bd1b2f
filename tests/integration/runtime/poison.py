"""Actions at which the core raises, and a leader that is killed while it looks for them.

Nothing in production raises on purpose: these patch the core of the process that they run in. Families
of actions say where: ``handler`` while it is taken in, ``cycle`` while it is planned, ``grant`` not
before it is granted.

    python -m tests.integration.runtime.poison URL PREFIX N     a leader that is killed at its
                                                                N-th restart of the core
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from domain.redis_keys import Keys
from managers.registry import load
from scheduler.core.cycle import admission
from scheduler.core.cycle.pool_policies import needs_in
from scheduler.core.handlers import actions
from scheduler.runtime.liveness import process_name
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.loop.scheduler_loop import SchedulerLoop
from scheduler.runtime.redis.clients import connect
from tests.integration.runtime.rig import CONFIG

SetAttribute = Callable[[Any, str, Any], None]


def poison(patch: SetAttribute) -> None:
    """Let the core raise at actions of these families."""
    admit = admission.Cycle._admit

    def taken_in(state: Any, action: Any, *rest: Any) -> Any:
        if action.family == "handler":
            raise ValueError("poison")
        return needs_in(state, action, *rest)

    def planned(cycle: Any, queue: Any, live: Any) -> bool:
        if live.action.family == "cycle":
            raise ZeroDivisionError("poison")
        granted = admit(cycle, queue, live)
        if granted and live.action.family == "grant":
            raise ZeroDivisionError("poison")
        return granted

    patch(actions, "needs_in", taken_in)
    patch(admission.Cycle, "_admit", planned)


def lead_until_killed(url: str, prefix: str, times: int) -> None:
    """Lead, and die as by ``kill -9`` when another machine is made for the n-th time."""
    poison(setattr)
    client, keys = connect(url), Keys(prefix)
    leadership = Leadership(client, keys, process_name("loop"))
    loop = SchedulerLoop(client, keys, load(()).make_ledger, leadership, CONFIG)
    take_over, taken = loop.take_over, 0

    def counting(progress: Callable[[], None] = lambda: None) -> None:
        nonlocal taken
        if taken == times:
            os.kill(os.getpid(), signal.SIGKILL)
        taken += 1
        take_over(progress)

    setattr(loop, "take_over", counting)  # noqa: B010 - a method
    loop.run(threading.Event())


if __name__ == "__main__":
    lead_until_killed(sys.argv[1], sys.argv[2], int(sys.argv[3]))
