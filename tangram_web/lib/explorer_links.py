"""Addresses of the explorer: a number leads to the rows that it counts."""

from __future__ import annotations

from urllib.parse import quote

#: Characters that have a meaning in a filter.
_MARKS = frozenset(' \t\n,"\\')


def explorer_link(tab: str, /, **terms: str) -> str:
    """Return the address of a tab with one term for each name: ``/actions/?q=task%3Aswe``.

    Values may have the signs of the language, as in ``act=">5s"``; others are quoted where necessary.
    """
    query = " ".join(f"{name}:{_said(value)}" for name, value in terms.items() if value)
    return f"/{tab}/?q={quote(query, safe='')}" if query else f"/{tab}/"


def _said(value: str) -> str:
    if not _MARKS & set(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
