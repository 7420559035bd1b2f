"""All verbs, by kind of target and name. `VERBS` is the complete table."""

from __future__ import annotations

from typing import Final

from tangram_web.operations.verbs.actions import ON_ACTIONS
from tangram_web.operations.verbs.fleets import ON_FLEETS
from tangram_web.operations.verbs.limits import ON_LIMITS
from tangram_web.operations.verbs.nodes import ON_NODES
from tangram_web.operations.verbs.rollouts import ON_ROLLOUTS
from tangram_web.operations.verbs.selected_tasks import ON_SELECTED_TASKS
from tangram_web.operations.verbs.selectors import ON_SELECTORS
from tangram_web.operations.verbs.services import ON_SERVICES
from tangram_web.operations.verbs.tasks import ON_TASKS

VERBS: Final = {
    (verb.kind, verb.name): verb
    for verb in (
        *ON_ACTIONS,
        *ON_TASKS,
        *ON_SELECTED_TASKS,
        *ON_ROLLOUTS,
        *ON_FLEETS,
        *ON_SELECTORS,
        *ON_NODES,
        *ON_LIMITS,
        *ON_SERVICES,
    )
}
