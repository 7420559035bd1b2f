"""Checks of actions in sessions: what their fields may say, and whether the session takes a command now."""

from __future__ import annotations

import msgspec

from contract.requests import ActionRequest
from contract.session_routes import SessionName
from domain.action import Action, ExecSpec, ExpectSpec
from domain.errors import Conflict, InvalidRequest, NotFound, Unavailable
from domain.rewards import check_no_reward_of_session
from managers.cpu.sessions.transcript import compiled
from scheduler.runtime.gateway.http import HttpError
from scheduler.runtime.gateway.node_door import NodeDoorClient

_IDLE_SECONDS = 5.0


def checked_session(name: str) -> str:
    """Return the name of a session that a client asks for. Raises NotFound for an impossible one."""
    try:
        return msgspec.convert(name, SessionName)
    except msgspec.ValidationError:
        raise NotFound(f"there is no session {name!r}") from None


def check_session(payload: ActionRequest, work: ExecSpec) -> None:
    """Raise InvalidRequest for fields of a session that contradict each other."""
    if work.session is None:
        for name, given in (("expect", work.expect is not None), ("queue", work.queue)):
            if given:
                raise InvalidRequest(f"{name} goes with exec.session", pointer=f"/exec/{name}")
        return
    if payload.trajectory is None:
        raise InvalidRequest(
            "a session belongs to a trajectory: name it in trajectory", pointer="/trajectory"
        )
    try:
        msgspec.convert(work.session, SessionName)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error), pointer="/exec/session") from None
    check_no_reward_of_session(payload.reward)
    _check_fields(work)
    _check_expect(work.expect)


def _check_fields(work: ExecSpec) -> None:
    for name, value in (("cwd", work.cwd), ("env", work.env), ("rewrite", work.rewrite)):
        if value:
            raise InvalidRequest(
                f"{name} belongs to the session: use cd and export in its command, or open another one",
                pointer=f"/exec/{name}",
            )
    if not work.command and work.stdin is None and work.expect is None:
        raise InvalidRequest("give a command, or stdin or expect", pointer="/exec/command")


def _check_expect(expect: ExpectSpec | None) -> None:
    if expect is None:
        return
    if expect.pattern is not None:
        compiled(expect.pattern)
    elif not expect.input:
        raise InvalidRequest("expect needs a pattern, or input: true", pointer="/exec/expect")


async def session_refusal(door: NodeDoorClient, action: Action) -> InvalidRequest | None:
    """Return why the session does not take the action now: 404 or 409; None if it may.

    The node checks again when the action has its cores; so a node that does not answer refuses nothing.
    """
    work = action.exec
    if work is None or work.session is None or action.trajectory is None:
        return None
    wanted = "command" if work.command and not work.queue else "input"
    try:
        path, asked = f"/sessions/{work.session}", {"for": wanted}
        await door.ask(action.project, action.trajectory, path, asked, _IDLE_SECONDS)
    except Unavailable:
        return None
    except HttpError:
        return None
    except Conflict as error:
        if error.code != "no_environment":
            return error
        return NotFound(f"there is no session {work.session!r}; open it first")
    except InvalidRequest as error:
        return error
    return None
