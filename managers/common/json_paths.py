"""Parts of JSON values, named by a path of member names and indices: ``choices.0.text``."""

from __future__ import annotations


def part_of(value: object, path: str) -> object:
    """Return the part at ``path``, of all of it when that is empty; None when there is none."""
    for name in path.split(".") if path else ():
        value = _member(value, name)
    return value


def _member(value: object, name: str) -> object:
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 10:
        index = int(name)
        return value[index] if index < len(value) else None
    return None
