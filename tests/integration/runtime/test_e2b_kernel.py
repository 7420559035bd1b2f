"""Cells of the code interpreter, executed by the kernel as an environment without IPython runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollout.agent import programs

PROGRAM = (Path(programs.__file__).parent / "kernel_program.py").read_text()


class Kernel:
    """A kernel, and the events of its executions."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-u", "-c", PROGRAM],  # without installed packages
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._number = 0

    def begin(self, code: str, **envs: str) -> None:
        self._number += 1
        assert self.process.stdin is not None
        request = {"id": f"n{self._number}", "code": code, "envs": envs}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the last execution, without its number."""
        found: list[dict[str, Any]] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if "end" in event:
                return [each for each in found if each["type"] != "number_of_executions"]
            assert event.pop("id") == f"n{self._number}"
            event.pop("timestamp", None)
            found.append(event)
        raise AssertionError("the kernel ended")

    def run(self, code: str, **envs: str) -> list[dict[str, Any]]:
        self.begin(code, **envs)
        return self.events()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel()
    yield made
    made.process.kill()
    made.process.communicate()


def result(text: str, *, main: bool = True) -> dict[str, Any]:
    return {"type": "result", "is_main_result": main, "text": text}


def test_names_last_and_the_last_expression_is_the_result(kernel: Kernel) -> None:
    assert kernel.run("x = 5\nx + 1") == [result("6")]
    assert kernel.run("  x") == [result("5")]
    assert kernel.run("x = 'text'; x") == [result("text")]
    assert kernel.run("None") == []


def test_output_of_code_and_subprocesses_precedes_the_result(kernel: Kernel) -> None:
    code = "import os, sys; print('é'); os.system('echo sub'); print(2, file=sys.stderr); 7"
    *before, last = kernel.run(code)
    assert last == result("7")
    shown = {"stdout": "", "stderr": ""}
    for each in before:
        shown[each["type"]] += each["text"]
    assert shown == {"stdout": "é\nsub\n", "stderr": "2\n"}
    assert kernel.run("input()")[0]["name"] == "EOFError"  # requests are not its input


def test_an_error_ends_the_cell_alone_and_names_its_line(kernel: Kernel) -> None:
    (error,) = kernel.run("def f():\n    return 1/0\nf()")
    assert (error["name"], error["value"]) == ("ZeroDivisionError", "division by zero")
    assert 'File "<cell>", line 2, in f' in error["traceback"]
    assert "kernel" not in error["traceback"]
    assert kernel.run("def")[0]["name"] == "SyntaxError"
    assert kernel.run("raise SystemExit(3)")[0]["name"] == "SystemExit"
    assert kernel.run("1") == [result("1")]


def test_variables_of_one_execution_do_not_last(kernel: Kernel) -> None:
    assert kernel.run("import os; os.environ['E']", E="e") == [result("e")]
    assert kernel.run("os.environ.get('E', 'none')") == [result("none")]


def test_objects_show_themselves_in_other_formats(kernel: Kernel) -> None:
    shown = kernel.run("class A:\n    def _repr_html_(self): return '<b>'\ndisplay(A())\nA()")
    assert [(each["html"], each["is_main_result"]) for each in shown] == [
        ("<b>", False),
        ("<b>", True),
    ]
    raw = kernel.run("display({'image/png': b'x', 'x/y': 1}, raw=True)")
    assert raw == [{"type": "result", "is_main_result": False, "png": "eA==", "extra": {"x/y": 1}}]


def test_an_interrupt_ends_the_cell_and_keeps_the_names(kernel: Kernel) -> None:
    kernel.run("x = 1")
    kernel.begin("import os, time\nos.write(1, b'begun')\ntime.sleep(600)")
    assert kernel.process.stdout is not None
    while b"begun" not in kernel.process.stdout.readline():
        pass
    kernel.process.send_signal(signal.SIGINT)
    assert kernel.events()[-1]["name"] == "KeyboardInterrupt"
    assert kernel.run("x") == [result("1")]
