r"""Shell sessions of SWE-ReX, as sessions of an environment that run bash on a terminal.

A command is an action in the session: it has cores while it runs, and ends when bash is done, or when one of its
expected patterns is found. The session goes on with a command that reached its time limit, until it is interrupted.

Rules
1. bash parses a whole command before it begins (``{ … }``), as SWE-ReX checks it with ``bash -n``. The check itself
   is made only for a command that bash refuses, so any other costs one action.
2. A command for a session that is busy waits for it, within its time limit. Input of an interactive program is typed.
3. Patterns are those of RE2, which has neither look-around nor back references.
4. An interrupt is SIGINT, ``n_retry`` times; then SIGKILL for what the shell runs in the foreground, which the
   output of the next command begins with.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from contract.session_routes import SessionName
from domain.action import Outcome
from domain.errors import Conflict, Gone, InvalidRequest, NotFound, TangramError
from facades.swerex import exceptions
from facades.swerex.exceptions import RexError
from facades.swerex.messages import CloseSession, CreateSession, SessionAction
from facades.swerex.sandbox import RexSandbox, prefixed
from scheduler.runtime.gateway.http import HttpError

#: What ``expect_string`` has when the shell is done: the prompt of SWE-ReX's own shells.
PROMPT: Final = "SHELLPS1PREFIX"
#: Shortest limit on the files that a new shell reads.
START_SECONDS: Final = 10.0
_INTERRUPT_SECONDS: Final = 0.2
#: Wait for the exit code of a command whose expected pattern was found, as in SWE-ReX.
_CODE_SECONDS: Final = 1.0
#: A pattern that is found nowhere: with an expected pattern, what reaches its limit is not ended.
_NEVER: Final = r"[^\x00-\xff]"
#: What bash says of a killed program before its next prompt. With a pattern that is found before it, the
#: next command's output begins with it, as in SWE-ReX.
_NOTICE: Final = r"builtin printf '[1]+  Killed\n'"
_AT_ONCE: Final = ("(?:)",)
_CONTROL: Final = re.compile(r"\x1B[@-_][0-?]*[ -/]*[@-~]")
_SYNTAX: Final = re.compile("syntax error|unexpected EOF")
#: Programs that draw on a terminal print plain text.
_VARIABLES: Final = {"TERM": "dumb"}


class ShellReply(NamedTuple):
    """What one action in a session returned."""

    output: str
    #: None: the command has not ended, or the shell does not tell.
    exit_code: int | None
    #: Index of the expected pattern that was found.
    found: int | None
    #: The shell waits for a command.
    idle: bool
    #: The time limit was reached.
    late: bool


class RexShells:
    """The sessions of one sandbox."""

    def __init__(self, sandbox: RexSandbox) -> None:
        self._sandbox = sandbox

    async def create(self, asked: CreateSession) -> dict[str, Any]:
        """Open a session; return what its startup files print."""
        native, name = self._sandbox.native, session_name(asked.session)
        variables = {**_VARIABLES, **(asked.env or {})}
        try:
            await native.open_session(self._sandbox.name, name=name, env=variables)
        except (NotFound, Gone):
            raise
        except (InvalidRequest, HttpError) as error:
            if await self._state(name) not in (None, "ended"):
                message = f"session {asked.session} already exists"
                raise RexError(exceptions.EXISTS, message) from None
            raise RexError(exceptions.GENERAL, str(error)) from None
        files = [f"source {path}" for path in asked.startup_source]
        seconds = max(asked.startup_timeout, START_SECONDS)
        try:
            reply = await self._act(name, "; ".join(["stty -echo 2>/dev/null", *files]), seconds)
        except TangramError:
            await native.close_session(self._sandbox.name, name)
            raise
        if reply.late:
            await native.close_session(self._sandbox.name, name)
            raise RexError(exceptions.NOT_INTERRUPTED, f"no prompt within {seconds:g} s")
        return {"output": reply.output, "session_type": "bash"}

    async def close(self, asked: CloseSession) -> dict[str, Any]:
        """Close a session."""
        name = session_name(asked.session)
        try:
            await self._sandbox.native.close_session(self._sandbox.name, name)
        except (NotFound, Conflict):
            raise _no_session(asked.session) from None
        return {"session_type": "bash"}

    async def close_all(self) -> dict[str, Any]:
        """Close all sessions; the environment and its files stay."""
        native = self._sandbox.native
        for facts in await native.sessions(self._sandbox.name):
            await native.close_session(self._sandbox.name, facts.name)
        return {}

    async def run(self, asked: SessionAction) -> dict[str, Any]:
        """Run a command, type input, or interrupt."""
        if asked.action_type == "bash_interrupt":
            return await self._interrupt(asked)
        if asked.is_interactive_command or asked.is_interactive_quit:
            return await self._interact(asked)
        observed = await self._command(asked)
        if asked.check == "raise" and observed["exit_code"] != 0:
            message = (
                f"Command {asked.command!r} failed with exit code {observed['exit_code']}. "
                f"Here is the output:\n{observed['output']!r}"
            )
            raise RexError(exceptions.NON_ZERO, prefixed(asked.error_msg, message))
        return observed

    async def _command(self, asked: SessionAction) -> dict[str, Any]:
        name, key = session_name(asked.session), self._sandbox.key
        text = f"{{ :\n{asked.command}\n\n}}"
        reply = await self._act(name, text, asked.timeout, asked.expect, key=key)
        if reply.late:
            raise _late(asked)
        output, code = reply.output, reply.exit_code
        if code and _SYNTAX.search(output):
            await self._check_syntax(asked.command)
        if reply.found is not None and not reply.idle and asked.check != "ignore":
            rest = await self._act(name, None, _CODE_SECONDS)
            output, code = output + rest.output, rest.exit_code
            if code is None and asked.check == "raise":
                raise RexError(exceptions.NO_EXIT_CODE, "timeout while getting exit code")
        return observation(asked, output, None if asked.check == "ignore" else code, reply.found)

    async def _check_syntax(self, command: str) -> None:
        """Raise BashIncorrectSyntaxError for a command that bash cannot parse, and so has not begun."""
        view = await self._sandbox.run({"command": ["bash", "-n"], "stdin": f"{command}\n"}, 60.0)
        result = view.result
        if view.outcome is Outcome.TIMEOUT or result["exit_code"] == 0:
            return
        said, errors = result["stdout"], result["stderr"]
        message = (
            f"Error (exit code {result['exit_code']}) while checking bash command \n{command!r}\n"
            f"---- Stderr ----\n{errors}\n---- Stdout ----\n{said}"
        )
        raise RexError(exceptions.SYNTAX, message, bash_stdout=said, bash_stderr=errors)

    async def _interact(self, asked: SessionAction) -> dict[str, Any]:
        """Start a program that waits for input, or type a line of its input."""
        name, key = session_name(asked.session), self._sandbox.key
        state = await self._state(name)
        if state is None:
            raise _no_session(asked.session)
        text: str | None = asked.command
        typed = None
        if state != "idle":
            line = asked.command.rstrip("\n") if asked.is_interactive_quit else asked.command
            text, typed = None, f"{line}\n"
        reply = await self._act(name, text, asked.timeout, asked.expect, typed=typed, key=key)
        if reply.late:
            raise _late(asked)
        output = reply.output
        if not asked.is_interactive_quit:
            output = output.lstrip().removeprefix(asked.command).strip()
        return observation(asked, output, 0, reply.found)

    async def _interrupt(self, asked: SessionAction) -> dict[str, Any]:
        native, sandbox, name = (
            self._sandbox.native,
            self._sandbox.name,
            session_name(asked.session),
        )
        seconds = _INTERRUPT_SECONDS if asked.timeout is None else asked.timeout
        output = ""
        for _ in range(asked.n_retry):
            try:
                await native.interrupt(sandbox, name)
            except (NotFound, Conflict):
                raise await self._without_shell(name, asked.session) from None
            reply = await self._act(name, None, seconds, asked.expect)
            output += reply.output
            if not reply.late:
                return observation(asked, output.strip(), 0, reply.found)
        await native.interrupt(sandbox, name, "SIGKILL")
        notice = await self._act(name, _NOTICE, max(seconds, _CODE_SECONDS), _AT_ONCE)
        if notice.late:
            raise RexError(exceptions.NOT_INTERRUPTED, "Failed to interrupt session")
        return observation(asked, output.strip(), 0, None)

    async def _act(
        self,
        name: str,
        command: str | None,
        seconds: float | None,
        expect: Sequence[str] = (),
        *,
        typed: str | None = None,
        key: str = "",
    ) -> ShellReply:
        """Run a command, type input or wait in a session. Raises RexError, HttpError, InvalidRequest."""
        work: dict[str, Any] = {
            "command": [] if command is None else [command],
            "session": name,
            "queue": command is not None,
            "expect": {"pattern": "|".join(f"(?s:{each})" for each in expect) or _NEVER},
        }
        if typed is not None:
            work["stdin"] = typed
        view = await self._sandbox.run(work, seconds, key)
        result = view.result or {}
        late = view.outcome is Outcome.TIMEOUT
        if "session" not in result and not late:
            raise await self._without_shell(name, name)
        if result.get("session") == "ended":
            raise RexError(exceptions.END_OF_FILE, f"the shell ended: {plain(result['stdout'])!r}")
        matched = result.get("matched")
        text = result.get("stdout", "")
        if matched:
            text = text.removesuffix(matched)
        found = None if matched is None else _which(expect, matched)
        idle = result.get("session") == "idle"
        return ShellReply(plain(text), result.get("exit_code") if idle else None, found, idle, late)

    async def _state(self, name: str) -> str | None:
        """Return the state of a session; None where there is none."""
        found = await self._sandbox.native.sessions(self._sandbox.name)
        return next((facts.state for facts in found if facts.name == name), None)

    async def _without_shell(self, name: str, shown: str) -> RexError:
        state = await self._state(name)
        if state is None:
            return _no_session(shown)
        return RexError(
            exceptions.END_OF_FILE, f"session {shown!r} takes no command: it is {state}"
        )


def observation(
    asked: SessionAction, output: str, exit_code: int | None, found: int | None
) -> dict[str, Any]:
    """Return the answer of ``run_in_session``; ``found``: index of the pattern that ended the action."""
    return {
        "output": output,
        "exit_code": exit_code,
        "failure_reason": "",
        "expect_string": PROMPT if found is None else asked.expect[found],
        "session_type": "bash",
    }


def plain(text: str) -> str:
    """Return output of a terminal without control sequences and carriage returns."""
    return _CONTROL.sub("", text).replace("\r\n", "\n")


def session_name(name: str) -> str:
    """Return the native name of a session; names that a folder cannot have are hashed."""
    try:
        return msgspec.convert(name, SessionName)
    except msgspec.ValidationError:
        digest = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()
        return f"s-{digest[:32]}"


def _which(patterns: Sequence[str], matched: str) -> int:
    """Return the first pattern that matches all of a text; of those that need what is around it, the first."""
    import re2

    for index, pattern in enumerate(patterns):
        try:
            if re2.fullmatch(f"(?s:{pattern})", matched):
                return index
        except re2.error:
            continue
    return 0


def _late(asked: SessionAction) -> RexError:
    message = f"timeout after {asked.timeout} seconds while running command {asked.command!r}"
    return RexError(exceptions.TIMEOUT, message)


def _no_session(name: str) -> RexError:
    return RexError(exceptions.NO_SESSION, f"session {name!r} does not exist")
