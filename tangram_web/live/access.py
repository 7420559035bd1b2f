"""Who may watch. Pages and topics ask here and nowhere else."""

from __future__ import annotations

from typing import Any


def may_watch(user: Any) -> bool:
    """Say whether ``user`` may see the console: staff only, and then every project.

    Frames and pages show all projects at once. A role that sees some projects needs frames folded
    per project first; until then it would be a promise that the overview breaks.
    """
    return bool(user is not None and user.is_active and user.is_staff)
