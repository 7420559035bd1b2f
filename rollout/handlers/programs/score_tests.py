"""Score of tests: runs files of tests with pytest and says which of the named tests passed. ``python score_tests.py WORKERS``.

Standard input is an object: ``directory``, ``python``, ``expected`` (pairs of a member's name and an id), ``options``,
``variables``, ``seconds``, ``partial``. The last line of output is an object: ``score`` (null where a test is missing),
``share`` of the tests that passed, ``passed`` of ``count``, ``tests`` (those that did not: id → ``failed``, ``skipped``, ``missing``), ``unloaded``
(files that could not be loaded), ``late`` (tests took too long), ``output`` (its end), or ``error`` with the member that is wrong.

Rules
1. pytest is loaded before the repository is on its path, so no module there takes its place. What the tests import is the
   repository's code all the same, and runs in the process of the tests.
   A test has passed where both the report says so, which is a file, and a line said so when the test ended, which is sent through a
   pipe and cannot be taken back. It takes a patch of pytest itself to forge both; that is not prevented.
2. Each process of tests is ended with its session after ``seconds`` of CPU time, on any number of granted cores; tests without
   a result are missing.
3. Other programs of the same user cannot read or change this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from typing import Any

#: What standard input says.
Order = Any

RUNNER = """
import os, sys
paths = [each for each in sys.path if os.path.abspath(each) != os.getcwd()]
sys.path[:] = paths
import json, pytest
sys.path[:] = ["", *paths]
class Lines:
    def pytest_runtest_logreport(self, report, dumps=json.dumps, write=os.write, pipe=int(sys.argv[1])):
        passed = report.passed and report.when == "call" or hasattr(report, "wasxfail")
        state = "failed" if report.failed else "passed" if passed else ""
        try:
            if state:
                write(pipe, (dumps([report.nodeid, state]) + "\\n").encode())
        except OSError:
            pass
sys.exit(pytest.main(sys.argv[2:], plugins=[Lines()]))
"""
#: Ends what a process of tests sends.
END = b"end\n"
PASSED, FAILED, SKIPPED, MISSING = "passed", "failed", "skipped", "missing"
ORDER = (PASSED, SKIPPED, FAILED)
ILLEGAL = re.compile("[^\t\n\r -~\x80-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
NOT_COLLECTED = "collection failure"
SHOWN_CHARACTERS = 3000
#: Tests that did not pass and are listed.
SHOWN_TESTS = 2000


def main() -> None:
    """Run the tests and print the score."""
    hide()
    order = json.load(sys.stdin)
    os.environ.update(order["variables"])
    answer = problem_of(order) or scored(order, max(1, int(sys.argv[1])))
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


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


def hide() -> None:
    """Keep programs of the same user from reading and tracing this process."""
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)


def problem_of(order: Order) -> Any:
    """Return what keeps any test from running; None: nothing does."""
    try:
        os.chdir(order["directory"])
    except OSError as error:
        return {"error": str(error), "member": "directory"}
    for member, test in order["expected"]:
        path = test.partition("::")[0]
        if not os.path.exists(path):
            return {"error": f"{path} is not in the repository", "member": member}
    return None


def problem_of_pytest(python: str) -> Any:
    """Return what keeps pytest from running; None: nothing does."""
    found = subprocess.run(
        [python, "-c", RUNNER, "-1", "--version"], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if found.returncode == 0:
        return None
    said = found.stdout.decode(errors="replace").strip()[-300:]
    return {"error": f"it has no pytest that runs: {said}", "member": "python"}


def scored(order: Order, workers: int) -> Any:
    """Return the score of the expected tests."""
    paths = sorted({test.partition("::")[0] for _, test in order["expected"]})
    folder = tempfile.mkdtemp()
    shares = min(workers, len(paths))
    runs = [PytestProcess(order, folder, n, paths[n::shares], shares) for n in range(shares)]
    for run in runs:
        run.thread.start()
    for run in runs:
        run.thread.join()
    if not any(os.path.exists(run.report) for run in runs):
        problem = problem_of_pytest(order["python"])
        if problem is not None:
            return problem
    states: Any = {}
    unloaded: Any = set()
    for run in runs:
        run.read(states, unloaded)
    tests = {test: states.get(address(test), MISSING) for _, test in order["expected"]}
    passed = sum(state == PASSED for state in tests.values())
    share = passed / len(tests)
    score = share if order["partial"] else float(share == 1.0)
    shutil.rmtree(folder, ignore_errors=True)
    bad = [(test, state) for test, state in tests.items() if state != PASSED]
    return {
        "score": None if MISSING in tests.values() else score,
        "share": share,
        "count": len(tests),
        "passed": passed,
        "tests": dict(bad[:SHOWN_TESTS]),
        "unloaded": [path for path in paths if module_of(path) in unloaded],
        "late": any(run.late for run in runs),
        "output": "\n".join(run.output for run in runs)[-SHOWN_CHARACTERS:],
    }


class PytestProcess:
    """One process of tests."""

    def __init__(
        self, order: Order, folder: str, number: int, paths: list[str], shares: int
    ) -> None:
        self.report = os.path.join(folder, f"report-{number}.xml")
        self.log = os.path.join(folder, f"log-{number}")
        self.output = ""
        #: Address of a test → what was sent when it ended.
        self.sent: Any = {}
        self.python = order["python"]
        self.options = [
            "--rootdir=.", "--continue-on-collection-errors", "-q",
            "--junit-xml=" + self.report, "-o", "junit_family=xunit2", "-o", "junit_logging=no",
            "-o", "cache_dir=" + os.path.join(folder, f"cache-{number}"),
            *order["options"], *paths,
        ]  # fmt: skip
        self.seconds, self.shares = order["seconds"], shares
        self.late = False
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        """Run it to its end, or until its time is used."""
        reading, writing = os.pipe()
        receiver = threading.Thread(target=self.receive, args=(reading,))
        receiver.start()
        try:
            self.execute(writing)
        finally:
            # A process that left the session may hold the pipe open.
            with contextlib.suppress(OSError):
                os.write(writing, b"\n" + END)
            receiver.join()
            os.close(writing)

    def execute(self, writing: int) -> None:
        """Run it, with a pipe for what its tests say."""
        with open(self.log, "wb") as log:
            process = subprocess.Popen(
                [self.python, "-c", RUNNER, str(writing), *self.options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                pass_fds=(writing,),
            )  # fmt: skip
            try:
                self.late = not wait_for(process, self.seconds, self.shares)
            finally:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        note = "" if process.returncode in (0, 1) else f"exit code {process.returncode}"
        note = "the tests took too long" if self.late else note
        with open(self.log, "rb") as log:
            log.seek(max(0, os.path.getsize(self.log) - SHOWN_CHARACTERS))
            self.output = log.read().decode(errors="replace") + note

    def receive(self, reading: int) -> None:
        """Read what is sent when tests end. A test that failed once has failed."""
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                if line == END:
                    return
                with contextlib.suppress(Exception):
                    test, state = json.loads(line)
                    key = address(test)
                    self.sent[key] = max(state, self.sent.get(key, PASSED), key=ORDER.index)

    def read(self, states: Any, unloaded: Any) -> None:
        """Add the states of its tests, by address, and the modules that could not be loaded."""
        try:
            cases = ElementTree.parse(self.report).iter("testcase")
        except (OSError, ElementTree.ParseError):
            return
        for case in cases:
            key = (case.get("classname") or "", case.get("name") or "")
            state = state_of(case)
            if state == PASSED:
                state = self.sent.get(key, MISSING)
            if state == NOT_COLLECTED:
                unloaded.add(key[1])
            elif state != MISSING:
                states[key] = max(state, states.get(key, PASSED), key=ORDER.index)


def state_of(case: ElementTree.Element) -> str:
    """Return the state of one test case. A test that fails as it is expected to has passed."""
    for child in case:
        if child.tag == "error" and child.get("message") == NOT_COLLECTED:
            return NOT_COLLECTED
    if case.find("failure") is not None or case.find("error") is not None:
        return FAILED
    skipped = case.find("skipped")
    if skipped is not None and skipped.get("type") != "pytest.xfail":
        return SKIPPED
    return PASSED


def address(test: str) -> tuple[str, str]:
    """Return class and name of a test as pytest's report has them."""
    path, bracket, parameters = test.partition("[")
    names = path.split("::")
    names[0] = module_of(names[0])
    names[-1] += bracket + parameters
    return ".".join(names[:-1]), ILLEGAL.sub(escaped, names[-1])


def module_of(path: str) -> str:
    """Return the path of a file as pytest's report has it."""
    return re.sub(r"\.py$", "", path.replace("/", "."))


def escaped(match: re.Match[str]) -> str:
    """Return a character that XML cannot have, as pytest writes it."""
    number = ord(match.group())
    return ("#x%02X" if number <= 0xFF else "#x%04X") % number


if __name__ == "__main__":
    main()
