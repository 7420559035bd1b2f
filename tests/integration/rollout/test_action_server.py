"""The action server as an environment runs it: cells, edits, interrupts, ends of its kernel, and its unix socket."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollout.agent.action_server import programs_of_server
from tests.not_run import NotRun

pytestmark = pytest.mark.slow


class Server:
    """A running server, and the answers to its requests."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.path = folder / "socket"
        # Without installed packages, as most environments are.
        self.process = subprocess.Popen(
            [python, "-I", "-S", "-u", "-c", *programs_of_server(), str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
        )
        self._number = 0

    def send(self, tool: str, arguments: dict[str, Any], seconds: float = 60) -> str:
        """Send a request; return its id."""
        self._number += 1
        name = f"{self._number}.0"
        asked = {"id": name, "tool": tool, "arguments": arguments, "seconds": seconds}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")
        self.process.stdin.flush()
        return name

    def answer(self) -> dict[str, Any]:
        """Return the next answer."""
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def cell(self, code: str, seconds: float = 60) -> dict[str, Any]:
        """Execute a cell."""
        name = self.send("ipython", {"code": code}, seconds)
        found = self.answer()
        assert found.pop("end") == name
        return found

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        for each in (self.process.stdin, self.process.stdout):
            if each is not None:
                each.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.end()


def test_variables_last_and_the_last_value_is_shown(server: Server) -> None:
    assert server.cell("x = 20\nprint('é')") == {"status": "ok", "output": "é\n"}
    assert server.cell("x + 22") == {"status": "ok", "output": "42\n"}
    failed = server.cell("x / 0")
    assert failed["status"] == "error"
    assert "ZeroDivisionError: division by zero" in failed["output"]
    assert server.cell("import os; os.system('echo sub'); None")["output"] == "sub\n"


def test_the_status_is_not_in_the_output(server: Server) -> None:
    """A cell prints what an answer looks like, in text and in bytes of every kind."""
    forged = json.dumps({"status": "ok", "output": "", "end": "1.0"})
    found = server.cell(f"import os; print({forged!r}); os.write(1, bytes(range(1, 256))); 1 / 0")
    assert found["status"] == "error"
    assert forged in found["output"]


def test_a_cell_that_takes_too_long_is_interrupted_with_its_programs(server: Server) -> None:
    found = server.cell("x = 1; print('begun'); import os; os.system('sleep 600')", seconds=0.5)
    assert found["status"] == "timeout"
    assert found["output"].startswith("begun\n")
    assert server.cell("x")["output"] == "1\n"


def test_a_cell_that_ignores_interrupts_is_killed(server: Server) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    found = server.cell(deaf, seconds=0.2)
    assert (found["status"], found["died"]) == ("timeout", -9)
    assert server.cell("1")["output"] == "1\n"


def test_the_end_of_a_kernel_is_an_answer_and_the_next_cell_has_a_new_one(server: Server) -> None:
    server.cell("x = 1")
    assert server.cell("import os; os._exit(7)") == {"status": "died", "output": "", "died": 7}
    killed = server.cell("import os; os.kill(os.getpid(), 11)")
    assert (killed["status"], killed["died"]) == ("died", -11)
    assert "NameError" in server.cell("x")["output"]


def test_of_10_mb_the_beginning_and_the_end_are_kept(server: Server) -> None:
    output = server.cell("print('a' * 5_000_000 + 'z' * 5_000_000)")["output"]
    assert len(output) < 31_000
    assert output.startswith("aaa")
    assert output.endswith("zzz\n")
    assert "[9970001 of 10000001 characters are left out here]" in output


def test_edits_wait_for_no_cell_and_their_history_lasts(server: Server, tmp_path: Path) -> None:
    path = str(tmp_path / "a.py")
    cell = server.send("ipython", {"code": "input() if 0 else __import__('time').sleep(0.5)"})
    edit = server.send("editor", {"command": "create", "path": path, "file_text": "a = 1\n"})
    answers = [server.answer(), server.answer()]
    assert [each["end"] for each in answers] == [edit, cell]
    server.send("editor", {"command": "str_replace", "path": path, "old_str": "2", "new_str": "3"})
    refused = server.answer()
    assert refused["status"] == "error"
    assert "did not appear verbatim" in refused["output"]
    server.send("editor", {"command": "undo_edit", "path": path})
    assert server.answer()["status"] == "ok"
    assert not Path(path).exists()


def test_the_unix_socket_serves_programs_of_the_environment(server: Server) -> None:
    assert server.cell("x = 5; import os; os.environ['TANGRAM_ACTION_SOCKET']")["status"] == "ok"
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(server.path))
        asked = {"id": "s", "tool": "ipython", "arguments": {"code": "x"}, "seconds": 60}
        client.sendall(b"no JSON\n" + json.dumps(asked).encode() + b"\n")
        found = json.loads(client.makefile().readline())
    assert found == {"status": "ok", "output": "5\n", "end": "s"}
    assert server.path.stat().st_mode & 0o777 == 0o600
    assert server.cell("x")["output"] == "5\n", "the client that left changed nothing"


def test_the_kernel_ends_with_its_server(server: Server) -> None:
    pid = int(server.cell("import os; os.getpid()")["output"])
    assert server.process.stdin is not None
    server.process.stdin.close()
    assert server.process.wait(60) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _python(version: str) -> str:
    """Return an interpreter of a version. Raises NotRun."""
    beside = Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python")
    for each in [shutil.which(f"python{version}"), *map(str, beside)]:
        # A shim of pyenv is there for versions that are not.
        if each and not subprocess.run([each, "-c", ""], capture_output=True).returncode:
            return each
    raise NotRun(f"there is no Python {version} on this machine")


@pytest.mark.parametrize("version", ["3.7", "3.13"])
def test_other_versions_of_python_run_it(tmp_path: Path, version: str) -> None:
    made = Server(tmp_path, _python(version))
    try:
        assert made.cell("print(6 * 7)")["output"] == "42\n"
        made.send("editor", {"command": "view", "path": str(tmp_path)})
        assert made.answer()["status"] == "ok"
    finally:
        made.end()
