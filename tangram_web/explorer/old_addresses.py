"""Addresses of earlier versions: their filters as a query. Pure.

`/actions/?state=queued&task=swe` was the address of a list before it had one filter language. Links of
trainers, notes and bookmarks go on working: such an address leads to ``?q=state:queued task:swe``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tangram_web.explorer.fields import Tab
from tangram_web.explorer.values import quote
from tangram_web.lib.endings import FAILED

#: Parameters of lists in earlier versions, by tab.
OLD_PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "actions": ("state", "outcome", "exit", "task", "trajectory", "project", "door"),
    "trajectories": ("state", "task", "project"),
    "tasks": ("project",),
    "rollouts": ("lane", "outcome", "task", "group", "instance", "handler", "worker", "llm", "project"),
}  # fmt: skip


def query_of_old(tab: Tab, given: Mapping[str, str]) -> str | None:
    """Return the query of an earlier version's parameters; None when there are none.

    A cursor of an earlier version selects what was submitted before: its filters are kept, and the list
    begins with the newest.
    """
    names = [name for name in OLD_PARAMETERS[tab.name] if given.get(name, "").strip()]
    if not names:
        return None
    terms: list[str] = []
    for name in names:
        value = given[name].strip()
        if (tab.name, name, value) == ("actions", "exit", FAILED):
            terms += ["exit:!=0"] if "outcome" in names else ["outcome:completed", "exit:!=0"]
        else:
            terms.append(f"{name}:{quote(value)}")
    return " ".join(terms)
