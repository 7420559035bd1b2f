"""The degree of parallelism of the engines that sample a task's rollouts, where selectors choose it.

Nothing of a task names a selector. One that observes the language model of the task's latest rollout is shown, with its latest switches.
"""

from __future__ import annotations

from typing import Final

from contract.selector_status import SelectorView
from domain.errors import Unavailable
from domain.fleets import FLEET
from tangram_web.lib import scheduler_client
from tangram_web.pools.models import SelectorRow
from tangram_web.records.models import RolloutRecord, TaskRecord

#: Switches on the page of a task; that of the selector has more.
SWITCHES: Final = 5


def selectors_of(task: TaskRecord) -> list[SelectorView]:
    """Return the selectors of the engines of a task's rollouts, each with its latest switches first; empty where there is none or no answer."""
    rows = RolloutRecord.objects.filter(project=task.project, task=task.name).order_by("-id")
    llm = rows.values_list("llm", flat=True).first()
    if not llm:
        return []
    observed = llm if llm.startswith(FLEET) else f"llm:{llm}"
    names = [
        name
        for name, spec in SelectorRow.objects.values_list("name", "spec")
        if observed in spec.get("observes", ())
    ]
    try:
        found = [each for name in names for each in scheduler_client.selectors(name, history=True).selectors]  # fmt: skip
    except Unavailable:
        return []
    for each in found:
        each.switches = each.switches[: -SWITCHES - 1 : -1]
    return found
