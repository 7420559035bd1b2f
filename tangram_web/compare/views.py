"""Page Compare: two sides, named in its address, with the interval of each difference."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse

from domain.errors import InvalidRequest
from tangram_web.compare import drawings
from tangram_web.compare.comparison import Comparison, compare, verdict, with_beside
from tangram_web.compare.sides import SideRows, UnknownSide, rows_of
from tangram_web.live.access import Sight
from tangram_web.pools.applying import revisions_seen_by
from tangram_web.records.models import TaskRecord
from tangram_web.simulations.models import Simulation, SimulationState

#: Sides of each kind that the page offers.
OFFERED: Final = 20
MOST_LETTERS: Final = 300


def compare_page(request: HttpRequest, sight: Sight) -> dict[str, Any]:
    """Show the comparison of the sides that the address names, or what can be compared."""
    a, b = (request.GET.get(name, "").strip()[:MOST_LETTERS] for name in ("a", "b"))
    context: dict[str, Any] = {"a": a, "b": b, "offers": offers(sight)}
    if not (a and b):
        return context
    query = urlencode({"a": a, "b": b})
    try:
        found = compare(rows_of(a, sight), rows_of(b, sight))
    except (InvalidRequest, UnknownSide) as error:
        return {**context, "problem": f"{str(error)[:1].upper()}{str(error)[1:]}."}
    line = f"curl -H \"Authorization: Bearer $TANGRAM_TOKEN\" '{request.build_absolute_uri(reverse('compare-api'))}?{query}'"
    return {**context, **parts_of(found), "query": query, "line": line}


def parts_of(found: Comparison, beside: SideRows | None = None) -> dict[str, Any]:
    """Return what the template of a comparison shows; ``beside``: what was measured."""
    if beside is not None:
        found = with_beside(found, beside)
    sides = [*([beside] if beside is not None else []), found.a, found.b]
    return {
        "compared": found,
        "beside": beside,
        "verdict": verdict(found),
        "measures": drawings.rows_of(found),
        "axis": drawings.axis_labels(drawings.axis_of(found)),
        "bars": drawings.bars_of(sides),
        "distribution": drawings.distribution_of(sides),
        "drawing": {"width": drawings.WIDTH, "height": drawings.HEIGHT, "left": drawings.LEFT},
    }


def offers(sight: Sight) -> list[tuple[str, str]]:
    """Return sides that the reader may choose, the latest of each kind, with a word on each."""
    tasks = sight.of(TaskRecord.objects.order_by("-opened_at"))[:OFFERED]
    found = [(f"task:{row.key}", f"task, {row.finished:,} actions finished") for row in tasks]
    for revision in revisions_seen_by(sight.projects, OFFERED):
        at = f"{revision.created_at:%Y-%m-%d %H:%M} UTC"
        found.append((f"revision:{revision.number}", f"revision of the configuration, {at}"))
    played = sight.of(Simulation.objects.filter(state=SimulationState.FINISHED))
    for row in played.defer("outcome").order_by("-created_at")[:OFFERED]:
        if row.request.get("workload") == "recorded":
            found += [(f"simulation:{row.pk}/{run}", f"simulated: {row}") for run in row.request["policies"]]  # fmt: skip
            found.append((f"measured:{row.pk}", f"as it ran: {row}"))
    return found
