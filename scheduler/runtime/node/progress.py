"""Which commands are settled: the position up to which this node needs to read nothing again."""

from __future__ import annotations

from collections import deque
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
        self._passed_marks: list[str] = []

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

    def passed_marks(self) -> list[str]:
        """Return, once, the marks of entries that the position has passed."""
        marks, self._passed_marks = self._passed_marks, []
        return marks

    def _advance(self) -> None:
        while self._entries and self._entries[0].open <= 0:
            entry = self._entries.popleft()
            del self._by_id[entry.stream_id]
            self.position = entry.stream_id
            self._passed_marks += entry.marks
