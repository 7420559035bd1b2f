"""agent_tools: a cell of IPython at the environment's action server, against jupyter_client in the same run.

server       from a request on the unix socket of the action server to its answer; and on TCP of the loopback. Targets: p50 ≤ 3 ms,
             jupyter_client ≥ 10 × it. The same Python and IPython for both.
echo         a round trip of as many bytes on both kinds of socket, without a kernel.
node         from an order's receipt by the driver to its report: the request as an action in the server's session, under
             bubblewrap, on a granted core.
end to end   submit and wait through the API, beside a noop. The environment's own Python: without IPython where it has none.

A run with ``--count 30`` takes a minute; the rival's packages are installed on the first one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import subprocess
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.record import quantiles, store
from benchmarks.stack import tangram
from domain.action import EnvironmentSpec, ExecSpec, ExpectSpec, OutputSpec
from domain.allocation import Allocation
from domain.ids import ResourceId
from domain.ports import RunOrder
from domain.ports.sessions import SessionSpec
from managers.common.affinity import usable_cores
from rollout.agent.action_server import programs_of_server
from tangram_client import AsyncClient, noop_action
from tests.conformance.driver import TRAJECTORY, an_order
from tests.conformance.isolations import a_driver

JUPYTER: Final = ("ipykernel==7.1.0", "jupyter_client==8.6.3")
JUPYTER_HOME: Final = Path(__file__).resolve().parent.parent / ".venv-jupyter"
CELL: Final = "1 + 1"
WARM: Final = 20
#: Serves the action server on TCP of the loopback; prints the port.
_ON_TCP: Final = """
import socket, sys
server = {"__name__": "server"}
exec(sys.argv[1], server)
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
editor, kernel = server["loaded"]("editor", sys.argv[2]), server["Kernel"](sys.argv[3], {**__import__("os").environ})
server["RequestServer"](editor, kernel, listener).serve()
"""


def _python() -> str:
    """Return the Python that has IPython and Jupyter."""
    python = JUPYTER_HOME / "bin" / "python"
    if not python.exists():
        venv.create(JUPYTER_HOME, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *JUPYTER], check=True)
    return str(python)


@contextmanager
def _unix_server(python: str, folder: str) -> Iterator[socket.socket]:
    path = f"{folder}/socket"
    command = [python, "-u", "-c", *programs_of_server(), path]
    with _running(command) as process, socket.socket(socket.AF_UNIX) as client:
        while not Path(path).exists():
            assert process.poll() is None, "the server ended"
            time.sleep(0.01)
        client.connect(path)
        yield client


@contextmanager
def _tcp_server(python: str) -> Iterator[socket.socket]:
    with _running([python, "-u", "-c", _ON_TCP, *programs_of_server()]) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield client


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def _cells(client: socket.socket, count: int) -> dict[str, list[float]]:
    """Return the latencies of cells, and that of the first one, which starts the kernel."""
    answers = client.makefile("rb")
    found = []
    for number in range(count + WARM + 1):
        began = time.perf_counter()
        client.sendall(_request(str(number)))
        answer = json.loads(answers.readline())
        found.append(time.perf_counter() - began)
        assert answer["output"] == "2\n", answer
    return {"start": found[:1], "cells": found[WARM + 1 :]}


def _request(name: str) -> bytes:
    request = {"id": name, "tool": "ipython", "arguments": {"code": CELL}, "seconds": 60}
    return json.dumps(request).encode() + b"\n"


def _echoes(count: int, family: socket.AddressFamily, address: Any) -> list[float]:
    """Return the round trips of a request's bytes to a thread that repeats them."""
    with socket.socket(family) as listener, socket.socket(family) as client:
        listener.bind(address)
        listener.listen(1)
        client.connect(listener.getsockname())
        theirs, _ = listener.accept()
        if family is socket.AF_INET:
            for each in (client, theirs):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = _request("0")

        def repeat() -> None:
            while data := theirs.recv(4096):
                theirs.sendall(data)

        thread = threading.Thread(target=repeat)
        thread.start()

        def ask() -> None:
            client.sendall(line)
            client.recv(4096)

        found = _timed(count, ask)
        client.shutdown(socket.SHUT_WR)
        thread.join()
        theirs.close()
    return found


def _timed(count: int, call: Callable[[], object]) -> list[float]:
    found = []
    for _ in range(count + WARM):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found[WARM:]


def _jupyter(python: str, count: int) -> dict[str, Any]:
    script = str(Path(__file__).with_name("rival_jupyter.py"))
    command = [python, script, str(count + WARM), CELL]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert found["shown"] == "2", found
    return {"start": [found["start"]], "cells": found["cells"][WARM:]}


def _work(name: str) -> dict[str, Any]:
    """Return the request as the members of an action's ``exec``."""
    pattern = re.escape(f'"end": "{name}"}}')
    return {"command": [], "session": "actions", "stdin": _request(name).decode(),
            "output": {"limit_bytes": 65536, "keep": "tail"}, "expect": {"pattern": pattern}}  # fmt: skip


async def _on_node(count: int) -> list[float]:
    """Return latencies of the request as an order of the driver."""
    found = []
    with tempfile.TemporaryDirectory(prefix="tangram-bench-") as directory:
        driver = a_driver(Path(directory), "bwrap")
        await driver.open()
        try:
            shell = ("python3", "-u", "-c", *programs_of_server())
            spec = SessionSpec("actions", shell=shell, pty=False)
            await driver.sessions.open(TRAJECTORY, spec, EnvironmentSpec())
            for number in range(count + WARM):
                order = _order(number)
                began = time.perf_counter()
                report = await driver.run(order, lambda: None)
                found.append(time.perf_counter() - began)
                assert report.result is not None
                assert '"output": "2\\n"' in report.result.stdout, report
                driver.forget([order.mark])
        finally:
            await driver.close()
    return found[WARM:]


def _order(number: int) -> RunOrder:
    work = _work(str(number))
    spec = ExecSpec(
        (),
        session="actions",
        stdin=work["stdin"],
        output=OutputSpec(65536),
        expect=ExpectSpec(pattern=work["expect"]["pattern"]),
    )
    plain = an_order(name=f"act_{number}", spec=spec, timeout_seconds=60.0)
    core = Allocation(ResourceId("cpu:n1"), 1000, (usable_cores()[-1],))
    return RunOrder(plain.action, (core,))


async def _through_api(count: int) -> dict[str, list[float]]:
    """Return latencies of a noop and of the request, in turns."""
    found: dict[str, list[float]] = {"noop": [], "cell": []}
    with tangram() as stack:
        url = f"http://{stack.host}:{stack.port}"
        shell = ["python3", "-u", "-c", *programs_of_server()]
        async with (
            AsyncClient(url, stack.token) as client,
            client.trajectory("bench", task="bench") as trajectory,
            trajectory.session("actions", shell=shell, pty=False),
        ):
            for number in range(count + WARM):
                action = {"task": "bench", "kind": "exec", "trajectory": "bench",
                          "cost": {"cpu": 1}, "exec": _work(str(number))}  # fmt: skip
                began = time.perf_counter()
                await client.run(noop_action("bench"))
                between = time.perf_counter()
                end = await client.run(action)
                found["noop"].append(between - began)
                found["cell"].append(time.perf_counter() - between)
                assert '"output": "2\\n"' in end.result["stdout"], end
    return {name: each[WARM:] for name, each in found.items()}


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--rival-count", type=int, default=100)
    parser.add_argument("--without-api", action="store_true")
    options = parser.parse_args()
    python = _python()
    with tempfile.TemporaryDirectory(prefix="tangram-bench-") as folder:
        with _unix_server(python, folder) as client:
            unix = _cells(client, options.count)
        with _tcp_server(python) as client:
            tcp = _cells(client, options.count)
        echoes = {
            "echo: unix socket": _echoes(options.count, socket.AF_UNIX, f"{folder}/echo"),
            "echo: TCP": _echoes(options.count, socket.AF_INET, ("127.0.0.1", 0)),
        }
    rival = _jupyter(python, options.rival_count)
    measured = {
        "server: unix socket": unix["cells"],
        "server: TCP": tcp["cells"],
        **echoes,
        "jupyter_client": rival["cells"],
        "start: server and kernel": unix["start"],
        "start: jupyter_client": rival["start"],
        "node: action in the session": asyncio.run(_on_node(options.count)),
    }
    if not options.without_api:
        api = asyncio.run(_through_api(options.count))
        measured |= {"API: noop": api["noop"], "API: cell": api["cell"]}
    rows: dict[str, dict[str, Any]] = {name: quantiles(each) for name, each in measured.items()}
    for name, row in rows.items():
        print(f"{name:28} p50 {row['p50_ms']:9.3f} ms  p99 {row['p99_ms']:9.3f} ms")
    ours = rows["server: unix socket"]["p50_ms"]
    ratios = {
        "jupyter_client ÷ unix socket": round(rows["jupyter_client"]["p50_ms"] / ours, 1),
        "TCP ÷ unix socket": round(rows["server: TCP"]["p50_ms"] / ours, 2),
        "unix socket at most 3 ms": ours <= 3.0,
    }
    print(ratios)
    print("stored in", store("agent_tools", {"rows": rows, "ratios": ratios}))


if __name__ == "__main__":
    main()
