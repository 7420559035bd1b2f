"""Test cases of a program: runs it once for each, and prints what it answered. ``python run_cases.py WORKERS``.

Standard input is an object: ``program`` (text), ``function`` (name; empty: standard input and output), ``cases`` (texts, or lists of
arguments), ``seconds`` of one case, ``most_bytes`` of one answer. The first line of output is ``{"begun": true}``; then there is one
line for each case: ``case``, ``how`` (``ended``, ``failed``, ``timeout``, ``long``), ``answer``, and ``said`` of one that failed.

Rules
1. The right answers are not here, so nothing that a program does to this one makes a wrong answer right.
2. A case has a process and a folder of its own, and its session ends with it.
3. A case is bounded by its CPU time: it is right or wrong on any number of granted cores.
4. Other programs of the same user cannot read or change this process.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

#: What standard input says.
Order = Any

#: Calls a function of the program with arguments of standard input; the value goes to a file.
CALLER = """
import json, sys
answers = open(sys.argv[2], "w")
names = {"__name__": "program"}
order = json.load(sys.stdin)
sys.stdin = open("/dev/null")
with open(sys.argv[1]) as file:
    exec(compile(file.read(), "program.py", "exec"), names)
name = order["function"]
call = getattr(names["Solution"](), name) if "Solution" in names else names[name]
answers.write(json.dumps(call(*order["arguments"])))
answers.flush()
"""
SAID_CHARACTERS = 300
MOST_FILE_BYTES = 64 * 1024 * 1024


def main() -> None:
    """Run all cases."""
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    # Of each file; the programs inherit it.
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
    order = json.load(sys.stdin)
    folder = tempfile.mkdtemp()
    program = os.path.join(folder, "program.py")
    with open(program, "w") as file:
        file.write(order["program"])
    lock = threading.Lock()

    def say(line: Any) -> None:
        with lock:
            sys.stdout.buffer.write(
                json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            )
            sys.stdout.flush()

    say({"begun": True})
    order["workers"] = max(1, min(int(sys.argv[1]), len(order["cases"])))
    with concurrent.futures.ThreadPoolExecutor(order["workers"]) as pool:
        for number in range(len(order["cases"])):
            pool.submit(lambda number: say(case(order, program, number)), number)
    shutil.rmtree(folder, ignore_errors=True)


def case(order: Order, program: str, number: int) -> Any:
    """Run one case and return its line."""
    folder = tempfile.mkdtemp()
    try:
        return dict(run(order, program, order["cases"][number], folder), case=number)
    except Exception as error:
        return {"case": number, "how": "failed", "answer": "", "said": str(error)[:SAID_CHARACTERS]}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(order: Order, program: str, given: Any, folder: str) -> Any:
    """Run the program on one input."""
    called = bool(order["function"])
    if called:
        given = json.dumps({"function": order["function"], "arguments": given})
    paths = {name: os.path.join(folder, name) for name in ("in", "out", "err", "answer")}
    words = (
        [sys.executable, "-c", CALLER, program, paths["answer"]]
        if called
        else [sys.executable, program]
    )
    with open(paths["in"], "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(given)
    with contextlib.ExitStack() as files:
        opened = {
            name: files.enter_context(open(path, "rb" if name == "in" else "w+b"))
            for name, path in paths.items()
        }
        process = subprocess.Popen(
            words, stdin=opened["in"], stdout=opened["out"], stderr=opened["err"], cwd=folder,
            start_new_session=True,
        )  # fmt: skip
        try:
            in_time = wait_for(process, order["seconds"], order["workers"])
            how = "timeout" if not in_time else "ended" if process.returncode == 0 else "failed"
        finally:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # The files that were opened, whatever the program put in their places.
        answer = tail(opened["answer" if called else "out"], 0, order["most_bytes"] + 1)
        said = tail(opened["err"], SAID_CHARACTERS, SAID_CHARACTERS)
    if len(answer) > order["most_bytes"]:
        how, answer = "long", b""
    line = {"how": how, "answer": answer.decode("utf-8", "replace")}
    return dict(line, said=said.decode("utf-8", "replace")) if how == "failed" else line


def wait_for(process: Any, seconds: float, shares: int) -> bool:
    """Wait until a program ends or has used its time; say whether it ended.

    Its time is CPU time of its session. A program that uses less than a quarter of its share of one core waits for something else:
    then the clock counts.
    """
    begin = time.monotonic()
    while True:
        try:
            process.wait(max(0.05, seconds / 10))
            return True
        except subprocess.TimeoutExpired:
            passed, used = time.monotonic() - begin, cpu_seconds(process.pid)
            if used >= seconds or (passed >= seconds and used < passed / (4 * shares)):
                return False


def cpu_seconds(session: int) -> float:
    """Return the CPU time that the processes of a session have used, with their children that ended."""
    ticks = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open("/proc/" + name + "/stat", "rb") as file:
                members = file.read().rpartition(b")")[2].split()
            if int(members[3]) == session:
                ticks += sum(map(int, members[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def tail(file: Any, before_end: int, most: int) -> bytes:
    """Return bytes of a file: from its begin, or from so many before its end."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - before_end) if before_end else 0)
    return bytes(file.read(most))


if __name__ == "__main__":
    main()
