"""Unfinished actions as the rows at one position have them, so that the next batch need not read them.

Rules
1. They hold only at the position of the batch that left them: if another projector moved it, or a
   transaction failed, they are forgotten and read from rows again.
2. Memory is bounded: the oldest are forgotten first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final

from tangram_web.records.action_rows import FINISHED, ActionChange

#: Actions that are kept: about 15 MB.
MOST_OPEN: Final = 50_000


class OpenRows:
    """The unfinished actions of the last batches of one projector."""

    def __init__(self, most: int = MOST_OPEN) -> None:
        self._most = most
        self._position = ""
        self._actions: dict[str, ActionChange] = {}

    def take(self, position: str, ids: Collection[str]) -> dict[str, ActionChange]:
        """Return those of ``ids`` that are known at ``position``. The caller changes them: `keep` them after."""
        actions = self._actions
        if position != self._position:
            actions.clear()
        self._position = ""  # until the batch is written
        return {each: actions.pop(each) for each in ids if each in actions}

    def keep(self, position: str, actions: Mapping[str, ActionChange]) -> None:
        """Keep the unfinished ones of ``actions``, which are written up to ``position``."""
        for name, action in actions.items():
            if action.state != FINISHED:
                action.columns = {}
                action.is_new = False
                self._actions[name] = action
        for name in list(islice(self._actions, max(0, len(self._actions) - self._most))):
            del self._actions[name]
        self._position = position
