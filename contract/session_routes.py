"""Routes of sessions, their requests and responses."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from contract.requests import Name
from contract.route import API_PREFIX, PROJECT, WEBSOCKET, Binary, Parameter, Route
from domain.ports.sessions import SessionFacts
from domain.principals import Scope

#: Names of sessions are folders on the node.
SessionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)", max_length=64)]
_Cells = Annotated[int, Meta(ge=1, le=10_000)]
_SESSIONS = f"{API_PREFIX}/trajectories/{{id}}/sessions"
_SESSION = f"{_SESSIONS}/{{session}}"
MAX_INPUT_BYTES = 1024 * 1024


class SizeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Size of a terminal, in characters."""

    rows: _Cells = 24
    columns: _Cells = 80


class SessionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /trajectories/{id}/sessions``."""

    name: SessionName = "main"
    #: A program, or its words. `bash` and `sh` take commands; any other program takes input.
    shell: str | list[str] = "bash"
    #: False: pipes instead of a terminal, with standard error of its own.
    pty: bool = True
    size: SizeRequest | None = None
    env: dict[Name, str] = {}
    cwd: Annotated[str, Meta(max_length=4096)] = "/workspace"


class SessionList(msgspec.Struct):
    """The sessions of a trajectory, ended ones too."""

    sessions: list[SessionFacts]


#: Signals that a request sends to the foreground of a session.
SIGNALS = ("SIGINT", "SIGTERM", "SIGKILL")


def _flag(name: str, description: str) -> Parameter:
    return Parameter(name, description, {"type": "string", "enum": ["true", "false"]})


SESSIONS = (
    Route(
        method="POST",
        path=_SESSIONS,
        operation="sessions_open",
        summary="Open a session: a shell or another program that lasts between actions",
        scope=Scope.SUBMIT,
        body=SessionRequest,
        parameters=(PROJECT,),
        responses={201: SessionFacts},
        errors=(404, 409, 410, 413, 422),
    ),
    Route(
        method="GET",
        path=_SESSIONS,
        operation="sessions_list",
        summary="The sessions of a trajectory",
        scope=Scope.READ,
        parameters=(PROJECT,),
        responses={200: SessionList},
        errors=(404, 410),
    ),
    Route(
        method="GET",
        path=_SESSION,
        operation="sessions_retrieve",
        summary="One session; 404 with the exit status once it has ended",
        scope=Scope.READ,
        parameters=(PROJECT,),
        responses={200: SessionFacts},
        errors=(404, 409, 410),
    ),
    Route(
        method="DELETE",
        path=_SESSION,
        operation="sessions_close",
        summary="Close a session: its program and what it runs in the foreground end",
        scope=Scope.SUBMIT,
        parameters=(PROJECT,),
        responses={200: SessionFacts},
        errors=(404, 409, 410),
    ),
    Route(
        method="POST",
        path=f"{_SESSION}/input",
        operation="sessions_input",
        summary="Type the body as input, without a grant",
        scope=Scope.SUBMIT,
        body=Binary("application/octet-stream", f"Up to {MAX_INPUT_BYTES} bytes."),
        parameters=(PROJECT,),
        responses={202: SessionFacts},
        errors=(404, 409, 410, 413),
    ),
    Route(
        method="POST",
        path=f"{_SESSION}/interrupt",
        operation="sessions_interrupt",
        summary="Send a signal to the foreground of a session, by default SIGINT",
        scope=Scope.SUBMIT,
        parameters=(
            PROJECT,
            Parameter(
                "signal",
                "Which; SIGTERM and SIGKILL spare a shell that takes commands.",
                {"type": "string", "enum": list(SIGNALS)},
            ),
        ),
        responses={202: SessionFacts},
        errors=(404, 409, 410, 422),
    ),
    Route(
        method="POST",
        path=f"{_SESSION}/resize",
        operation="sessions_resize",
        summary="Change the size of a session's terminal",
        scope=Scope.SUBMIT,
        body=SizeRequest,
        parameters=(PROJECT,),
        responses={200: SessionFacts},
        errors=(404, 409, 410, 422),
    ),
)

ATTACH = Route(
    method=WEBSOCKET,
    path=f"{_SESSION}/attach",
    operation="sessions_attach",
    summary="Attach a terminal: binary messages are input and output, text messages JSON objects",
    scope=Scope.SUBMIT,
    parameters=(
        PROJECT,
        _flag("prompt", "true: an idle shell shows its prompt until the terminal is detached."),
        _flag("history", "false: begin with new output."),
        Parameter("rows", "Size of the terminal.", {"type": "integer"}),
        Parameter("columns", "Size of the terminal.", {"type": "integer"}),
    ),
    responses={101: Binary("*/*", "Close code 4000: the session has ended.")},
    errors=(404, 409, 410),
)
