"""Commands in the session of a real shell: every shell, with a terminal and with pipes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from domain.errors import Conflict, InvalidRequest, NotFound
from domain.ports.sessions import SessionSpec, WindowSize
from managers.cpu.sessions.host import SessionHost
from managers.cpu.sessions.session import LiveSession
from managers.cpu.sessions.state import SessionPhase
from tests.conformance.sessions.host_environment import HostEnvironment

PATIENCE = 60.0
SHELLS = [shell for shell in ("bash", "dash") if shutil.which(shell)]
VARIABLES = {"PATH": os.environ["PATH"], "HOME": "/tmp", "LANG": "C.UTF-8"}
BASH = pytest.mark.parametrize("kind", [("bash", True), ("bash", False)])


class CommandReply(NamedTuple):
    status: int | None
    output: str
    errors: str


async def phase(session: LiveSession, *wanted: SessionPhase) -> None:
    """Wait until it is in one of the phases; a lasting look for a replaced shell included."""
    async with asyncio.timeout(PATIENCE):
        with session.watched() as changed:
            while session.state.phase not in wanted:
                try:
                    async with asyncio.timeout(0.05):
                        await changed.wait()
                except TimeoutError:
                    session.look()
                changed.clear()


async def shown(session: LiveSession, text: bytes) -> None:
    async with asyncio.timeout(PATIENCE):
        with session.watched() as changed:
            while text not in session.output.since(session.replied).content:
                await changed.wait()
                changed.clear()


async def executing(session: LiveSession, program: str) -> None:
    """Wait until a program runs in the foreground; before its `exec` a shell may lose an interrupt."""
    async with asyncio.timeout(PATIENCE):
        while program not in map(_program, session.foreground()):
            await asyncio.sleep(0.01)


def reply(session: LiveSession) -> CommandReply:
    session.drain()
    output = session.output.since(session.replied)
    errors = session.errors.since(session.replied_errors)
    session.replied, session.replied_errors = output.end, errors.end
    text = output.content.decode(errors="replace").replace("\r\n", "\n")
    return CommandReply(session.state.last_status, text, errors.content.decode(errors="replace"))


async def run(session: LiveSession, *words: str) -> CommandReply:
    session.run(words)
    await phase(session, SessionPhase.IDLE, SessionPhase.ENDED)
    return reply(session)


async def opened(
    host: SessionHost, environment: HostEnvironment, *shell: str, pty: bool = True
) -> LiveSession:
    spec = SessionSpec("main", shell or ("bash",), pty=pty, cwd=environment.inside)
    return await host.open(environment, spec, VARIABLES)


@pytest.fixture(params=[(shell, pty) for shell in SHELLS for pty in (True, False)], ids=str)
def kind(request: pytest.FixtureRequest) -> tuple[str, bool]:
    found: tuple[str, bool] = request.param
    return found


@pytest.fixture
async def session(
    host: SessionHost, environment: HostEnvironment, kind: tuple[str, bool]
) -> LiveSession:
    return await opened(host, environment, kind[0], pty=kind[1])


async def test_directory_exports_and_functions_last(session: LiveSession) -> None:
    assert (await run(session, "mkdir sub; cd sub; export A=1; f() { echo f$A; }")).status == 0
    assert (await run(session, "f; basename $PWD")).output == "f1\nsub\n"


async def test_output_and_status_are_those_of_the_command(session: LiveSession) -> None:
    assert await run(session, "echo out") == CommandReply(0, "out\n", "")
    assert (await run(session, "exit_status() { return 42; }; exit_status")).status == 42
    assert (await run(session, "echo $?")).output == "42\n"


async def test_pipes_separate_standard_error(session: LiveSession) -> None:
    both = await run(session, "echo out; echo err >&2")
    if session.pty:
        assert both == CommandReply(0, "out\nerr\n", "")
    else:
        assert both == CommandReply(0, "out\n", "err\n")


async def test_several_words_are_quoted_and_one_is_text(session: LiveSession) -> None:
    assert (await run(session, "printf", "%s|", "a b", "$HOME", "'")).output == "a b|$HOME|'|"


@pytest.mark.parametrize(
    "text",
    [
        "if",
        "echo '",
        "set -u; echo $nope",
        "${nope:?missing}",
        "cat <<E\nno end",
        "nosuchprogram",
        "break",
        "for",
        ")",
    ],
)
async def test_a_wrong_command_leaves_the_session_usable(session: LiveSession, text: str) -> None:
    await run(session, text)
    assert session.state.phase is SessionPhase.IDLE
    assert (await run(session, "set +u; echo usable")).output.endswith("usable\n")
    assert (await run(session, "echo only")).output == "only\n"


async def test_heredocs_and_many_lines(session: LiveSession) -> None:
    text = "x=5\ncat <<'E' | tr a-z A-Z\nhello $x\nE\necho $x"
    assert (await run(session, text)).output == "HELLO $X\n5\n"


async def test_a_harmless_failure_under_set_e_ends_nothing(session: LiveSession) -> None:
    assert (await run(session, "set -e; [ -f /nonexistent ] && echo y")).status == 1
    assert (await run(session, "[ -f /nonexistent ] && echo y")).status == 1
    assert (await run(session, "set +e; echo on")).output == "on\n"


async def test_a_failure_under_set_e_ends_the_shell_with_its_status(session: LiveSession) -> None:
    await run(session, "set -e; (exit 9); echo never")
    assert (session.state.phase, session.state.exit_status) == (SessionPhase.ENDED, 9)


async def test_exit_ends_the_session_with_its_status(session: LiveSession) -> None:
    last = await run(session, "echo bye; exit 3")
    assert last.output == "bye\n"
    assert (session.state.phase, session.state.exit_status) == (SessionPhase.ENDED, 3)
    with pytest.raises(NotFound, match="status 3"):
        session.run(("true",))


async def test_exit_with_a_background_job_ends_the_session(session: LiveSession) -> None:
    await run(session, "sleep 60 & exit 4")
    assert session.state.exit_status == 4


async def test_a_session_survives_options_and_closed_descriptors(session: LiveSession) -> None:
    await run(session, "set -f -C; IFS=0123456789; exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-")
    assert (await run(session, "echo a1b; (exit 11)")).status == 11
    assert (await run(session, 'echo "$?"; set +f +C; unset IFS')).output == "11\n"


async def test_a_session_survives_closed_output(session: LiveSession) -> None:
    await run(session, "exec 8>&1 1>&- 2>&-; true")
    assert (await run(session, "exec 1>&8 2>&1; echo back")).output == "back\n"


async def test_interrupt_ends_the_program_in_the_foreground(session: LiveSession) -> None:
    session.run(("echo ready; sleep 600",))
    await shown(session, b"ready")
    await executing(session, "sleep")
    assert session.interrupt()
    await phase(session, SessionPhase.IDLE)
    assert session.state.last_status == 130
    reply(session)
    assert (await run(session, "echo after")).output == "after\n"


async def test_interrupt_ends_a_loop_of_the_shell_itself(session: LiveSession) -> None:
    session.run(("echo ready; while :; do :; done",))
    await shown(session, b"ready")
    session.interrupt()
    await phase(session, SessionPhase.IDLE)
    reply(session)
    assert (await run(session, "echo after")).output == "after\n"


async def test_interrupt_of_an_idle_session_does_nothing(session: LiveSession) -> None:
    assert not session.interrupt()
    assert (await run(session, "echo fine")).output == "fine\n"


async def test_input_arrives_in_parts(session: LiveSession) -> None:
    session.run(('read a; read b; echo "<$a> <$b>"',))
    session.send(b"on")
    session.send(b"e\ntw")
    session.send(b"o\n")
    await phase(session, SessionPhase.IDLE)
    assert "<one> <two>\n" in reply(session).output


async def test_a_second_command_while_one_runs_is_refused(session: LiveSession) -> None:
    session.run(("read wait",))
    with pytest.raises(Conflict, match="queue"):
        session.run(("true",))
    session.send(b"\n")
    await phase(session, SessionPhase.IDLE)


async def test_a_large_command_is_run(session: LiveSession) -> None:
    text = f"x={'a' * 500_000}; echo ${{#x}}"
    assert (await run(session, text)).output == "500000\n"


async def test_output_is_complete_when_the_status_arrives(session: LiveSession) -> None:
    for count in range(200):
        assert (await run(session, f"printf '%04096d' {count}")).output == f"{count:04096d}"


async def test_binary_output_is_returned_unchanged(session: LiveSession) -> None:
    session.run((r"printf '\000\377\001\200'",))
    await phase(session, SessionPhase.IDLE)
    session.drain()
    assert session.output.since(session.replied).content == b"\x00\xff\x01\x80"


async def test_endless_output_costs_a_bounded_part_of_the_worker(session: LiveSession) -> None:
    session.run(("yes",))
    await shown(session, b"y")
    before, began = os.times(), asyncio.get_running_loop().time()
    await asyncio.sleep(1.0)
    after, ended = os.times(), asyncio.get_running_loop().time()
    session.interrupt()
    await phase(session, SessionPhase.IDLE)
    assert (after.user + after.system - before.user - before.system) < 0.9 * (ended - began)
    reply(session)
    assert (await run(session, "echo after")).output.endswith("after\n")


@BASH
async def test_a_command_that_has_ended_holds_no_job_number(session: LiveSession) -> None:
    await run(session, "/bin/true; sleep 0.01")
    await run(session, "sleep 100 &")
    assert (await run(session, "kill %1 && wait; echo over")).output.endswith("over\n")


async def test_background_jobs_last_and_their_output_is_not_lost(session: LiveSession) -> None:
    await run(session, "mkfifo gate; (read x <gate; echo from the job) &")
    assert (await run(session, "echo x >gate; wait; echo done")).output.startswith("from the job\n")


@pytest.mark.parametrize("kind", [("bash", True)])  # without a terminal there is no job control
async def test_a_stopped_program_leaves_the_session_usable(session: LiveSession) -> None:
    session.run(("echo ready; sleep 600",))
    await shown(session, b"ready")
    await executing(session, "sleep")
    session.interrupt(signal.SIGTSTP)
    await phase(session, SessionPhase.IDLE)
    assert session.state.last_status == 148
    assert "Stopped" in (await run(session, "jobs; kill %1; echo on")).output


@BASH
async def test_exec_of_another_shell_is_reported_as_replaced(session: LiveSession) -> None:
    session.run(("exec bash --norc --noprofile -i",))
    await phase(session, SessionPhase.REPLACED)
    with pytest.raises(Conflict, match="replaced"):
        session.run(("true",))
    session.send(b"echo raw $((6*7))\n")
    await shown(session, b"raw 42")


@BASH
async def test_a_changed_prompt_command_does_not_lose_the_session(session: LiveSession) -> None:
    await run(session, "PROMPT_COMMAND='echo mine'")
    await run(session, "unset PROMPT_COMMAND")
    session.run(("sleep 600",))
    await executing(session, "sleep")
    session.interrupt()
    await phase(session, SessionPhase.IDLE)
    assert (await run(session, "echo still")).output.endswith("still\n")


@BASH
async def test_aliases_and_traces_work(session: LiveSession) -> None:
    await run(session, "alias hi='echo al'")
    assert (await run(session, "hi bob")).output == "al bob\n"
    await run(session, "set -x")
    traced = await run(session, "echo traced")
    assert "traced\n" in traced.output
    assert "+ echo traced" in traced.output + traced.errors
    await run(session, "set +x")
    assert await run(session, "echo quiet") == CommandReply(0, "quiet\n", "")


@pytest.mark.parametrize("kind", [("bash", True), ("dash", True)])
async def test_resize_reaches_programs(session: LiveSession) -> None:
    session.resize(WindowSize(33, 111))
    assert (await run(session, "stty size")).output == "33 111\n"


@pytest.mark.parametrize("kind", [("bash", False)])
async def test_pipes_have_no_size(session: LiveSession) -> None:
    with pytest.raises(Conflict, match="no terminal"):
        session.resize(WindowSize(33, 111))


@pytest.mark.parametrize("kind", [("bash", True), ("dash", True)])
async def test_a_prompt_is_shown_while_a_terminal_wants_one(session: LiveSession) -> None:
    session.want_prompt(True)
    await phase(session, SessionPhase.PROMPT)
    with pytest.raises(Conflict, match="attached"):
        session.run(("true",))
    session.send(b"export SEEN=yes; cd /\n")
    session.send(b"echo typed $SEEN\n")
    await shown(session, b"typed yes")
    session.send(b"echo half a li")
    session.want_prompt(False)
    await phase(session, SessionPhase.IDLE)
    reply(session)
    assert (await run(session, "echo $SEEN; pwd")).output == "yes\n/\n"


async def test_a_directory_that_was_replaced_is_entered_again(
    session: LiveSession, environment: HostEnvironment
) -> None:
    await run(session, "mkdir deep; cd deep; cd .; (exit 5)")
    (environment.workspace / "deep").rename(environment.workspace / "old")
    (environment.workspace / "deep").mkdir()
    (environment.workspace / "deep" / "new").touch()
    await session.refresh_directory()
    assert (await run(session, 'echo $?; ls; basename "$OLDPWD"')).output == "5\nnew\ndeep\n"


@pytest.mark.parametrize("kind", [("bash", True)])
async def test_a_program_that_waits_for_input_is_noticed(session: LiveSession) -> None:
    session.run(("sleep 0.2; cat",))
    async with asyncio.timeout(PATIENCE):
        while not session.waits_for_input():
            assert session.state.phase is SessionPhase.BUSY
            await asyncio.sleep(0.01)
    session.send(b"\x04")
    await phase(session, SessionPhase.IDLE)
    assert not session.waits_for_input()


async def test_a_program_takes_input_but_no_commands(
    host: SessionHost, environment: HostEnvironment
) -> None:
    session = await opened(host, environment, "python3", "-q")
    assert session.state.phase is SessionPhase.RUNNING
    with pytest.raises(Conflict, match="commands need bash or sh"):
        session.run(("1 + 1",))
    session.send(b"print(6 * 7)\n")
    await shown(session, b"42")
    session.send(b"exit(5)\n")
    await phase(session, SessionPhase.ENDED)
    assert session.state.exit_status == 5


async def test_a_program_that_is_missing_is_refused(
    host: SessionHost, environment: HostEnvironment
) -> None:
    with pytest.raises(InvalidRequest, match="nosuchshell") as caught:
        await opened(host, environment, "nosuchshell")
    assert caught.value.pointer == "/shell"
    assert host.all(environment.name) == []


async def test_a_directory_that_is_missing_is_refused(
    host: SessionHost, environment: HostEnvironment
) -> None:
    spec = SessionSpec("main", ("bash",), cwd="/nonexistent")
    with pytest.raises(InvalidRequest, match="directory") as caught:
        await host.open(environment, spec, VARIABLES)
    assert caught.value.pointer == "/cwd"


async def test_a_shell_that_is_no_shell_is_refused(
    host: SessionHost, environment: HostEnvironment
) -> None:
    false = environment.workspace / "bash"
    false.write_text("#!/bin/sh\nexit 3\n")
    false.chmod(0o755)
    with pytest.raises(InvalidRequest, match="status 3"):
        await opened(host, environment, f"{environment.inside}/bash")


async def test_a_name_is_free_again_after_its_session_ended(
    host: SessionHost, environment: HostEnvironment
) -> None:
    session = await opened(host, environment)
    with pytest.raises(Conflict, match="open already"):
        await opened(host, environment)
    await run(session, "exit 2")
    with pytest.raises(NotFound, match="status 2"):
        host.of(environment.name, "main").state.check_alive()
    again = await opened(host, environment)
    assert (await run(again, "echo new")).output == "new\n"


async def test_close_ends_the_program_in_the_foreground(
    host: SessionHost, environment: HostEnvironment
) -> None:
    session = await opened(host, environment)
    session.run(("trap '' HUP; sh -c 'trap \"\" HUP; echo ready; sleep 600; :'",))
    await shown(session, b"ready")
    pids = session.processes()
    await host.close(environment.name, "main")
    async with asyncio.timeout(PATIENCE):
        while not all(map(_ended, pids)):
            await asyncio.sleep(0.01)
    with pytest.raises(NotFound):
        host.of(environment.name, "main")


async def test_a_killed_keeper_ends_the_session(
    host: SessionHost, environment: HostEnvironment
) -> None:
    session = await opened(host, environment)
    os.kill(host.record(environment.name, "main").keeper[0], signal.SIGKILL)
    await phase(session, SessionPhase.ENDED)
    assert session.state.exit_status == 137


@pytest.mark.parametrize("kind", [("bash", True), ("bash", False), ("dash", True)])
async def test_a_new_worker_takes_over_an_idle_and_a_busy_session(
    session: LiveSession, host: SessionHost, environment: HostEnvironment
) -> None:
    await run(session, "cd /; export KEPT=1; mkfifo $OLDPWD/gate")
    host.release()
    second = SessionHost(host.control)
    (taken,) = await second.adopt(environment)
    assert taken.state.phase is SessionPhase.IDLE
    assert (await run(taken, "echo $KEPT $PWD")).output == "1 /\n"
    taken.run(("read x <$OLDPWD/gate; echo got $x; (exit 6)",))
    second.release()
    third = SessionHost(host.control)
    (taken,) = await third.adopt(environment)
    assert taken.state.phase is SessionPhase.BUSY
    await asyncio.to_thread((environment.workspace / "gate").write_text, "word\n")
    await phase(taken, SessionPhase.IDLE)
    assert reply(taken) == CommandReply(6, "got word\n", "")
    assert (await run(taken, "echo again")).output == "again\n"
    await third.close(environment.name, "main")


async def test_a_session_that_ended_without_a_worker_is_recorded(
    host: SessionHost, environment: HostEnvironment
) -> None:
    session = await opened(host, environment)
    session.run(("read x; exit 8",))
    session.send(b"\n")
    host.release()
    second = SessionHost(host.control)
    (taken,) = await second.adopt(environment)
    await phase(taken, SessionPhase.ENDED)
    assert taken.state.exit_status == 8
    second.release()
    third = SessionHost(host.control)
    (taken,) = await third.adopt(environment)
    await phase(taken, SessionPhase.ENDED)
    assert taken.state.exit_status == 8


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        return ""


def _ended(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True
