"""The verbs there are, by kind of target and name. `VERBS` is the complete table."""

from __future__ import annotations

from typing import Final

from tangram_web.operations.on_limits import ON_LIMITS
from tangram_web.operations.on_nodes import ON_NODES
from tangram_web.operations.on_services import ON_SERVICES
from tangram_web.operations.on_tasks import ON_TASKS

VERBS: Final = {
    (verb.kind, verb.name): verb for verb in (*ON_TASKS, *ON_NODES, *ON_LIMITS, *ON_SERVICES)
}
