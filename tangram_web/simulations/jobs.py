"""The simulation job: runs the oldest queued simulation."""

from __future__ import annotations

from typing import Final

from tangram_web.lib.jobs import job, stopping
from tangram_web.simulations.runner import is_due, run_next

EVERY_SECONDS: Final = 1.0


@job("simulations.run", every_seconds=EVERY_SECONDS, is_due=is_due)
def run_simulation() -> None:
    """Run the oldest queued simulation, if any."""
    run_next(stopping)
