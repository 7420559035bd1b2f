"""Recent decisions of the policies, filtered and paged.

The scheduler keeps the latest decisions in memory and answers with all of them; the filters of an
address are applied here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from django.http import QueryDict

from contract.responses import DecisionDetails
from tangram_web.lib import scheduler_client
from tangram_web.records.models import NodeRecord

#: Fewest decisions of a full page; decisions of one instant stay together.
PAGE: Final = 20
#: Decisions that are requested: all that the scheduler keeps.
KEPT: Final = 256
#: Kinds whose resources belong to a node; the name of another resource may equal a node's.
ON_NODES: Final = frozenset({"cpu", "gpu", "memory"})
#: Filters by the names they have in the address.
FILTERS: Final = ("pool", "policy", "resource")


@dataclass(frozen=True)
class RecentDecision:
    """One decision, and the pool of its candidates."""

    view: DecisionDetails
    #: Empty for a resource that belongs to no node: all pools share the limit of an API.
    pool: str

    @property
    def granted(self) -> int:
        """Number of candidates that were granted."""
        return len(self.view.units)

    @property
    def policy(self) -> str:
        return self.view.policy

    @property
    def resource(self) -> str:
        return self.view.resource


@dataclass(frozen=True)
class RecentDecisionPage:
    """Some decisions, latest first, and the links to the following ones."""

    items: Sequence[RecentDecision]
    #: Number of decisions that match the filters, and number that the scheduler keeps.
    fitting: int
    kept: int
    filters: dict[str, str]
    #: Filter → its possible values, the chosen one included.
    choices: dict[str, list[str]]
    #: Query strings of the following and of the first page; empty when there is none.
    older: str
    newest: str
    mistake: str = ""


def recent_decision_page(query: QueryDict) -> RecentDecisionPage:
    """Return the page of decisions that a query selects. Raises Unavailable.

    The cursor is an instant of the journal, so a page does not shift while decisions arrive.
    """
    everything = _kept_decisions()
    filters = filters_of(query)
    fitting = [one for one in everything if _fits(one, filters)]
    before, mistake = _before(query.get("before", ""))
    rest = [one for one in fitting if before is None or one.view.at_seconds < before]
    items = [] if mistake else _whole_instants(rest)
    older = ""
    if len(items) < len(rest) and items:
        older = urlencode(filters | {"before": repr(items[-1].view.at_seconds)})
    newest = urlencode(filters) or "newest" if "before" in query else ""
    choices = {
        name: sorted({getattr(one, name) for one in everything} - {""} | _given(filters, name))
        for name in FILTERS
    }
    return RecentDecisionPage(
        items, len(fitting), len(everything), filters, choices, older, newest, mistake
    )


def filtered_decisions(query: QueryDict) -> list[DecisionDetails]:
    """Return all decisions that a query selects, latest first. Raises Unavailable."""
    filters = filters_of(query)
    return [one.view for one in _kept_decisions() if _fits(one, filters)]


def filters_of(query: QueryDict) -> dict[str, str]:
    """Return the filters of a query."""
    return {name: value for name in FILTERS if (value := query.get(name, "").strip())}


def _kept_decisions() -> list[RecentDecision]:
    views = scheduler_client.decisions(KEPT).items
    pools = dict(NodeRecord.objects.values_list("name", "pool")) if views else {}
    return [RecentDecision(view, _pool_of(view.resource, pools)) for view in views]


def _pool_of(resource: str, pools: Mapping[str, str]) -> str:
    kind, _, name = resource.partition(":")
    return pools.get(name, "") if kind in ON_NODES else ""


def _fits(one: RecentDecision, filters: dict[str, str]) -> bool:
    return all(getattr(one, name) == value for name, value in filters.items())


def _given(filters: dict[str, str], name: str) -> set[str]:
    return {filters[name]} if name in filters else set()


def _before(text: str) -> tuple[float | None, str]:
    """Return the instant before which the page starts, or what is wrong with the text."""
    if not text:
        return None, ""
    try:
        at = float(text)
    except ValueError:
        at = math.nan
    return (None, f"{text!r} is not an instant of the journal") if math.isnan(at) else (at, "")


def _whole_instants(rest: list[RecentDecision]) -> list[RecentDecision]:
    """Return a page that ends between two instants: a cursor within one would skip its rest."""
    end = min(PAGE, len(rest))
    while 0 < end < len(rest) and rest[end].view.at_seconds == rest[end - 1].view.at_seconds:
        end += 1
    return rest[:end]
