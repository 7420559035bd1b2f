"""Errors of an exchange: each is typed, names the rank at fault where one is, and is the same on every rank of the group.

Rules
1. An error travels to the other ranks as data (`DispatchError.description`) and is raised there with the same type and members.
2. After an error a group is closed. A batch is returned whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class DispatchError(Exception):
    """An exchange that did not take place; ``rank`` is the rank at fault, None where no single one is."""

    def __init__(self, message: str, rank: int | None = None, **members: Any) -> None:
        super().__init__(message)
        self.rank = rank
        self._members = members

    def description(self) -> dict[str, Any]:
        """Return the error as JSON, for the other ranks."""
        members = {"rank": self.rank, **self._members}
        return {"type": type(self).__name__, "message": str(self), "members": members}

    @staticmethod
    def from_description(described: Mapping[str, Any]) -> DispatchError:
        """Return the error that another rank described."""
        kind = _TYPES.get(described["type"])
        members = dict(described["members"])
        if kind is None:
            return DispatchError(described["message"], members.get("rank"))
        return kind(**members)


def as_dispatch_error(error: BaseException, rank: int) -> DispatchError:
    """Return what the other ranks get of an error on ``rank``."""
    if isinstance(error, DispatchError):
        return error
    return DispatchError(f"rank {rank}: {error!r}", rank)


class RankLost(DispatchError):
    """A rank is dead, silent or cannot be reached, and what it has or wants exists on no other rank."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank} is lost: {reason}", rank, reason=reason)
        self.reason = reason


class Mismatch(DispatchError):
    """Two ranks describe the exchange differently; found before a byte of a tensor left.

    ``tensor`` is the name of a tensor, or ``plan``, ``checksums`` for what concerns all of them. ``ours`` is the value of the rank with
    the lowest number, ``theirs`` that of ``rank``.
    """

    def __init__(self, rank: int, tensor: str, ours: str, theirs: str, our_rank: int = 0) -> None:
        super().__init__(
            f"rank {rank} and rank {our_rank} differ in {tensor!r}: {theirs} there, {ours} here; "
            "give each rank the same layouts, dtypes and options",
            rank,
            tensor=tensor,
            ours=ours,
            theirs=theirs,
            our_rank=our_rank,
        )
        self.tensor, self.ours, self.theirs, self.our_rank = tensor, ours, theirs, our_rank


class Corrupted(DispatchError):
    """Bytes from a rank do not have the checksum that it sent with them."""

    def __init__(self, rank: int, tensor: str) -> None:
        super().__init__(
            f"bytes of {tensor!r} from rank {rank} failed their checksum", rank, tensor=tensor
        )
        self.tensor = tensor


class TimedOut(DispatchError):
    """Some ranks are alive and did not take part in time."""

    def __init__(self, ranks: list[int], seconds: float, rank: int | None = None) -> None:
        names = ", ".join(map(str, ranks))
        super().__init__(
            f"ranks {names} did not take part in the exchange within {seconds:g} s; "
            "each rank has to call it, in the same order",
            ranks[0] if rank is None and len(ranks) == 1 else rank,
            ranks=ranks,
            seconds=seconds,
        )
        self.ranks, self.seconds = ranks, seconds


class JoinRefused(DispatchError):
    """The group refused a connection: another secret, a rank that it does not have, or one that it lost."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank} refused the connection: {reason}", rank, reason=reason)
        self.reason = reason


class Closed(DispatchError):
    """The group was closed, by its owner or by an earlier error."""

    def __init__(self, rank: int | None = None) -> None:
        super().__init__("the group is closed; open another one, with listeners of its own", rank)


_TYPES: dict[str, Callable[..., DispatchError]] = {
    kind.__name__: kind for kind in (RankLost, Mismatch, Corrupted, TimedOut, JoinRefused, Closed)
}
