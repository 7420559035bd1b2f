"""Context of every template: the page that is shown, the navigation, and what the reader may see.

Every page has the problems of the system: a banner while one is critical, and their number beside the Overview.
Every page names the pools without the rule ``sandbox: required``: their commands may harm the machine.
Members see them as well, as they see all pools.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from domain.confinement import REQUIRED, can_sandbox
from tangram_web import site_map
from tangram_web.dashboard.pages import navigation_of
from tangram_web.live.access import Sight, sight_of
from tangram_web.pools.models import Pool
from tangram_web.problems.reading import problems_for
from tangram_web.records.models import NodeAvailability, NodeRecord, protection_of


class UnconfinedPool(NamedTuple):
    """A pool that does not require a sandbox."""

    name: str
    #: Nodes that run its commands without a sandbox.
    nodes: tuple[str, ...]


def unconfined_pools(sight: Sight | None) -> list[UnconfinedPool]:
    """Return the pools whose commands may run without a sandbox; none without access."""
    if sight is None:
        return []
    names = list(
        Pool.objects.exclude(sandbox=REQUIRED).order_by("name").values_list("name", flat=True)
    )
    if not names:
        return []
    here = NodeRecord.objects.filter(pool__in=names).exclude(state=NodeAvailability.LOST)
    plain: dict[str, list[str]] = {name: [] for name in names}
    for node in here.only("name", "pool", "isolation", "protection").order_by("name"):
        if not can_sandbox(node.isolation, protection_of(node)):
            plain[node.pool].append(node.name)
    return [UnconfinedPool(name, tuple(nodes)) for name, nodes in plain.items()]


def console(request: HttpRequest) -> dict[str, Any]:
    """Return ``page``; all else is evaluated on first use."""

    @cache
    def seen() -> Sight | None:
        return sight_of(getattr(request, "user", None))

    match = getattr(request, "resolver_match", None)
    name = "" if match is None else match.view_name
    return {
        "page": next((page for page in site_map.PAGES if page.name == name), None),
        "navigation": SimpleLazyObject(lambda: navigation_of(site_map.PAGES, name, seen())),
        "sight": SimpleLazyObject(seen),
        "problems": SimpleLazyObject(lambda: problems_for(seen())),
        "unconfined": SimpleLazyObject(lambda: unconfined_pools(seen())),
    }
