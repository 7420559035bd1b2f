"""Program that starts, lists and ends node workers on one machine: a request as JSON, an answer as JSON.

The launchers of this machine and of SSH hosts run it there for each call, from their standard input: so it uses the
standard library alone, and a machine needs nothing but Python 3.9 and Linux.

Theory of operation. Each instance has a *supervisor*, a process of its own session that starts the node worker again when
it ends, and a folder ``FOLDER/MACHINE/INSTALLATION/GROUP/NAME`` with

    order.json       command, variables (secrets are among them: mode 0600), cores, GPUs, fingerprint
    supervisor.json  its pid, start time and boot: together they name a process for ever
    status.json      restarts, and why the worker ended
    ending           made by `end`
    log              output of both; emptied where it is longer than `LOG_BYTES`

Lifetimes. `launch` makes the folder and starts the supervisor, which lives until `end` signals it. It is a child subreaper: what
the node worker leaves behind becomes its child, so it misses none. It asks all to end, kills what is left after
`GRACE_SECONDS`, deletes the folder and ends. Where it was killed itself, the next `list` kills the processes that have the
variable `MARK` with the folder's path, and those below them; only then it deletes the folder.

Invariants
1. A folder exists while any process of its instance does. So an instance that is not listed has no process.
2. One call at a time works on the folders of a machine: it holds a lock, which the kernel releases when the call dies.
3. Cores and GPUs are of one instance: those of a new one are in no other folder. GPUs are named by UUID where `nvidia-smi` tells, since numbers
   may change with a boot, and are neighbours where possible, as chunks are.
4. Homes are often on a network file system, so the folders of each machine are below its name.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

#: Variable of all processes of an instance: the path of its folder, with a slash at its end.
MARK = "TANGRAM_INSTANCE_FOLDER"
#: Variable that names the GPUs of a node worker.
GPU_SETTING = "TANGRAM_NODE_GPUS"
#: Begins the name of a GPU that is only declared.
DECLARED = "declared-"
#: Processes that were asked to end are killed after this time.
GRACE_SECONDS = 20.0
#: Pause before a worker that ended is started again; doubled up to the second.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
LOG_BYTES = 16 * 2**20
_LOOK_SECONDS = 0.05
_LOG_SECONDS = 60.0
_AWAITED = (signal.SIGTERM, signal.SIGCHLD)
_PR_SET_CHILD_SUBREAPER = 36


class MachineRefused(Exception):
    """The machine cannot do it; the message names the cure."""


# --- processes ------------------------------------------------------------------------------------------------------------------


def process_facts(pid: int) -> tuple[int, int, str] | None:
    """Return parent, start time (ticks since the boot) and state of a process; None: it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name may contain anything; the last parenthesis closes it.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else (int(fields[1]), int(fields[19]), fields[0])


def identity(pid: int) -> dict[str, Any]:
    """Return what names a process for ever."""
    facts = process_facts(pid)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"pid": pid, "start": facts[1] if facts else -1, "boot": boot}


def is_alive(known: dict[str, Any]) -> bool:
    """Whether the process that was named still runs."""
    return bool(known) and known["start"] >= 0 and identity(known["pid"]) == known


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def below(tops: set[int]) -> set[int]:
    """Return living processes below ``tops``."""
    parents = {pid: facts[0] for pid in _pids() if (facts := process_facts(pid))}
    found: set[int] = set()
    grew = True
    while grew:
        new = {
            pid
            for pid, parent in parents.items()
            if pid not in found and (parent in tops or parent in found)
        }
        grew = bool(new)
        found |= new
    return found - tops


def marked(folder: Path) -> set[int]:
    """Return the processes of an instance whose supervisor is dead: those with the mark, and those below them."""
    wanted = f"{MARK}={folder}/".encode()
    tops = set()
    for pid in _pids():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in variables and process_facts(pid):
            tops.add(pid)
    return tops | below(tops)


def send(pid: int, number: int, still: Callable[[], bool]) -> None:
    """Signal a process if it is ``still`` the one that is meant, looked at while its number cannot be reused."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if still():
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


# --- the supervisor -------------------------------------------------------------------------------------------------------------


class InstanceSupervisor:
    """Runs the node worker of one instance until it is asked to end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._order = read_json(folder / "order.json")
        self._is_asked = False
        self._restarts = 0

    def run(self) -> None:
        """Start the worker, again after each end, until SIGTERM; then end all processes and delete the folder."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
        if self._order["cores"]:
            os.sched_setaffinity(0, self._order["cores"])
        try:
            self._keep_running()
        finally:
            # Also where the folder was deleted below it, or its disk is full.
            self._end_all()
            delete(self._folder)

    def _keep_running(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._is_asked:
            began = time.monotonic()
            why = self._run_once()
            if self._is_asked:
                return
            if time.monotonic() - began > LONGEST_PAUSE_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            self._restarts += 1
            status = {"restarts": self._restarts, "reason": why}
            # A full disk costs the line on the page, not the environments.
            with contextlib.suppress(OSError):
                write_json(self._folder / "status.json", status)
            self._pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _run_once(self) -> str:
        """Run the worker until it ends or we are asked to end; return why it ended."""
        variables = {**os.environ, **self._order["environment"], MARK: f"{self._folder}/"}
        try:
            worker = subprocess.Popen(
                self._order["command"], env=variables, stdin=subprocess.DEVNULL,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED),
            )  # fmt: skip
        except OSError as error:
            return f"the node worker cannot be started: {error}"
        while not self._is_asked:
            _cut_log(self._folder / "log")
            ended = self._wait(_LOG_SECONDS)
            if worker.pid in ended:
                worker.returncode = os.waitstatus_to_exitcode(ended[worker.pid])
                log = self._folder / "log"
                return f"the node worker ended with {worker.returncode}; its output is in {log}"
        worker.returncode = 0  # waited for with all others
        return ""

    def _wait(self, seconds: float) -> dict[int, int]:
        """Wait for SIGTERM or the end of a child; return the children that have ended, with their status."""
        found = signal.sigtimedwait(_AWAITED, seconds)
        # None at the end of the time, which the types do not say.
        if getattr(found, "si_signo", 0) == signal.SIGTERM:
            self._is_asked = True
        # Every child is waited for: also those that became ours when their parents died.
        return dict(_dead_children())

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._is_asked and (left := until - time.monotonic()) > 0:
            self._wait(left)

    def _end_all(self) -> None:
        """Ask all processes to end, those first that are above others; kill what is left; until none is left."""
        own: set[int] = {os.getpid()}
        asked: set[int] = set()
        until = time.monotonic() + GRACE_SECONDS
        while left := below(own):
            is_over = time.monotonic() > until
            chosen = left if is_over else _children(own) - asked
            for pid in chosen:
                number = signal.SIGKILL if is_over else signal.SIGTERM
                send(pid, number, lambda pid=pid: pid in below(own))  # type: ignore[misc]
            asked |= chosen
            self._wait(_LOOK_SECONDS)


def _children(tops: set[int]) -> set[int]:
    return {pid for pid in _pids() if (facts := process_facts(pid)) and facts[0] in tops}


def _dead_children() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status


def _cut_log(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_BYTES:
        os.truncate(log, 0)  # both append, so they go on at its beginning


# --- folders --------------------------------------------------------------------------------------------------------------------


def read_json(path: Path) -> Any:
    """Return the content of a file; an empty object where it is missing."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}


def write_json(path: Path, value: object) -> None:
    """Replace a file, readable for its owner alone."""
    part = path.with_suffix(".part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file)
    part.replace(path)


def delete(folder: Path) -> None:
    """Delete the folder of an instance: first its name, so that none finds half of it."""
    gone = folder.with_name(f".{folder.name}-{os.getpid()}")
    try:
        folder.rename(gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone, ignore_errors=True)


class Folders:
    """The folders of all instances on this machine."""

    def __init__(self, root: str) -> None:
        self.root = Path(os.path.expanduser(root)) / os.uname().nodename
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = open(self.root / "lock", "w")  # noqa: SIM115 - held until the process ends
        except OSError as error:
            raise MachineRefused(
                f"{self.root} cannot be written: {error}; set the option folder"
            ) from None
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def group(self, installation: str, group: str) -> Path:
        """Return the folder of a group."""
        return self.root / quote(installation, safe="") / quote(group, safe="")

    def orders(self) -> list[dict[str, Any]]:
        """Return the orders of all instances."""
        return [read_json(path) for path in self.root.glob("*/*/[!.]*/order.json")]


def listed(folder: Path) -> dict[str, Any] | None:
    """Return an instance; None: it has ended, and its folder is deleted."""
    supervisor = read_json(folder / "supervisor.json")
    status = read_json(folder / "status.json")
    found = {
        "name": unquote(folder.name),
        "handle": str(supervisor.get("pid", "")),
        "state": "running",
        "reason": status.get("reason", ""),
        "restarts": status.get("restarts", 0),
        "fingerprint": read_json(folder / "order.json").get("fingerprint", ""),
    }
    if is_alive(supervisor):
        return {**found, "state": "ending"} if (folder / "ending").exists() else found
    # One that has deleted the folder meanwhile is dead as well.
    if not folder.exists():
        return None
    for pid in marked(folder):
        send(pid, signal.SIGKILL, lambda pid=pid: pid in marked(folder))  # type: ignore[misc]
    if marked(folder):
        return {**found, "state": "ending", "reason": "its supervisor was killed"}
    delete(folder)
    return None


# --- verbs ----------------------------------------------------------------------------------------------------------------------


def list_instances(folders: Folders, request: dict[str, Any]) -> dict[str, Any]:
    """Return the instances of a group."""
    group = folders.group(request["installation"], request["group"])
    found = [listed(path) for path in sorted(group.glob("[!.]*"))]
    return {"instances": [each for each in found if each is not None]}


def launch(folders: Folders, request: dict[str, Any]) -> dict[str, Any]:
    """Start an instance, unless its folder is there."""
    folder = folders.group(request["installation"], request["group"]) / quote(
        request["name"], safe=""
    )
    if folder.exists():
        return {}
    cores = _free_cores(folders, request["cpus"]) if request["own_cores"] else []
    gpus = _free_gpus(folders, request["gpus"], request.get("declared_gpus", 0))
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = folder.with_name(f".{folder.name}-{os.getpid()}")
    made.mkdir(mode=0o700)
    order = {name: request[name] for name in ("command", "environment", "gpus", "fingerprint")}
    if gpus:
        order["environment"] = {**order["environment"], GPU_SETTING: _setting(gpus)}
    write_json(made / "order.json", {**order, "cores": cores, "gpu_names": gpus})
    made.rename(folder)
    program = Path(folder / "supervise.py")
    program.write_text(request["program"])
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    process = subprocess.Popen(
        [sys.executable, "-I", str(program), str(folder)],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
        env={**os.environ, MARK: f"{folder}/"},
    )  # fmt: skip
    write_json(folder / "supervisor.json", identity(process.pid))
    return {}


def end(folders: Folders, request: dict[str, Any]) -> dict[str, Any]:
    """Ask an instance to end."""
    folder = folders.group(request["installation"], request["group"]) / quote(
        request["name"], safe=""
    )
    supervisor = read_json(folder / "supervisor.json")
    found = folder.exists()
    if found:
        (folder / "ending").touch()
    if is_alive(supervisor):
        send(supervisor["pid"], signal.SIGTERM, lambda: is_alive(supervisor))
    return {"found": found}


def check(folders: Folders, request: dict[str, Any]) -> dict[str, Any]:
    """Return what keeps the machine from running node workers."""
    problems = []
    free = os.statvfs(folders.root)
    if free.f_bavail * free.f_frsize < 2**28:
        problems.append(
            f"the disk of {folders.root} is full: free 256 MiB, or set the option folder"
        )
    return {"problems": problems}


def _free_cores(folders: Folders, wanted: int) -> list[int]:
    taken = {core for order in folders.orders() for core in order.get("cores", ())}
    usable = sorted(os.sched_getaffinity(0), key=lambda core: (_first_thread(core), core))
    free = [core for core in usable if core not in taken]
    if len(free) < wanted:
        raise MachineRefused(
            f"{wanted} cores are wanted and {len(free)} of {len(usable)} are free: lower cpus or the count of the group"
        )
    return free[:wanted]


def _first_thread(core: int) -> int:
    """Return the lowest thread of the physical core, so that an instance gets whole ones."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    try:
        return int(path.read_text().replace("-", ",").split(",")[0])
    except (OSError, ValueError):
        return core


def _free_gpus(folders: Folders, wanted: int, declared: int) -> list[str]:
    """Return names of GPUs that no instance has; ``declared``: so many are declared here, and none is looked for."""
    if not wanted:
        return []
    taken: set[str] = set()
    for order in folders.orders():
        if order.get("gpus") and not order.get("gpu_names"):
            raise MachineRefused(
                "an instance that an earlier version launched has all GPUs of this machine: drain its node with"
                " --finish-trajectories, and end the instance, once it is empty, by lowering the count of its group"
            )
        taken |= set(order.get("gpu_names", ()))
    names = [f"{DECLARED}{number}" for number in range(declared)] or gpu_names()
    if len(names) < wanted:
        raise MachineRefused(
            f"{wanted} GPUs are wanted and this machine has {len(names)}: lower gpus of the group, or take the machine out of it"
            + ("" if names else "; if it has some, nvidia-smi -L must list them")
        )
    free = [name not in taken for name in names]
    # A chunk of neighbours first, which begins at a multiple of its size.
    for step in (wanted, 1):
        for first in range(0, len(names) - wanted + 1, step):
            if all(free[first : first + wanted]):
                return names[first : first + wanted]
    left = [name for number, name in enumerate(names) if free[number]]
    if len(left) < wanted:
        raise MachineRefused(
            f"{wanted} GPUs are wanted and {len(left)} of {len(names)} are free: lower gpus or the count of the group"
        )
    return left[:wanted]


def gpu_names() -> list[str]:
    """Return the GPUs of this machine in the order of NVML: their UUIDs, or their numbers where only the driver's files name them."""
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=GRACE_SECONDS, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        buses = Path("/proc/driver/nvidia/gpus")
        return [str(number) for number, _ in enumerate(buses.iterdir())] if buses.exists() else []
    except subprocess.TimeoutExpired:
        raise MachineRefused("nvidia-smi does not answer: look at the driver of the GPUs") from None
    if found.returncode:
        said = (found.stdout + found.stderr).strip()[-300:]
        raise MachineRefused(f"nvidia-smi fails ({said}): look at the driver of the GPUs")
    return [line.strip() for line in found.stdout.splitlines() if line.strip()]


def _setting(names: list[str]) -> str:
    """Return the value by which a node worker offers these GPUs."""
    if names[0].startswith(DECLARED):
        return str(len(names))
    return "nvml:" + ",".join(names)


VERBS = {"list": list_instances, "launch": launch, "end": end, "check": check}


def main(request: dict[str, Any]) -> None:
    """Answer a request on standard output."""
    try:
        answer = VERBS[request["verb"]](Folders(request["folder"]), request)
    except (MachineRefused, OSError) as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__" and len(sys.argv) == 2:
    InstanceSupervisor(Path(sys.argv[1])).run()
