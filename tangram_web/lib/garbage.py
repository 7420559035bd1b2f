"""Garbage collection of the long-lived processes: what is loaded stays out of it, and it runs rarely.

Requests, passes and batches make few reference cycles, but many objects. With Python's threshold of 700
objects a tenth of the time of a web process went into collections (`benchmarks.action_path`).
"""

from __future__ import annotations

import gc
from typing import Final

#: Objects that are made before the youngest of them are collected.
YOUNG_OBJECTS: Final = 50_000


def collect_rarely() -> None:
    """Leave all present objects out of later collections, and collect new cycles less often.

    Call it once a process has loaded what it serves with. It takes no time.
    """
    gc.enable()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
