"""Differences between two JSON objects, member by member, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec


class Difference(NamedTuple):
    """One member that differs; values are JSON text, strings without quotes."""

    name: str
    had: bool
    before: str
    has: bool
    after: str


def differences(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> list[Difference]:
    """Return the members that differ, by dotted path, ordered by it."""
    old, new = _flat(before or {}), _flat(after or {})
    return [
        Difference(name, name in old, text_of(old.get(name)), name in new, text_of(new.get(name)))
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
