"""Reducer of the journal: dispatches the events and decisions of each entry to methods by type.

A reducer names the types that a method takes with `on`; entries of other types cost one lookup:

    class Waiting(JournalReducer):
        def __init__(self) -> None:
            super().__init__()
            self.actions: set[ActionId] = set()

        @on(ActionSubmitted)
        def _submitted(self, event: ActionSubmitted) -> None:
            self.actions.add(event.action.id)

        @on(Grant, Finish)
        def _left(self, decision: Grant | Finish) -> None:
            self.actions.discard(decision.action_id)

    waiting = Waiting()
    for entry in entries:
        waiting.reduce(entry)

Rules
1. An entry's events come first, in their order, then its decisions in theirs.
2. `begin` sees the entry before its events: times and sequence numbers are kept there.
3. A subclass that takes part of the journal only (one project) overrides `take`.
4. A method of a subclass replaces the inherited method of its name; a type has one method.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from itertools import chain
from typing import Any, ClassVar, TypeVar

from domain.codec import JournalEntry

Method = TypeVar("Method", bound=Callable[..., None])


def on(*types: type) -> Callable[[Method], Method]:
    """Mark a method of a reducer as the one that takes events or decisions of ``types``."""

    def mark(method: Method) -> Method:
        method.__dict__["reduces"] = types
        return method

    return mark


class JournalReducer:
    """Base of everything that folds journal entries into a state of its own."""

    #: Type of an event or decision → name of the method that takes it.
    _methods: ClassVar[dict[type, str]] = {}
    #: Whether it overrides `take`; a call for each fact would cost as much as the rest of `reduce`.
    _takes_part: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._methods = dict(cls._methods)
        cls._takes_part = cls.take is not JournalReducer.take
        for name, method in vars(cls).items():
            for kind in getattr(method, "reduces", ()):
                cls._methods[kind] = name

    def __init__(self) -> None:
        self._handlers: dict[type, Callable[[Any], None]] = {
            kind: getattr(self, name) for kind, name in self._methods.items()
        }

    def concerns(self, kinds: Set[type]) -> bool:
        """Return whether an entry with events and decisions of ``kinds`` changes anything here."""
        return not self._methods.keys().isdisjoint(kinds)

    def reduce(self, entry: JournalEntry) -> None:
        """Fold one entry."""
        self.begin(entry)
        if self._takes_part:
            for fact in chain(entry.events, entry.decisions):
                self.take(fact)
            return
        handlers = self._handlers
        for fact in chain(entry.events, entry.decisions):
            if (handler := handlers.get(type(fact))) is not None:
                handler(fact)

    def begin(self, entry: JournalEntry) -> None:
        """Prepare for the events and decisions of ``entry``."""

    def take(self, fact: object) -> None:
        """Fold one event or decision; types without a method are left out."""
        handler = self._handlers.get(type(fact))
        if handler is not None:
            handler(fact)
