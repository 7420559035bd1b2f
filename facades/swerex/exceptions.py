"""Exceptions of SWE-ReX's server: the client raises the class whose name it receives in an answer of status 511.

    outcome of an action             exception
    ----------------------------------------------------------------------------------
    completed                        none; a status other than 0 where ``check`` asks: NonZeroExitCodeError
    timeout                          CommandTimeoutError
    expired                          none: 503, since it never started
    cancelled, oom_killed,           SwerexException that names the outcome: never an exit code. The client
    infra_failed, unknown            does not repeat it.

Other errors have their own status, and a JSON body with ``detail``. A request without a key gets 403, as from
SWE-ReX's server, and 401 with a wrong one.
"""

from __future__ import annotations

from typing import Any, Final

from contract.responses import ActionResponse
from domain.action import Outcome
from domain.errors import InvalidRequest, TangramError
from scheduler.runtime.gateway.authentication import bearer_token
from scheduler.runtime.gateway.http import HttpError, HttpRequest, HttpResponse, problem_of

STATUS: Final = 511
GENERAL: Final = "swerex.exceptions.SwerexException"
TIMEOUT: Final = "swerex.exceptions.CommandTimeoutError"
NON_ZERO: Final = "swerex.exceptions.NonZeroExitCodeError"
NO_EXIT_CODE: Final = "swerex.exceptions.NoExitCodeError"
SYNTAX: Final = "swerex.exceptions.BashIncorrectSyntaxError"
EXISTS: Final = "swerex.exceptions.SessionExistsError"
NO_SESSION: Final = "swerex.exceptions.SessionDoesNotExistError"
#: The shell of a session has ended; an interrupt that changed nothing.
END_OF_FILE: Final = "pexpect.exceptions.EOF"
NOT_INTERRUPTED: Final = "pexpect.exceptions.TIMEOUT"
MISSING: Final = "builtins.FileNotFoundError"
IS_DIRECTORY: Final = "builtins.IsADirectoryError"
NOT_PERMITTED: Final = "builtins.PermissionError"
UNDECODABLE: Final = "builtins.UnicodeDecodeError"
UNKNOWN_ENCODING: Final = "builtins.LookupError"
BAD_ARCHIVE: Final = "zipfile.BadZipFile"

_LOST: Final = {
    Outcome.CANCELLED: "the command was cancelled",
    Outcome.OOM_KILLED: "the command was killed: the memory of its environment is used up",
    Outcome.INFRA_FAILED: "a failure of the infrastructure stopped the command",
    Outcome.UNKNOWN: "it is unknown whether the command ran",
}


class RexError(TangramError):
    """An exception that the client of SWE-ReX raises."""

    def __init__(self, class_path: str, message: str, **extra: Any) -> None:
        super().__init__(message)
        self.class_path = class_path
        self.extra = extra


def check_outcome(view: ActionResponse) -> None:
    """Raise what says why a finished action has no result; a time-out is the caller's."""
    outcome = view.outcome or Outcome.UNKNOWN
    if outcome in (Outcome.COMPLETED, Outcome.TIMEOUT):
        return
    if outcome is Outcome.EXPIRED:
        raise HttpError(503, "expired", view.detail or "it waited too long for its cores")
    raise RexError(GENERAL, f"{_LOST[outcome]}: {view.detail or outcome} ({view.id})")


def rex_token(request: HttpRequest) -> str:
    """Return the token that a client of SWE-ReX shows."""
    return request.header(b"x-api-key") or bearer_token(request)


def refusal(error: TangramError, request: HttpRequest) -> HttpResponse:
    """Return an error in the shape that the client of SWE-ReX reads."""
    if isinstance(error, RexError):
        transferred = {
            "message": str(error),
            "class_path": error.class_path,
            "traceback": "",
            "extra_info": error.extra,
        }
        return HttpResponse(STATUS, {"swerexception": transferred})
    problem = problem_of(error, request)
    if not rex_token(request):
        return HttpResponse(403, {"detail": "Not authenticated: send a token as X-API-Key"})
    where = error.pointer if isinstance(error, InvalidRequest) else ""
    detail = f"{where}: {error}" if where else str(error)
    return HttpResponse(problem.status, {"detail": detail}, headers=problem.headers)
