"""What policies decided lately, as pages and files show it: filtered, and some at a time.

The scheduler keeps the latest decisions in memory and answers with all of them: what an address asks
for is selected here.
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

#: Decisions of one page, at least; those of one instant stay together.
PAGE: Final = 20
#: So many are asked for: all that the scheduler keeps.
KEPT: Final = 256
#: Kinds whose resources are each a node's; others may have a node's name by chance.
ON_NODES: Final = frozenset({"cpu", "gpu", "memory"})
#: Filters by the names they have in the address.
FILTERS: Final = ("pool", "policy", "resource")


@dataclass(frozen=True)
class Decided:
    """One decision, and the pool whose actions it was about."""

    view: DecisionDetails
    #: Empty for what belongs to no node: limits of APIs are of all pools.
    pool: str

    @property
    def granted(self) -> int:
        """How many candidates went."""
        return len(self.view.units)

    @property
    def policy(self) -> str:
        return self.view.policy

    @property
    def resource(self) -> str:
        return self.view.resource


@dataclass(frozen=True)
class DecidedPage:
    """Some decisions, latest first, and where to go on."""

    items: Sequence[Decided]
    #: How many fit the filters, and how many are kept at all.
    fitting: int
    kept: int
    filters: dict[str, str]
    #: Filter → what there is to choose, the chosen one included.
    choices: dict[str, list[str]]
    #: Query strings of the following and of the first page; empty when there is none.
    older: str
    newest: str
    mistake: str = ""


def decided_page(query: QueryDict) -> DecidedPage:
    """Return the page of decisions that an address asks for. Raises Unavailable.

    The cursor is an instant of the journal: pages stay put while decisions arrive.
    """
    everything = _everything()
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
    return DecidedPage(
        items, len(fitting), len(everything), filters, choices, older, newest, mistake
    )


def filtered_decisions(query: QueryDict) -> list[DecisionDetails]:
    """Return all decisions that an address asks for, latest first. Raises Unavailable."""
    filters = filters_of(query)
    return [one.view for one in _everything() if _fits(one, filters)]


def filters_of(query: QueryDict) -> dict[str, str]:
    """Return the filters that an address names."""
    return {name: value for name in FILTERS if (value := query.get(name, "").strip())}


def _everything() -> list[Decided]:
    views = scheduler_client.decisions(KEPT).items
    pools = dict(NodeRecord.objects.values_list("name", "pool")) if views else {}
    return [Decided(view, _pool_of(view.resource, pools)) for view in views]


def _pool_of(resource: str, pools: Mapping[str, str]) -> str:
    kind, _, name = resource.partition(":")
    return pools.get(name, "") if kind in ON_NODES else ""


def _fits(one: Decided, filters: dict[str, str]) -> bool:
    return all(getattr(one, name) == value for name, value in filters.items())


def _given(filters: dict[str, str], name: str) -> set[str]:
    return {filters[name]} if name in filters else set()


def _before(text: str) -> tuple[float | None, str]:
    """Return the instant to go on before, and what is wrong with it."""
    if not text:
        return None, ""
    try:
        at = float(text)
    except ValueError:
        at = math.nan
    return (None, f"{text!r} is no instant of the journal") if math.isnan(at) else (at, "")


def _whole_instants(rest: list[Decided]) -> list[Decided]:
    """Return a page of ``rest``: a cursor that cut through an instant would lose the rest of it."""
    end = min(PAGE, len(rest))
    while 0 < end < len(rest) and rest[end].view.at_seconds == rest[end - 1].view.at_seconds:
        end += 1
    return rest[:end]
