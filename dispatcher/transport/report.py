"""Report of an exchange, as one rank saw it: strategy, seconds, bytes by pair, and what was planned again."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ExchangeReport:
    """What one rank did in the latest exchange; bytes are those of tensors, without heads of frames."""

    strategy: str
    seconds: float = 0.0
    #: Rank → bytes sent to it, received from it.
    sent: dict[int, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)
    #: How often the rest was planned again, and without which ranks.
    replanned: int = 0
    lost: dict[int, str] = field(default_factory=dict)

    def add(self, sent: dict[int, int], received: dict[int, int]) -> None:
        """Count the bytes of one step."""
        for total, more in ((self.sent, sent), (self.received, received)):
            for rank, count in more.items():
                total[rank] = total.get(rank, 0) + count
