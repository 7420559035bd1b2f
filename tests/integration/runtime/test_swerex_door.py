"""SWE-ReX's calls over HTTP, in front of real shells."""

from __future__ import annotations

import asyncio
import io
import shutil
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from domain.action import EnvironmentSpec
from domain.ids import TrajectoryKey
from domain.ports import RunOrder
from domain.ports.sessions import SessionFacts, SessionSpec
from managers.cpu.fake import Play
from tests.integration.runtime.rig import Rig
from tests.integration.runtime.test_sessions import SessionDriver, sessions

__all__ = ["sessions"]

URL = "http://tangram/swerex/t1"
EXCEPTIONS = "swerex.exceptions"


@pytest.fixture
async def rex(rig: Rig, sessions: SessionDriver) -> AsyncIterator[httpx.AsyncClient]:
    """A client of SWE-ReX's protocol; its environment is a folder of this machine."""
    opening, workspace = sessions.sessions.open, str(sessions.environment.workspace)

    async def here(
        trajectory: TrajectoryKey, spec: SessionSpec, environment: EnvironmentSpec
    ) -> SessionFacts:
        return await opening(trajectory, replace(spec, cwd=workspace), environment)

    sessions.sessions.open = here  # type: ignore[method-assign]
    async with rig.client() as client:
        del client.headers["authorization"]
        client.headers["x-api-key"] = "trainer"
        yield client


async def called(rex: httpx.AsyncClient, name: str, **body: Any) -> dict[str, Any]:
    answer = await rex.post(f"{URL}/{name}", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def refused(rex: httpx.AsyncClient, name: str, **body: Any) -> dict[str, Any]:
    answer = await rex.post(f"{URL}/{name}", json=body)
    assert answer.status_code == 511, answer.text
    found: dict[str, Any] = answer.json()["swerexception"]
    return found


async def run(rex: httpx.AsyncClient, command: str, **more: Any) -> dict[str, Any]:
    return await called(rex, "run_in_session", action_type="bash", command=command, **more)


async def test_a_command_outside_of_sessions_is_light(rig: Rig, rex: httpx.AsyncClient) -> None:
    costs = []

    def play(order: RunOrder) -> Play:
        costs.append(order.action.cost)
        return Play()

    rig.driver.script = play
    await called(rex, "execute", command=["ls"])
    assert costs == [{"cpu": (100,)}]


async def test_a_session_keeps_its_state_between_commands(rex: httpx.AsyncClient) -> None:
    made = await called(rex, "create_session", session_type="bash")
    await run(rex, "mkdir sub; cd sub; export A=5; f() { echo f$A; }")
    shown = await run(rex, "basename $PWD; f")
    code = await run(rex, "(exit 3)", check="silent")
    ignored = await run(rex, "false", check="ignore")
    closed = await called(rex, "close_session")

    assert made == {"output": "", "session_type": "bash"}
    assert shown == {
        "output": "sub\nf5\n", "exit_code": 0, "failure_reason": "",
        "expect_string": "SHELLPS1PREFIX", "session_type": "bash",
    }  # fmt: skip
    assert (code["exit_code"], ignored["exit_code"]) == (3, None)
    assert closed == {"session_type": "bash"}


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("", ""),
        ("\n\n \n", ""),
        ("# just a comment", ""),
        ("\n echo one\n\n echo two \n", "one\ntwo\n"),
        ("cat <<EOF\none\n  two\nEOF", "one\n  two\n"),
        ("for i in {1..2};\n do echo $i;\n done", "1\n2\n"),
        ("echo a; A=(); echo b", "a\nb\n"),
        ("[[ $x == $x ]] && echo same", "same\n"),
        ("echo 'a\nb'", "a\nb\n"),
        ("bash -c 'exit 2' || echo 'syntax error'; false || true", "syntax error\n"),
    ],
)
async def test_commands_are_those_of_bash(
    rex: httpx.AsyncClient, command: str, output: str
) -> None:
    await called(rex, "create_session")

    found = await run(rex, command)

    assert (found["output"], found["exit_code"]) == (output, 0)


async def test_a_command_that_bash_cannot_parse_does_not_begin(
    rex: httpx.AsyncClient, sessions: SessionDriver
) -> None:
    sessions.script = lambda order: Play(exit_code=2, stdout="said by bash -n")
    await called(rex, "create_session")
    wrong = await refused(rex, "run_in_session", command="touch made\n(a", action_type="bash")
    after = await run(rex, "ls made", check="silent")

    assert wrong["class_path"] == f"{EXCEPTIONS}.BashIncorrectSyntaxError"
    assert wrong["extra_info"] == {"bash_stdout": "said by bash -n", "bash_stderr": ""}
    assert after["exit_code"] != 0


async def test_a_status_other_than_zero_is_raised_where_that_is_asked(
    rex: httpx.AsyncClient,
) -> None:
    await called(rex, "create_session")
    plain = await refused(rex, "run_in_session", command="echo no; false", action_type="bash")
    named = await refused(
        rex, "run_in_session", command="false", action_type="bash", error_msg="setup"
    )

    assert plain["class_path"] == f"{EXCEPTIONS}.NonZeroExitCodeError"
    assert plain["message"] == (
        "Command 'echo no; false' failed with exit code 1. Here is the output:\n'no\\n'"
    )
    assert named["message"].startswith("setup: Command 'false'")


async def test_sessions_have_names_and_variables_of_their_own(rex: httpx.AsyncClient) -> None:
    await called(rex, "create_session", session="one")
    await called(rex, "create_session", session="two and more")
    await asyncio.gather(run(rex, "x=1", session="one"), run(rex, "x=2", session="two and more"))
    again = await refused(rex, "create_session", session="one")
    shown = [
        (await run(rex, "echo $x", session=each))["output"] for each in ("one", "two and more")
    ]
    missing = await refused(
        rex, "run_in_session", command="true", session="three", action_type="bash"
    )
    await called(rex, "close_session", session="one")
    closed = await refused(rex, "close_session", session="one")

    assert shown == ["1\n", "2\n"]
    assert again["class_path"] == f"{EXCEPTIONS}.SessionExistsError"
    assert missing["class_path"] == closed["class_path"] == f"{EXCEPTIONS}.SessionDoesNotExistError"


async def test_a_shell_that_ended_is_the_end_of_its_file(rex: httpx.AsyncClient) -> None:
    await called(rex, "create_session")
    ended = await refused(rex, "run_in_session", command="exit 3", action_type="bash")
    after = await refused(rex, "run_in_session", command="true", action_type="bash")
    await called(rex, "close_session")
    await called(rex, "create_session")

    assert ended["class_path"] == after["class_path"] == "pexpect.exceptions.EOF"
    assert (await run(rex, "echo new"))["output"] == "new\n"


async def test_a_late_command_goes_on_until_it_is_interrupted(rex: httpx.AsyncClient) -> None:
    await called(rex, "create_session")
    late = await refused(
        rex, "run_in_session", command="echo begun; sleep 600", timeout=0.3, action_type="bash"
    )
    waiting = await refused(rex, "run_in_session", command="true", timeout=0.1, action_type="bash")
    done = await called(rex, "run_in_session", action_type="bash_interrupt", timeout=20)
    after = await run(rex, "echo 'after'")

    assert late["class_path"] == waiting["class_path"] == f"{EXCEPTIONS}.CommandTimeoutError"
    assert (
        late["message"] == "timeout after 0.3 seconds while running command 'echo begun; sleep 600'"
    )
    assert (done["exit_code"], done["expect_string"]) == (0, "SHELLPS1PREFIX")
    assert after["output"] == "after\n"


async def test_what_ignores_interrupts_is_killed_and_bash_says_so(rex: httpx.AsyncClient) -> None:
    await called(rex, "create_session")
    deaf = "python3 -c 'import signal, time; signal.signal(2, lambda *_: None); print(1, flush=True)\nwhile True: time.sleep(9)'"
    await run(rex, deaf, expect=["1"], check="ignore", timeout=60)
    done = await called(rex, "run_in_session", action_type="bash_interrupt", n_retry=1, timeout=0.1)
    after = await run(rex, "echo after")

    assert done["exit_code"] == 0
    assert "killed" in after["output"].lower()
    assert after["output"].endswith("after\n")


@pytest.mark.skipif(not shutil.which("python3"), reason="needs python3")
async def test_an_interactive_program_is_asked_line_by_line(rex: httpx.AsyncClient) -> None:
    await called(rex, "create_session")
    asked: dict[str, Any] = {"is_interactive_command": True, "expect": [r"\(nosuch\)", ">>> "]}
    begun = await run(rex, "python3 -q", timeout=60, **asked)
    said = await run(rex, "print('hello' + ' world')", timeout=60, **asked)
    ended = await run(rex, "quit()\n", is_interactive_quit=True, timeout=60)
    after = await run(rex, "echo after")

    assert (begun["expect_string"], begun["exit_code"]) == (">>> ", 0)
    assert said["output"] == "hello world"
    assert (ended["expect_string"], ended["exit_code"]) == ("SHELLPS1PREFIX", 0)
    assert after["output"] == "after\n"


async def test_a_repeated_request_runs_its_command_once(rex: httpx.AsyncClient) -> None:
    await called(rex, "create_session")
    body = {"command": "echo run | tee -a runs", "action_type": "bash"}
    same = {"X-Request-ID": "6f1d"}
    first = await rex.post(f"{URL}/run_in_session", json=body, headers=same)
    both = await asyncio.gather(
        *(rex.post(f"{URL}/run_in_session", json=body, headers=same) for _ in range(2))
    )
    runs = await run(rex, "cat runs")

    assert [each.json() for each in both] == [first.json()] * 2
    assert runs["output"] == "run\n"


async def test_files_are_written_with_their_directories_and_read_as_text(
    rex: httpx.AsyncClient,
) -> None:
    await called(rex, "write_file", path="deep/er/a.txt", content="caf\u00e9\r\nb")
    utf8 = await called(rex, "read_file", path="deep/er/../er/a.txt")
    latin = await called(rex, "read_file", path="deep/er/a.txt", encoding="latin-1")
    errors = [
        await refused(rex, "read_file", path="nosuch"),
        await refused(rex, "read_file", path="deep"),
        await refused(rex, "read_file", path="deep/er/a.txt", encoding="ascii"),
        await refused(rex, "read_file", path="deep/er/a.txt", encoding="nosuch"),
    ]
    lost = await called(rex, "read_file", path="deep/er/a.txt", encoding="ascii", errors="ignore")

    assert utf8 == {"content": "caf\u00e9\nb"}
    assert latin == {"content": "caf\u00c3\u00a9\nb"}
    assert lost == {"content": "caf\nb"}
    assert [error["class_path"].removeprefix("builtins.") for error in errors] == [
        "FileNotFoundError", "IsADirectoryError", "UnicodeDecodeError", "LookupError",
    ]  # fmt: skip
    assert errors[0]["message"] == "[Errno 2] No such file or directory: 'nosuch'"


async def test_an_upload_is_a_file_or_an_archive_of_a_directory(rex: httpx.AsyncClient) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("sub/b.txt", "in a directory")
    big = b"x" * 3_000_000

    for target, content, unzip in (
        ("small.txt", b"small", "false"),
        ("big.txt", big, "false"),
        ("tree", packed.getvalue(), "true"),
    ):
        answer = await rex.post(
            f"{URL}/upload",
            files={"file": ("f", content)},
            data={"target_path": target, "unzip": unzip},
        )
        assert (answer.status_code, answer.json()) == (200, {}), answer.text
    broken = await rex.post(
        f"{URL}/upload", files={"file": b"no zip"}, data={"target_path": "t", "unzip": "true"}
    )

    read = [await called(rex, "read_file", path=each) for each in ("small.txt", "tree/sub/b.txt")]
    assert [each["content"] for each in read] == ["small", "in a directory"]
    assert len((await called(rex, "read_file", path="big.txt"))["content"]) == len(big)
    assert broken.json()["swerexception"]["class_path"] == "zipfile.BadZipFile"


async def test_close_ends_all_sessions(rex: httpx.AsyncClient) -> None:
    await called(rex, "create_session", session="one")
    assert await called(rex, "close") == {}

    assert (await called(rex, "create_session", session="one"))["session_type"] == "bash"


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "is_alive", {}, 200),
        ("GET", "", {}, 200),
        ("GET", "is_alive", {"x-api-key": "wrong"}, 401),
        ("GET", "is_alive", {"x-api-key": ""}, 403),
        ("POST", "nosuch", {}, 404),
        ("POST", "execute", {}, 422),
        ("POST", "upload", {}, 422),
        ("POST", "execute", {"x-api-key": "reader"}, 403),
    ],
)
async def test_refusals_have_a_detail(
    rex: httpx.AsyncClient, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    answer = await rex.request(method, f"{URL}/{path}", headers=headers)

    assert answer.status_code == status
    assert status == 200 or answer.json()["detail"]
