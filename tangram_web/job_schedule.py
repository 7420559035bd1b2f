"""The schedule of the jobs: enqueues each job when it is due, in the jobs worker itself.

There is no beat process and no stored schedule: a worker that starts checks every job at once. In one
process at most one message of a job is on its way; two workers may both enqueue it, which jobs allow
(`tangram_web.lib.jobs`, rule 1).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from time import monotonic, time
from typing import Any, Final, cast

import redis
from celery import Task, signals
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import close_old_connections, connection, connections
from kombu.exceptions import OperationalError

from domain.redis_keys import Keys
from scheduler.runtime.liveness import LIFE_SECONDS, process_name, show_life
from scheduler.runtime.redis.clients import connect
from tangram_web.lib import bus
from tangram_web.lib.jobs import QUEUE, SCHEDULES, Schedule, stopping, visibility_seconds

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 1.0
#: While the database does not change, frequent checks are this far apart: what is due then has waited for its time.
CALM_SECONDS: Final = 5.0
#: A worker that has not shown life for this long does not run jobs; as `/readyz` counts.
WORKER_SECONDS: Final = 10.0
#: How long a projector waits for a jobs worker before it runs jobs itself.
STAND_IN_SECONDS: Final = 30.0
#: Longest wait for its jobs to end.
STOP_SECONDS: Final = 5.0


class JobScheduler:
    """Decides which jobs to enqueue; ``dispatch`` starts one."""

    def __init__(
        self, dispatch: Callable[[Task], object], clock: Callable[[], float] = monotonic
    ) -> None:
        self._dispatch = dispatch
        self._clock = clock
        self._checked_at: dict[str, float] = {}
        #: Job → when it was enqueued; until its run has ended.
        self._enqueued_at: dict[str, float] = {}
        signals.task_postrun.connect(self._on_postrun)

    def tick(self, *, calm: bool = False) -> None:
        """Enqueue what is due. An error of the database or the broker is logged and tried again.

        ``calm``: nothing was written since the tick before.
        """
        now = self._clock()
        for name, schedule in SCHEDULES.items():
            # An entry that outlives every run belongs to a message that was lost.
            if now - self._enqueued_at.get(name, -visibility_seconds()) < visibility_seconds():
                continue
            every = max(schedule.every_seconds, CALM_SECONDS if calm else 0.0)
            if now - self._checked_at.get(name, -every) < every:
                continue
            self._checked_at[name] = now
            try:
                self._enqueue_if_due(name, schedule, now)
            except (DatabaseError, redis.RedisError, OperationalError, OSError) as error:
                self._enqueued_at.pop(name, None)
                log.warning("job %s is not enqueued: %s", name, error)

    def _enqueue_if_due(self, name: str, schedule: Schedule, now: float) -> None:
        if schedule.is_due():
            self._enqueued_at[name] = now
            self._dispatch(schedule.task)

    def _on_postrun(self, sender: Any = None, state: str | None = None, **_: object) -> None:
        if state != "RETRY":  # a retry is a message of its own
            self._enqueued_at.pop(getattr(sender, "name", ""), None)


class DatabaseWrites:
    """Tells whether another connection wrote to the database; only SQLite knows that, by a counter in its file."""

    def __init__(self) -> None:
        self._version: int | None = None

    def none_since(self) -> bool:
        """Return whether there was certainly no write since the call before."""
        if connection.vendor != "sqlite":
            return False
        try:
            with connection.cursor() as cursor:
                (version,) = cursor.execute("PRAGMA data_version").fetchone()
        except DatabaseError:
            return False
        before, self._version = self._version, version
        return bool(version == before)


def schedule_jobs(stop: Event) -> None:
    """Enqueue jobs and show life as a jobs worker until stopped."""
    client, keys = connect(settings.TANGRAM_REDIS_URL), bus.keys()
    scheduler = JobScheduler(lambda task: task.apply_async(retry=False))
    name, shown_at, writes = process_name(QUEUE), -LIFE_SECONDS, DatabaseWrites()
    while not stop.is_set():
        close_old_connections()
        scheduler.tick(calm=writes.none_since())
        if monotonic() - shown_at >= LIFE_SECONDS:
            shown_at = monotonic()
            with suppress(redis.RedisError):
                show_life(client, keys, name, QUEUE)
        stop.wait(TICK_SECONDS)


def stand_in(stop: Event) -> None:
    """Run jobs in threads of this process while no jobs worker shows life, until stopped.

    Installations from before there was a jobs worker (systemd units, compose files) keep working.
    """
    client, keys = connect(settings.TANGRAM_REDIS_URL), bus.keys()
    threads: list[Thread] = []

    def dispatch(task: Task) -> None:
        threads[:] = [each for each in threads if each.is_alive()]
        threads.append(Thread(target=_run_here, args=(task,), name=task.name, daemon=True))
        threads[-1].start()

    scheduler = JobScheduler(dispatch)
    seen_at, warned = monotonic(), False
    while not stop.wait(TICK_SECONDS):
        if has_jobs_worker(client, keys):
            seen_at, warned = monotonic(), False
        elif monotonic() - seen_at >= STAND_IN_SECONDS:
            if not warned:
                warned = True
                log.warning("no jobs worker shows life; this process runs the jobs meanwhile. Start"
                            " one: TANGRAM_ROLE=jobs, see deploy/systemd/tangram-jobs.service")  # fmt: skip
            close_old_connections()
            scheduler.tick()
    stopping.set()
    for thread in threads:
        thread.join(STOP_SECONDS)


def _run_here(task: Task) -> None:
    try:
        task.apply()
    finally:
        connections.close_all()


def has_jobs_worker(client: redis.Redis, keys: Keys) -> bool:
    """Return whether a jobs worker shows life; True while Redis does not answer."""
    try:
        rows = cast("dict[bytes, bytes]", client.hgetall(keys.workers))
    except redis.RedisError:
        return True
    workers = map(json.loads, rows.values())
    return any(each["role"] == QUEUE and time() - each["at"] <= WORKER_SECONDS for each in workers)
