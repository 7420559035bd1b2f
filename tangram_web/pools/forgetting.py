"""Forgetting a node that does not come back: the scheduler decides, the configuration follows.

The audit entry, the end of a drain and the scheduler's word stay together: where it refuses, nothing
was changed. Where nobody leads it is asked all the same, and done when somebody does.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction

from tangram_web.audit.services import Actor, record
from tangram_web.lib import ask
from tangram_web.pools import services


def node_forget(*, actor: Actor, node: str, before: dict[str, Any] | None = None) -> bool:
    """Forget a node; False when that is asked and not done yet. ``before``: what the audit says it was.

    Raises NotFound; Conflict while it lives or holds work; Unavailable when Redis does not answer.
    """
    with transaction.atomic():
        # What comes back under this name is new, and nobody has drained it.
        services.node_resume(actor=actor, node=node)
        record(actor, "forget", f"node/{node}", before, None)
        return ask.forget_node(node)
