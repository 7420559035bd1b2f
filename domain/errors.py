"""Errors, with the blame in the type.

TangramError
├── InvalidRequest      the caller's fault; carries the field and the cure
│   ├── NeverFits       no resource of the pool is large enough, ever
│   ├── NotFound        no such object in the caller's project
│   ├── Gone            it was there, and was deleted on purpose
│   └── Conflict        the object's state or an earlier request forbids it
├── CapacityError       the world is full or unreachable for now; worth a retry later
│   └── Unavailable     a part that must answer does not (leader, Redis, node)
├── Unreadable          something that was stored cannot be read; carries where, and the cure
├── Fenced              another leader has taken over; this process must stop writing
└── InvariantViolation  our fault; never caught, save by a loop that throws its machine away
"""

from __future__ import annotations

import inspect


class TangramError(Exception):
    """Unexpected Tangram error."""

    #: A retry of the same call cannot succeed.
    permanent: bool = True

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.getdoc(type(self)))


class InvalidRequest(TangramError):
    """The request is not valid."""

    def __init__(self, message: str, *, pointer: str = "", code: str = "invalid") -> None:
        super().__init__(message)
        #: JSON Pointer (RFC 6901) to the offending member of the request body.
        self.pointer = pointer
        self.code = code


class NeverFits(InvalidRequest):
    """The request asks for more than the pool can ever give."""

    def __init__(self, message: str, *, pointer: str = "/cost") -> None:
        super().__init__(message, pointer=pointer, code="never_fits")


class NotFound(InvalidRequest):
    """There is no such object in this project."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="not_found")


class Gone(InvalidRequest):
    """It was deleted on purpose."""

    def __init__(self, message: str, *, pointer: str = "") -> None:
        super().__init__(message, pointer=pointer, code="gone")


class Conflict(InvalidRequest):
    """The object's state forbids this request."""

    def __init__(self, message: str, *, pointer: str = "", code: str = "conflict") -> None:
        super().__init__(message, pointer=pointer, code=code)


class CapacityError(TangramError):
    """There is no room for this now."""

    permanent = False

    def __init__(self, message: str | None = None, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(CapacityError):
    """A part of the system that must answer does not."""


class Unreadable(TangramError):
    """Something that was stored is damaged, or of a version that this program does not know.

    Whoever needs it whole does not go on without it.
    """

    def __init__(self, message: str, *, entry_id: str = "") -> None:
        super().__init__(message)
        #: Entry of the journal, if it is one.
        self.entry_id = entry_id


class Fenced(TangramError):
    """Another leader has taken over; this process must not write any more."""


class InvariantViolation(TangramError):
    """The system broke one of its own rules."""
