"""Workers: live processes, the leader, lags of journal readers, and runs of jobs."""

from __future__ import annotations

from typing import Any

import redis
from django.http import HttpRequest

from tangram_web.dashboard.scheduler_selectors import asked
from tangram_web.lib import bus, scheduler_client
from tangram_web.lib.job_runs import JobRun, JobRuns
from tangram_web.metrics.reading import READERS, read_system


def workers(request: HttpRequest) -> dict[str, Any]:
    """Show processes from Redis, and durations from the scheduler."""
    status, problem = asked(scheduler_client.status)
    runs: list[JobRun] = []
    try:
        standing = read_system(bus.redis_client(), bus.keys(), READERS)
        runs = JobRuns(bus.redis_client(), bus.keys()).all()
    except redis.RedisError as error:
        standing, problem = None, f"redis does not answer: {error}"
    warm = [] if standing is None else [(*key, facts) for key, facts in standing.warm()]
    return {
        "status": status, "standing": standing, "runs": runs, "problem": problem, "warm": warm,
    }  # fmt: skip
