"""Template filters and tags: numbers, words and terms as text; `frontend/lib/format.js` does it live."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from django import template
from django.templatetags.static import static
from django.urls import reverse
from django.utils.html import conditional_escape, format_html

from contract.responses import QueueDetails, WaitDetails
from tangram_web.dashboard.glossary import term_of
from tangram_web.lib.endings import FAILED
from tangram_web.lib.explorer_links import explorer_link
from tangram_web.live.losses import clock


class ValueChange(NamedTuple):
    """One member that differs; values are JSON text, strings without quotes."""

    name: str
    had: bool
    before: str
    has: bool
    after: str


def differences(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> list[ValueChange]:
    """Return the members that differ, by dotted path, ordered by it."""
    old, new = _flat(before or {}), _flat(after or {})
    return [
        ValueChange(name, name in old, text_of(old.get(name)), name in new, text_of(new.get(name)))
        for name in sorted(old.keys() | new.keys())
        if name not in old or name not in new or old[name] != new[name]
    ]


def _flat(members: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in members.items():
        if isinstance(value, Mapping) and value:
            found.update(_flat(value, f"{path}{name}."))
        else:
            found[f"{path}{name}"] = value
    return found


def text_of(value: Any) -> str:
    """Return a string as it is, any other value as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


register = template.Library()

MISSING: Final = "–"
#: Codes of waits that an operator ends, and of waits that end only when something comes back or is added.
HALTED: Final = frozenset({"pool_paused", "task_paused", "service_quarantined", "node_drained"})
MISSED: Final = frozenset({
    "no_node", "no_backend", "node_lost", "node_refuses", "nodes_unusable", "node_unconfined",
    "pool_unconfined", "too_large", "unknown_resource",
})  # fmt: skip
#: Differences that a row of a table shows, and their characters.
SHOWN: Final = 3
LONGEST: Final = 200


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


register.filter("clock", clock)


@register.filter
def amount(value: float) -> str:
    """Return a sum as text: ``0.42``, ``12.3``, ``4,711``."""
    return f"{value:.2g}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


@register.filter
def resources(held: Mapping[str, float] | None) -> str:
    """Return granted units as text: ``cpu 4 · api:search 1``."""
    return " · ".join(f"{name} {count:g}" for name, count in (held or {}).items()) or MISSING


@register.simple_tag
def term(word: str, text: str = "") -> str:
    """Return ``text`` (``word`` without it) as a link to its glossary entry, which is its tooltip.

    A word that the glossary does not have is plain text.
    """
    found = term_of(word)
    if found is None:
        return conditional_escape(text or word)
    address = f"{reverse('dashboard:glossary')}#{found.anchor}"
    return format_html(
        '<a class="term" href="{}" title="{}">{}</a>', address, found.meaning, text or word
    )


@register.simple_tag
def icon(name: str) -> str:
    """Return the symbol ``name`` of `frontend/icons.svg`; the words beside it say what it means."""
    return format_html(
        '<svg class="i" aria-hidden="true"><use href="{}#{}"/></svg>', static("icons.svg"), name
    )


@register.simple_tag(name="explorer_link")
def link_to_explorer(tab: str, **terms: str) -> str:
    """Return the address of a list with one filter for each name; empty values are left out."""
    return explorer_link(tab, **{name: str(value or "") for name, value in terms.items()})


@register.filter
def needed(queue: QueueDetails) -> str:
    """Return the units that an action of a queue needs to start: ``cpu 4 · memory 2 GiB``."""
    memory = f"memory {queue.memory_bytes / 2**30:.2g} GiB" if queue.memory_bytes else ""
    return " · ".join(part for part in (resources(queue.needs), memory) if part != MISSING and part)


@register.filter
def reason(why: WaitDetails) -> str:
    """Return the reason why an action waits; the blocking action is a link with a short id."""
    if not why.blocked_by:
        return why.reason
    before, _, after = why.reason.partition(why.blocked_by)
    if before == why.reason:
        return why.reason
    return format_html(
        '{}<a class="mono" href="{}" title="{}">…{}</a>{}',
        before,
        reverse("dashboard:action", args=[why.blocked_by]),
        why.blocked_by,
        why.blocked_by[-8:],
        after,
    )


@register.filter
def wait_chip(code: str) -> str:
    """Return the judgement on a reason to wait: an operator lifts it, something is missing, or it is the turn of others."""
    return "paused" if code in HALTED else "exhausted" if code in MISSED else "queued"


@register.filter(name="bytes")
def memory(count: float) -> str:
    """Return an amount of memory: ``512 MiB``, ``2.5 GiB``."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:g} B"


@register.filter
def after_colon(resource: str | None) -> str:
    """Return the node of a node's resource: ``n1`` of ``memory:n1``."""
    return (resource or "").rpartition(":")[2]


@register.filter
def before_colon(resource: str | None) -> str:
    """Return the kind of a resource: ``cpu`` of ``cpu:n1``."""
    return (resource or "").partition(":")[0]


@register.filter
def entry(mapping: Mapping[str, object], name: str) -> object:
    """Return the entry of that name, or None."""
    return mapping.get(name)


@register.filter
def percent(share: float) -> str:
    """Return a share of 1 in percent."""
    return f"{100 * share:.1f}"


@register.filter
def plain(value: object) -> str:
    """Return a member of the configuration as text; JSON for a nested value."""
    return text_of(value)


@register.filter
def words(name: str | None) -> str:
    """Return a state or outcome as words: ``oom killed``."""
    return MISSING if name is None else str(name).replace("_", " ")


@register.filter
def words_of(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


@register.filter
def ending(name: str) -> str:
    """Return how actions ended, as words; see `tangram_web.lib.endings`."""
    return "completed, exit code not 0" if name == FAILED else words(name)


@register.filter
def changes(change: Any) -> list[ValueChange]:
    """Return the members in which ``before`` and ``after`` of an audit entry or a change differ."""
    return differences(change.before, change.after)


@register.filter
def is_long(found: list[ValueChange]) -> bool:
    """Return whether differences are folded in a row of a table."""
    return len(found) > SHOWN or sum(len(f"{one.before}{one.after}") for one in found) > LONGEST


@register.filter
def members(found: list[ValueChange]) -> str:
    """Return the members that differ, shortened: ``policy, sandbox and 4 more``."""
    names, rest = [one.name for one in found[:SHOWN]], len(found) - SHOWN
    return ", ".join(names) + (f" and {rest} more" if rest > 0 else "")


def _significant(value: float) -> str:
    before = max(1, math.floor(math.log10(max(value, 1e-9))) + 1)
    return f"{value:.{max(0, 2 - before)}f}"
