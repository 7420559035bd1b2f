"""Who may watch. Pages and topics ask here and nowhere else."""

from __future__ import annotations

from typing import Any

from tangram_web.pools.models import Project


def may_watch(user: Any) -> bool:
    """Say whether ``user`` may see the console: staff, and members of every project there is.

    Frames and pages show all projects at once, so whoever may not see one of them may not watch:
    pages of single projects (people, webhooks, simulations) are open to their members.
    """
    if user is None or not user.is_active:
        return False
    return bool(user.is_staff) or _is_member_everywhere(user)


def _is_member_everywhere(user: Any) -> bool:
    if not user.is_authenticated or user.pk is None:
        return False
    strange = Project.objects.exclude(memberships__user_id=user.pk)
    return Project.objects.exists() and not strange.exists()
