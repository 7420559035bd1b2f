"""The Celery application of the rival: one task that does nothing."""

from __future__ import annotations

import os

from celery import Celery

_URL = f"redis+socket://{os.environ.get('RIVAL_REDIS', '/nowhere')}"
app = Celery("rival", broker=_URL, backend=_URL)
app.conf.update(worker_prefetch_multiplier=16, task_acks_late=False)


@app.task  # type: ignore[untyped-decorator]
def noop() -> None:
    """Do nothing."""
