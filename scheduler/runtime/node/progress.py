"""Progress of a node through its commands: which are settled, and which starting marks are spent.

The position is the entry up to which the node needs to read nothing again. A mark is *spent* when
two conditions hold: the position has passed its command, so it will not be ordered again; and the
report of its end is on disk, so a crash cannot lose it. Each alone is not enough: a command is
settled as soon as its action starts, and its worker may die between the end of the action and the
report.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Entry:
    stream_id: str
    open: int
    marks: list[str] = field(default_factory=list)


class CommandProgress:
    """Counts open commands per stream entry. Entries settle in any order, the position advances in order."""

    def __init__(self, position: str) -> None:
        self.position = position
        self._entries: deque[_Entry] = deque()
        self._by_id: dict[str, _Entry] = {}
        #: Marks that wait for the other of the two conditions.
        self._passed: set[str] = set()
        self._ended: set[str] = set()
        self._spent: list[str] = []

    def began(self, stream_id: str, commands: int, marks: list[str]) -> None:
        """Record an entry: its number of commands, and the marks of its runs."""
        entry = _Entry(stream_id, commands, marks)
        self._entries.append(entry)
        self._by_id[stream_id] = entry
        self._advance()

    def settled(self, stream_id: str) -> None:
        """Record that one command of an entry is settled."""
        self._by_id[stream_id].open -= 1
        self._advance()

    def ended(self, mark: str) -> None:
        """Record that the report of an attempt's end is on disk, or that it will never run."""
        self._match(mark, self._ended, self._passed)

    def passed(self, marks: Iterable[str]) -> None:
        """Record attempts whose commands are before the position."""
        for mark in marks:
            self._match(mark, self._passed, self._ended)

    def has_spent(self) -> bool:
        """Whether `spent_marks` would return any."""
        return bool(self._spent)

    def spent_marks(self) -> list[str]:
        """Return, once, the marks to drop as soon as the present position is stored."""
        marks, self._spent = self._spent, []
        return marks

    def not_yet(self, marks: list[str]) -> None:
        """Take spent marks back: the position could not be stored."""
        self._spent += marks

    def _match(self, mark: str, mine: set[str], other: set[str]) -> None:
        if mark in other:
            other.discard(mark)
            self._spent.append(mark)
        else:
            mine.add(mark)

    def _advance(self) -> None:
        while self._entries and self._entries[0].open <= 0:
            entry = self._entries.popleft()
            del self._by_id[entry.stream_id]
            self.position = entry.stream_id
            self.passed(entry.marks)
