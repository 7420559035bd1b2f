"""Undo: the verb and the values that reverse an audit entry. Pure except for addresses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from django.urls import reverse

from tangram_web.audit.models import AuditEntry
from tangram_web.operations.forms import period_of
from tangram_web.operations.verbs import VERBS

Values = Mapping[str, Any]
#: A verb's name and the values of its form.
Inverse = tuple[str, dict[str, Any]]

#: Kind and verb of an entry → its members, each with the verb that sets it.
_MEMBERS: Final = {
    ("pool", "update"): {"policy": "policy"},
    ("pool", "resize"): {"nodes": "resize"},
    ("resource", "set"): {"limit_units": "limit"},
    ("task", "prioritise"): {"priority": "priority"},
}


def undo_of(entry: AuditEntry) -> dict[str, str] | None:
    """Return title and address of the verb that reverses an entry; None if there is none."""
    kind, _, name = entry.target.partition("/")
    back = next(_inverses(kind, entry), None)
    if back is None:
        return None
    verb, given = back
    address = reverse("operations:verb", args=[kind, verb])
    return {
        "title": VERBS[kind, verb].title,
        "address": f"{address}?{urlencode({'target': name, **given})}",
    }


def _inverses(kind: str, entry: AuditEntry) -> Iterator[Inverse]:
    before, after = entry.before or {}, entry.after or {}
    for member, verb in _MEMBERS.get((kind, entry.verb), {}).items():
        if member in before and before[member] != after.get(member):
            yield verb, {member: _text(before[member])}
    if (kind, entry.verb) == ("pool", "update"):
        if "paused" in before and before["paused"] != after.get("paused"):
            yield ("pause" if before["paused"] else "resume"), {}
        for resource in {**before.get("shares", {}), **after.get("shares", {})}:
            former, latter = (each.get("shares", {}).get(resource, {}) for each in (before, after))
            yield from _share_inverses(former, latter, {"resource": resource})
    if (kind, entry.verb) == ("resource", "set") and before:
        former, latter = before.get("spec", {}), after.get("spec", {})
        yield from _quota_inverses(former, latter)
        yield from _share_inverses(former.get("shares", {}), latter.get("shares", {}), {})
    known = VERBS.get((kind, entry.verb))
    if known is not None and known.undo and known.undo != entry.verb:
        yield known.undo, {}


def _quota_inverses(before: Values, after: Values) -> Iterator[Inverse]:
    latter = {period_of(each): each["units"] for each in after.get("quotas", ())}
    for quota in before.get("quotas", ()):
        period = period_of(quota)
        if period in latter and latter[period] != quota["units"]:
            yield "quota", {"period": period, "units": quota["units"]}


def _share_inverses(before: Values, after: Values, of: dict[str, Any]) -> Iterator[Inverse]:
    for project in {**before, **after}:
        former = before.get(project, {"nominal_units": None})
        if former != after.get(project, {"nominal_units": None}):
            yield "share", {**of, "project": project, **{n: _text(v) for n, v in former.items()}}


def _text(value: Any) -> Any:
    return "" if value is None else value
