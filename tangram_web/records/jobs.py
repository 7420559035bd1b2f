"""The retention job."""

from __future__ import annotations

from typing import Final

from django.conf import settings

from tangram_web.lib.jobs import job, stopping
from tangram_web.records.retention import cutoff, prune

#: Between two runs, and between two batches of deleted rows: rows of new actions come first.
EVERY_SECONDS: Final = 600.0
BATCH_PAUSE_SECONDS: Final = 0.05


@job(
    "records.prune",
    every_seconds=EVERY_SECONDS,
    is_due=lambda: settings.TANGRAM_RETENTION_DAYS > 0,
)
def prune_records() -> None:
    """Delete actions and trajectories that are older than `TANGRAM_RETENTION_DAYS`."""
    prune(
        cutoff(settings.TANGRAM_RETENTION_DAYS),
        keep_running=lambda: not stopping.wait(BATCH_PAUSE_SECONDS),
    )
