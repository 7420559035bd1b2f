"""How numbers and words read on the pages; `frontend/lib/format.js` does the same live."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from django import template

from domain.wire import QueueView
from tangram_web.lib.diffs import Difference, differences

register = template.Library()

MISSING: Final = "–"


@register.filter
def duration(seconds: float | None) -> str:
    """Return a duration in the unit that fits: ``12 ms``, ``1.2 s``, ``2m 05s``."""
    if seconds is None:
        return MISSING
    if seconds < 1e-4:
        return "<0.1 ms"
    if seconds < 0.9995:
        return f"{_significant(seconds * 1000)} ms"
    if seconds < 59.95:
        return f"{_significant(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02}m"


@register.filter
def amount(value: float) -> str:
    """Return a sum: ``0.42``, ``12.3``, ``4,711``."""
    return f"{value:.2g}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


@register.filter
def resources(held: Mapping[str, float] | None) -> str:
    """Return granted units as text: ``cpu 4 · api:search 1``."""
    return " · ".join(f"{name} {count:g}" for name, count in (held or {}).items()) or MISSING


@register.filter
def needed(line: QueueView) -> str:
    """Return what an action of a line needs to start: ``cpu 4 · memory 2 GiB``."""
    memory = f"memory {line.memory_bytes / 2**30:.2g} GiB" if line.memory_bytes else ""
    return " · ".join(part for part in (resources(line.needs), memory) if part != MISSING and part)


@register.filter
def entry(mapping: Mapping[str, object], name: str) -> object:
    """Return the entry of that name, or None."""
    return mapping.get(name)


@register.filter
def percent(share: float) -> str:
    """Return a share of 1 in percent."""
    return f"{100 * share:.1f}"


@register.filter
def words(name: str | None) -> str:
    """Return a state or outcome as words: ``oom killed``."""
    return MISSING if name is None else str(name).replace("_", " ")


@register.filter
def changes(change: Any) -> list[Difference]:
    """Return the members in which ``before`` and ``after`` of an audit entry or a change differ."""
    return differences(change.before, change.after)


def _significant(value: float) -> str:
    before = max(1, math.floor(math.log10(max(value, 1e-9))) + 1)
    return f"{value:.{max(0, 2 - before)}f}"
