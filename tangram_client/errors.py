"""Errors of the client, with the blame in the type.

    TangramClientError
    ├── Unreachable        no answer: wrong URL, server down, connection lost
    ├── Refused            the server answered, and the answer is no; carries the `Problem`
    │   ├── InvalidRequestError 400, 413, 422: the request is wrong; `errors` say where
    │   ├── Unauthorized       401: no token, or one that is not known (any more)
    │   ├── Forbidden          403: the token's scopes do not allow this
    │   ├── NotFoundError      404: no such object in the token's projects
    │   ├── ConflictError      409, 412: the object's state or an earlier request forbids it
    │   ├── Busy               429, 503: full or without a leader; `retry_after_seconds` says when
    │   └── ServerError        any other 5xx: the server's fault
    ├── BadAnswer          the response does not follow this API
    ├── StillRunning       the given patience ended before the action did; it goes on
    └── LeaseLost          a lease ended while its holder still worked under it

The first contact of a call with a problem is never the end of it: the retry policy (`retry.py`)
has been spent when one of the temporary ones (Unreachable, Busy, a gateway's ServerError) surfaces.
"""

from __future__ import annotations

import inspect

from tangram_client.models import Problem


class TangramClientError(Exception):
    """Unexpected error of the Tangram client."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.getdoc(type(self)))


class Unreachable(TangramClientError):
    """Nothing answers at this URL."""


class Refused(TangramClientError):
    """The server refused the request."""

    def __init__(self, problem: Problem, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.retry_after_seconds = retry_after_seconds

    @property
    def errors(self) -> tuple[dict[str, str], ...]:
        """Errors by member of the request body (JSON Pointers)."""
        return self.problem.errors


class InvalidRequestError(Refused):
    """The request is wrong, and will be wrong again."""


class Unauthorized(Refused):
    """The token is missing or not known."""


class Forbidden(Refused):
    """The token does not allow this."""


class NotFoundError(Refused):
    """There is no such object in the token's projects."""


class ConflictError(Refused):
    """The object's state, or an earlier request with the same key, forbids this."""


class Busy(Refused):
    """The server is full, or has no leader right now."""


class ServerError(Refused):
    """The server failed."""


class BadAnswer(TangramClientError):
    """The response does not follow this API."""


class StillRunning(TangramClientError):
    """The action did not finish within the given patience; it goes on."""

    def __init__(self, action_id: str, state: str) -> None:
        super().__init__(f"{action_id} is still {state}; it goes on without you")
        self.action_id = action_id


class LeaseLost(TangramClientError):
    """The lease ended while its holder still worked under it."""


_BY_STATUS: dict[int, type[Refused]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFoundError,
    409: ConflictError,
    412: ConflictError,
    429: Busy,
    503: Busy,
}


def refusal(problem: Problem, *, retry_after_seconds: float | None = None) -> Refused:
    """Return the typed error for a problem, chosen by its status."""
    default = ServerError if problem.status >= 500 else InvalidRequestError
    kind = _BY_STATUS.get(problem.status, default)
    return kind(problem, retry_after_seconds=retry_after_seconds)


#: Former names, which trainers' programs import.
InvalidRequest, NotFound, Conflict = InvalidRequestError, NotFoundError, ConflictError
