"""Actions in sessions: expectations, time-outs, queues, refusals, and the cores of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from domain.action import ExecSpec, ExpectSpec, Outcome
from domain.allocation import Allocation
from domain.ids import TrajectoryKey
from domain.ports import RunReport, SessionResult
from managers.common.start_log import WithdrawnError
from managers.cpu.environment.protocol import LivingEnvironment, NoEnvironment
from managers.cpu.live_output import LiveOutputs
from managers.cpu.sessions.host import SessionHost
from managers.cpu.sessions.run import SessionRun, SessionTools
from managers.cpu.sessions.session import LiveSession
from managers.cpu.sessions.state import SessionPhase
from tests.conformance.driver import an_order
from tests.conformance.sessions.host_environment import HostEnvironment
from tests.conformance.sessions.test_shell_sessions import opened, phase


class Cores:
    """Records which processes ran on granted cores."""

    def __init__(self) -> None:
        self.acting: list[list[int]] = []
        self.rests = 0

    def act(self, pids: Sequence[int], allocation: Allocation | None) -> None:
        self.acting.append(list(pids))

    def rest(self) -> None:
        self.rests += 1


class Bench:
    """Runs actions in the sessions of one environment."""

    def __init__(self, host: SessionHost, environment: HostEnvironment) -> None:
        self.cores = Cores()
        self.marks: list[str] = []
        self._environment = environment
        self.tools = SessionTools(
            host,
            self._find,
            lambda _: self.cores,
            self._mark,
            LiveOutputs(),
            lambda *_: nullcontext(),
            0.3,
        )

    def _find(self, trajectory: TrajectoryKey) -> LivingEnvironment:
        if trajectory != self._environment.trajectory:
            raise NoEnvironment(trajectory)
        return self._environment

    def _mark(self, mark: str, withdrawn: Callable[[], bool]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if withdrawn():
            done.set_exception(WithdrawnError())
        else:
            self.marks.append(mark)
            done.set_result(None)
        return done

    def begin(
        self, *command: str, timeout_seconds: float | None = 20.0, **fields: Any
    ) -> tuple[SessionRun, asyncio.Task[RunReport]]:
        spec = ExecSpec(command, session="main", **fields)
        run = SessionRun(
            an_order(spec=spec, timeout_seconds=timeout_seconds), lambda: None, self.tools
        )
        return run, asyncio.ensure_future(run.live())

    async def result(self, *command: str, **fields: Any) -> SessionResult:
        report = await self.begin(*command, **fields)[1]
        assert report.outcome is Outcome.COMPLETED, report
        assert isinstance(report.result, SessionResult), report
        return report.result


@pytest.fixture
async def session(host: SessionHost, environment: HostEnvironment) -> LiveSession:
    return await opened(host, environment, "bash")


@pytest.fixture
def bench(host: SessionHost, environment: HostEnvironment) -> Bench:
    return Bench(host, environment)


async def test_a_command_is_an_action_with_output_and_status(
    session: LiveSession, bench: Bench
) -> None:
    await bench.result("cd /; export A=7")
    result = await bench.result("echo $PWD $A; (exit 3)")
    assert (result.exit_code, result.stdout, result.session) == (3, "/ 7\r\n", "idle")
    assert bench.marks == ["act_1#1", "act_1#1"]


async def test_only_the_shell_gets_the_cores_and_gives_them_back(
    session: LiveSession, bench: Bench
) -> None:
    await bench.result("sleep 60 & true")
    await bench.result("true")
    assert session.shell is not None
    assert bench.cores.acting == [[session.shell.pid]] * 2
    assert bench.cores.rests == 2


async def test_an_action_ends_when_its_pattern_shows_and_the_program_continues(
    session: LiveSession, bench: Bench
) -> None:
    first = await bench.result(
        "read -p 'Name? ' n; echo \"Hello $n\"; read rest; echo end", expect=ExpectSpec(r"Name\? $")
    )
    assert (first.exit_code, first.stdout, first.matched) == (None, "Name? ", "Name? ")
    assert first.session == "busy"
    second = await bench.result(stdin="Ada\n", expect=ExpectSpec("Hello [A-Z]"))
    assert (second.stdout, second.matched) == ("Ada\r\nHello A", "Hello A")
    third = await bench.result(stdin="\n")
    assert third.stdout.startswith("da\r\n"), "what follows a match belongs to the next reply"
    assert (third.exit_code, third.session) == (0, "idle")


async def test_an_expecting_action_ends_with_its_command(
    session: LiveSession, bench: Bench
) -> None:
    result = await bench.result("echo other; false", expect=ExpectSpec("never"))
    assert (result.exit_code, result.matched, result.stdout) == (1, None, "other\r\n")


async def test_a_pattern_is_not_found_in_older_output(session: LiveSession, bench: Bench) -> None:
    await bench.result("(sleep 0.05; echo ready) & true")
    await phase(session, SessionPhase.IDLE)
    async with asyncio.timeout(5):
        while b"ready" not in session.output.since(0).content:
            await asyncio.sleep(0.01)
    result = await bench.begin("read x", expect=ExpectSpec("ready"), timeout_seconds=0.2)[1]
    assert result.outcome is Outcome.TIMEOUT


async def test_an_action_ends_when_its_program_waits_for_input(
    session: LiveSession, bench: Bench
) -> None:
    result = await bench.result("python3 -q", expect=ExpectSpec(input=True))
    assert (result.exit_code, result.session) == (None, "busy")
    assert ">>> " in result.stdout
    result = await bench.result(stdin="6 * 7\n", expect=ExpectSpec(input=True))
    assert "42" in result.stdout
    result = await bench.result(stdin="exit(4)\n")
    assert (result.exit_code, result.session) == (4, "idle")


async def test_a_time_out_interrupts_and_keeps_the_session(
    session: LiveSession, bench: Bench
) -> None:
    await bench.result("export KEPT=1")
    report = await bench.begin("echo part; sleep 600", timeout_seconds=0.3)[1]
    assert report.outcome is Outcome.TIMEOUT
    assert isinstance(report.result, SessionResult)
    assert (report.result.exit_code, report.result.session) == (130, "idle")
    assert report.result.stdout.startswith("part\r\n")
    assert (await bench.result("echo $KEPT")).stdout.endswith("1\r\n")


async def test_a_time_out_kills_what_ignores_interrupts(session: LiveSession, bench: Bench) -> None:
    script = "trap '' INT TERM; echo deaf; sleep 600; sleep 600"
    report = await bench.begin(f'sh -c "{script}"', timeout_seconds=0.3)[1]
    assert report.outcome is Outcome.TIMEOUT
    assert session.state.phase is SessionPhase.IDLE
    assert "usable" in (await bench.result("echo usable")).stdout


async def test_a_shell_that_cannot_be_interrupted_stays_busy(
    session: LiveSession, bench: Bench
) -> None:
    report = await bench.begin("trap '' INT; while :; do :; done", timeout_seconds=0.2)[1]
    assert report.outcome is Outcome.TIMEOUT
    assert "still runs it" in (report.detail or "")
    refused = await bench.begin("true")[1]
    assert refused.result is not None
    assert (refused.result.exit_code, refused.outcome) == (126, Outcome.COMPLETED)
    assert "exec.queue" in refused.result.stderr


async def test_a_cancelled_action_keeps_the_session(session: LiveSession, bench: Bench) -> None:
    run, task = bench.begin("sleep 600")
    await phase(session, SessionPhase.BUSY)
    run.stop(Outcome.CANCELLED, "cancelled by request")
    report = await task
    assert report.outcome is Outcome.CANCELLED
    await phase(session, SessionPhase.IDLE)


async def test_a_time_out_of_an_expectation_lets_the_program_continue(
    session: LiveSession, bench: Bench
) -> None:
    report = await bench.begin("read x", expect=ExpectSpec("never"), timeout_seconds=0.1)[1]
    assert (report.outcome, session.state.phase) == (Outcome.TIMEOUT, SessionPhase.BUSY)
    assert (await bench.result(stdin="\n")).exit_code == 0


async def test_a_second_command_is_refused_or_waits_by_choice(
    session: LiveSession, bench: Bench
) -> None:
    await bench.result("read x; echo first $x", expect=ExpectSpec(input=True))
    refused = await bench.begin("echo second")[1]
    assert refused.result is not None
    assert refused.result.exit_code == 126
    _, waiting = bench.begin("echo second", queue=True)
    await asyncio.sleep(0)
    session.send(b"word\n")
    report = await waiting
    assert report.result is not None
    assert report.result.stdout == "word\r\nfirst word\r\nsecond\r\n"


async def test_a_dead_and_an_unknown_session_are_refused(
    session: LiveSession, bench: Bench
) -> None:
    ended = await bench.result("exit 9")
    assert (ended.exit_code, ended.session) == (9, "ended")
    refused = (await bench.begin("true")[1]).result
    assert refused is not None
    assert (refused.exit_code, "exit status 9" in refused.stderr) == (127, True)
    spec = ExecSpec(("true",), session="other")
    report = await SessionRun(an_order(spec=spec), lambda: None, bench.tools).live()
    assert report.result is not None
    assert "no session 'other'" in report.result.stderr


async def test_a_replaced_shell_is_reported_and_expectations_go_on(
    session: LiveSession, bench: Bench
) -> None:
    result = await bench.result("exec bash --norc --noprofile --noediting -i")
    assert (result.exit_code, result.session) == (None, "replaced")
    refused = (await bench.begin("true")[1]).result
    assert refused is not None
    assert (refused.exit_code, "replaced" in refused.stderr) == (126, True)
    answer = await bench.result(stdin="echo $((6 * 7))\n", expect=ExpectSpec(r"\n42\r"))
    assert answer.matched == "\n42\r"


async def test_a_pattern_that_is_none_is_refused(session: LiveSession, bench: Bench) -> None:
    refused = (await bench.begin("true", expect=ExpectSpec("("))[1]).result
    assert refused is not None
    assert (refused.exit_code, "regular expression" in refused.stderr) == (126, True)


async def test_output_beyond_its_limit_is_dropped_and_marked(
    session: LiveSession, bench: Bench
) -> None:
    result = await bench.result("seq 100000", output_limit_bytes=100)
    assert result.stdout.startswith("1\r\n2\r\n")
    assert result.stdout.endswith("100000\r\n")
    assert (result.truncated, result.stdout_bytes) == (True, 688_895)
    assert (await bench.result("echo next")).stdout == "next\r\n"


async def test_the_reader_of_a_pipe_does_not_wait_for_input(
    session: LiveSession, bench: Bench
) -> None:
    """Agents write ``pytest | tail``: what the tail reads is not the terminal."""
    piped = await bench.result("{ sleep 0.4; echo done; } | cat", expect=ExpectSpec(input=True))
    typed = await bench.result("cat", expect=ExpectSpec(input=True))
    assert (piped.exit_code, piped.stdout, piped.session) == (0, "done\r\n", "idle")
    assert (typed.exit_code, typed.session) == (None, "busy")


async def test_a_look_at_a_session_that_was_taken_over_says_which_command_ended(
    session: LiveSession, host: SessionHost, environment: HostEnvironment, bench: Bench
) -> None:
    """The action of the second command ends with its worker; the next worker looks at the session."""
    assert (await bench.result("mkfifo gate")).command_number == 1
    session.run(("read x <gate; (exit 6)",))
    host.release()
    second = SessionHost(host.control)
    await second.adopt(environment)
    _, look = Bench(second, environment).begin(stdin="")
    await asyncio.to_thread((environment.workspace / "gate").write_text, "word\n")
    report = await look
    assert isinstance(report.result, SessionResult)
    found = report.result
    assert (found.exit_code, found.session, found.command_number) == (6, "idle", 2)
    again = await Bench(second, environment).result(stdin="")
    assert (again.exit_code, again.command_number) == (6, 2)
    await second.close(environment.name, "main")


async def test_a_silent_program_is_looked_at_rarely(
    session: LiveSession, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look reads all processes of the session, and a command may run for hours."""
    looks: list[bool] = []
    monkeypatch.setattr(session, "waits_for_input", lambda: looks.append(True))
    silent = await bench.result("sleep 1", expect=ExpectSpec(input=True))
    assert silent.exit_code == 0
    assert 0 < len(looks) < 15
