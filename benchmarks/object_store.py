"""object_store: a large file, a tree and a result with the object store, beside the same through the web process, in one run.

One Tangram, one client, contents of one size in turns: by signed URLs, then through the web process. A tree has 16 files; a result is the output of a
command, of which Tangram keeps at most 10 MiB; it is read after the command has ended. Bytes are counted by a proxy between client
and web process in a pass of its own; the CPU time is that of the web process. S3 is moto's server, one process of Python, which bounds the
times with the store: they show that nothing else does, and not what a server for production reaches.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.record import store
from benchmarks.stack import Stack, free_port, tangram
from tangram_client import Client
from tangram_client._calls import get_action
from tangram_client._object_calls import WITHOUT_STORE
from tangram_client.payloads import OutputPayload, exec_action

MIB = 2**20
BUCKET = "bench"
STORED, WEB = "store", "web process"
TREE_FILES = 16
#: Of a result: Tangram keeps 10 MiB of each stream.
MOST_OUTPUT_MIB = 8


@contextmanager
def s3() -> Iterator[str]:
    """Run S3 as moto plays it in a process of its own; yield its URL. It has the bucket."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with suppress(httpx.ConnectError):
                httpx.put(f"{url}/{BUCKET}", timeout=60, trust_env=False).raise_for_status()
                break
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


class CountingProxy:
    """Passes connections on to a port, and counts their bytes in both directions."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.passed_bytes = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listening.accept()
            far = socket.create_connection(("127.0.0.1", self._port))
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(MIB):
                self.passed_bytes += len(piece)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)


def _web_process(stack: Stack) -> psutil.Process:
    """Return the process that serves the port."""
    for process in psutil.Process(stack.process.pid).children(recursive=True):
        with suppress(psutil.Error):
            for each in process.net_connections(kind="tcp"):
                if each.status == psutil.CONN_LISTEN and each.laddr.port == stack.port:
                    return process
    raise SystemExit("no process listens at the port of the web process")


def _cpu_seconds(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


def _transfers(
    client: Client, trajectory: str, way: str, folder: Path, megabytes: int
) -> Iterator[str]:
    """Send new contents and read them back; yield what was done after each step."""
    WITHOUT_STORE.discard(client)
    if way == WEB:
        WITHOUT_STORE.add(client)
    for steps in (_file, _tree, _result):
        yield from steps(client, trajectory, folder, megabytes)
    if (client in WITHOUT_STORE) != (way == WEB):
        raise SystemExit("the store was given up: see the log of the web process")


def _file(client: Client, trajectory: str, folder: Path, megabytes: int) -> Iterator[str]:
    local, back, files = folder / "local", folder / "back", client.files(trajectory)
    local.write_bytes(os.urandom(megabytes * MIB))
    yield ""
    files.upload(local, "large")
    yield "file_up"
    files.download("large", back)
    yield "file_down"
    if back.read_bytes() != local.read_bytes():
        raise SystemExit("the file came back changed")


def _tree(client: Client, trajectory: str, folder: Path, megabytes: int) -> Iterator[str]:
    local, back, files = folder / "tree", folder / "tree back", client.files(trajectory)
    for each in (local, back):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir()
    for number in range(TREE_FILES):
        (local / str(number)).write_bytes(os.urandom(megabytes * MIB // TREE_FILES))
    yield ""
    files.upload_tree(local, "tree")
    yield "tree_up"
    files.download_tree("tree", back)
    yield "tree_down"
    if any((back / each.name).read_bytes() != each.read_bytes() for each in local.iterdir()):
        raise SystemExit("the tree came back changed")


def _result(client: Client, trajectory: str, folder: Path, megabytes: int) -> Iterator[str]:
    size = min(megabytes, MOST_OUTPUT_MIB) * MIB
    command = ["sh", "-c", f"head -c {size * 3 // 4} /dev/urandom | base64 -w 0"]
    output = OutputPayload(limit_bytes=size, keep="head")
    action = exec_action("files", command, trajectory=trajectory, output=output)
    submitted = client.submit(action)
    shortened = {"Prefer": "largest-result=1000"}
    while not client.send(replace(get_action(submitted.id, 30.0), headers=shortened)).finished:
        pass
    yield ""
    read = client.get(submitted.id)
    yield "result_down"
    if len(read.stdout) != size or read.truncated:
        raise SystemExit("the result is not whole")


def _changes(readings: Callable[[], float], steps: Iterator[str]) -> dict[str, float]:
    """Return by how much a figure changed in each direction."""
    found, last = {}, readings()
    for step in steps:
        now = readings()
        if step:
            found[step] = now - last
        last = readings()
    return found


def _measure(stack: Stack, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    web, proxy = _web_process(stack), CountingProxy(stack.port)
    figures: dict[str, tuple[int, Callable[[], float]]] = {
        "seconds": (stack.port, time.perf_counter),
        "web_cpu_seconds": (stack.port, lambda: _cpu_seconds(web)),
        "web_bytes": (proxy.port, lambda: proxy.passed_bytes),
    }
    row: dict[str, Any] = {"megabytes": options.megabytes, "repeats": options.repeats}
    for figure, (port, readings) in figures.items():
        found: dict[str, list[dict[str, float]]] = {STORED: [], WEB: []}
        with Client(f"http://127.0.0.1:{port}", stack.token) as client:
            client.open_trajectory(figure, task="files")
            for _ in range(options.repeats):
                for way, each in found.items():
                    steps = _transfers(client, figure, way, folder, options.megabytes)
                    each.append(_changes(readings, steps))
        for step in found[WEB][0]:
            middle = {way: statistics.median(e[step] for e in each) for way, each in found.items()}
            row[f"{step}_{figure}"] = {
                **{way: round(value, 3) for way, value in middle.items()},
                f"{STORED} ÷ {WEB}": round(middle[STORED] / max(middle[WEB], 1e-3), 5),
            }
    return row


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=64, help="of the file and of the tree")
    parser.add_argument(
        "--repeats", type=int, default=3, help="of each way; one before does not count"
    )
    parser.add_argument("--print-only", action="store_true", help="store nothing")
    options = parser.parse_args()
    with s3() as url, tempfile.TemporaryDirectory(prefix="tangram-bench-") as folder:
        environment = {
            "TANGRAM_OBJECT_STORE": f"s3://{BUCKET}?endpoint={url}",
            "AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench",
        }  # fmt: skip
        with tangram(environment=environment) as stack:
            row = _measure(stack, Path(folder), options)
    for name, each in row.items():
        print(f"{name}: {each}")
    if not options.print_only:
        print("stored in", store("object_store", {"row": row}))


if __name__ == "__main__":
    main()
