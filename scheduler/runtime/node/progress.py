"""Which commands are settled, and which starting marks nobody needs any more.

The position is the place up to which this node needs to read nothing again. A mark is *spent* when
two things hold: the position has passed the command that it belongs to, so it will not be ordered
again; and the report of its end is on disk, so a crash can lose nothing of it. Each alone is not
enough: an action that starts is settled at once, and its worker may die between the end of the
command and the report.
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


class Progress:
    """Counts open commands per stream entry. Entries settle in any order, the position in theirs."""

    def __init__(self, position: str) -> None:
        self.position = position
        self._entries: deque[_Entry] = deque()
        self._by_id: dict[str, _Entry] = {}
        #: Marks that wait for the other of the two conditions.
        self._passed: set[str] = set()
        self._ended: set[str] = set()
        self._spent: list[str] = []

    def began(self, stream_id: str, commands: int, marks: list[str]) -> None:
        """Note an entry with so many commands, and the marks that its runs will make."""
        entry = _Entry(stream_id, commands, marks)
        self._entries.append(entry)
        self._by_id[stream_id] = entry
        self._advance()

    def settled(self, stream_id: str) -> None:
        """Note that one command of an entry will not be needed again."""
        self._by_id[stream_id].open -= 1
        self._advance()

    def ended(self, mark: str) -> None:
        """Note that the report of an attempt's end is on disk, or that it will never run."""
        self._match(mark, self._ended, self._passed)

    def passed(self, marks: Iterable[str]) -> None:
        """Note attempts whose commands lie before the position."""
        for mark in marks:
            self._match(mark, self._passed, self._ended)

    def has_spent(self) -> bool:
        """Say whether `spent_marks` would return any."""
        return bool(self._spent)

    def spent_marks(self) -> list[str]:
        """Return, once, the marks that may go as soon as the present position is stored."""
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
