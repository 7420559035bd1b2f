"""Pages of selectors of parallelism: all of them, and one with its map of speeds, contexts, switches and pin.

Selectors are of all projects, and have no secrets: all readers see them alike. Operators of all projects pin degrees.
"""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpRequest, HttpResponse

from contract.selector_status import SelectorsStatus, SelectorStageView, SelectorView
from domain.errors import InvalidRequest, Unavailable
from domain.selectors import Parallelism, SelectorStage, parse_parallelism
from tangram_web.accounts.access import role_everywhere
from tangram_web.dashboard.guards import refuse
from tangram_web.lib import scheduler_client
from tangram_web.live.access import Sight
from tangram_web.parallelism.drawings import context_plot, heat_map
from tangram_web.pools.models import SelectorRow

#: Switches of one page.
SWITCHES: Final = 30
_NO_SELECTOR: Final = "No selector of this name is declared."
#: A declaration to begin with.
SAMPLE: Final = """apiVersion: tangram/v1
kind: Selector
metadata: {name: policy}
spec:
  degrees: [{tp: 4, dp: 2}, {tp: 8}]
  contexts: [4096, 8192, 16384, 32768]
  responses: [32, 128]
  context_limit: 32768
"""


def selectors(request: HttpRequest, sight: Sight) -> dict[str, Any]:
    """Show all selectors."""
    try:
        found = scheduler_client.selectors().selectors
    except Unavailable as error:
        return {"problem": str(error), "selectors": []}
    return {"problem": "", "selectors": found, "sample": SAMPLE}


def selector(request: HttpRequest, sight: Sight, selector: str) -> dict[str, Any] | HttpResponse:
    """Show one selector; ``?stage=`` and ``?base=&other=`` choose what the map compares."""
    if "\0" in selector or not SelectorRow.objects.filter(name=selector).exists():
        return refuse(request, "No such selector", _NO_SELECTOR, 404)
    try:
        status = scheduler_client.selectors(selector, cells=True, history=True)
    except Unavailable as error:
        return {"name": selector, "problem": str(error)}
    if not status.selectors:
        return {"name": selector, "problem": "The scheduler has not applied its declaration yet."}
    return {
        "name": selector,
        "problem": "",
        "operates": role_everywhere(request.user) is not None,
        **_shown(request, status, status.selectors[0]),
    }


def _shown(request: HttpRequest, status: SelectorsStatus, found: SelectorView) -> dict[str, Any]:
    stage = _stage(request, found)
    base = _degree(request, "base", found, found.degrees[0])
    other = _degree(request, "other", found, found.degrees[-1])
    loads = [each for each in found.loads if each.stage is stage.stage]
    return {
        "selector": found,
        "stage": stage,
        "map": heat_map(status.profile, stage.stage, base, other, stage.load),
        "plot": context_plot(loads, found.context_limit),
        "plotted": len(loads),
        "switches": found.switches[: -SWITCHES - 1 : -1],
        "degrees": [(str(each), each == base, each == other) for each in found.degrees],
    }


def _stage(request: HttpRequest, found: SelectorView) -> SelectorStageView:
    wanted = request.GET.get("stage", "")
    known = {each.stage: each for each in found.stages}
    return known[SelectorStage(wanted)] if wanted in known else found.stages[0]


def _degree(
    request: HttpRequest, name: str, found: SelectorView, otherwise: Parallelism
) -> Parallelism:
    try:
        given = parse_parallelism(request.GET.get(name, "")[:64])
    except InvalidRequest:
        return otherwise
    return given if given in found.degrees else otherwise
