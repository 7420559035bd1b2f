"""Jobs: Celery tasks for slow work, each with a schedule and a record of its last run.

Rules
1. A job may run twice: a message is acknowledged after the run, and a worker that dies leaves it to
   be delivered again. So each job claims what it works on in the database, where its effect happens
   once.
2. Rows are the truth and messages only start work. A lost message costs nothing: the schedule
   enqueues the job again while its rows are due.
3. An error of the database, of Redis or of the operating system is retried with growing pauses; any
   other error, and the last retry, fails the run. The next scheduled run begins from the rows again.
4. A long job checks `stopping`, so that its worker ends within seconds.

Only workers import this module; pages read the records through `tangram_web.lib.job_runs`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Any, Final

import redis
from celery import Task, shared_task
from django.conf import settings
from django.db import Error as DatabaseError

from tangram_web.lib import bus
from tangram_web.lib.job_runs import JobRuns

#: The queue, and the role of the workers that serve it.
QUEUE: Final = "jobs"
#: Set when this process is asked to end.
stopping: Final = Event()


@dataclass(frozen=True)
class Schedule:
    """When a job is enqueued."""

    task: Task
    #: Between two checks of ``is_due``.
    every_seconds: float
    #: Cheap question whether there is work; it runs in the thread of the schedule.
    is_due: Callable[[], bool]


#: Job name → its schedule; filled while the apps' ``jobs`` modules are imported.
SCHEDULES: Final[dict[str, Schedule]] = {}


def visibility_seconds() -> float:
    """Return after how long a message of a dead worker is delivered again: beyond the longest job."""
    return max(3600.0, 2 * settings.TANGRAM_SIMULATION_SECONDS)


class _RecordedTask(Task):
    """A task that acknowledges late, retries faults of its surroundings and records its runs."""

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    autoretry_for = (DatabaseError, redis.RedisError, OSError)
    retry_backoff = 1
    retry_backoff_max = 60
    max_retries = 5

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Record that a run began."""
        _runs().started(self.name, self.request.hostname or "", self.request.retries)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Record that the run ended well."""
        _runs().succeeded(self.name)

    def on_retry(self, exc: Exception, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Record why the run is tried again."""
        _runs().failed(self.name, exc, retried=True)

    def on_failure(self, exc: Exception, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Record why the run was given up."""
        _runs().failed(self.name, exc, retried=False)


def _runs() -> JobRuns:
    return JobRuns(bus.redis_client(), bus.keys())


def job(
    name: str, *, every_seconds: float, is_due: Callable[[], bool] = lambda: True
) -> Callable[[Callable[[], None]], Task]:
    """Make a function a job that is enqueued every ``every_seconds`` while ``is_due``."""

    def register(function: Callable[[], None]) -> Task:
        task: Task = shared_task(name=name, base=_RecordedTask)(function)
        SCHEDULES[name] = Schedule(task, every_seconds, is_due)
        return task

    return register
