"""A small Slurm for tests: munge, slurmctld and some slurmd on this machine, in a folder of their own with free ports.

Nothing of the system is used: its programs find this cluster by SLURM_CONF, and munge by a socket of its own. Each
compute node is a slurmd of this machine, with its cores. All processes are stopped by their ids; jobs are cancelled before.

As a program, it runs until it is interrupted: ``python -m tests.slurm_cluster NODES`` prints the SLURM_CONF to export.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.ports import free_port

PROGRAMS: Final = (
    "munged",
    "slurmctld",
    "slurmd",
    "sbatch",
    "squeue",
    "scancel",
    "scontrol",
    "sinfo",
)
START_WITHIN_SECONDS: Final = 60.0
#: Waits of Slurm that are minutes by default: until a killed job is killed hard, and until a requeued one may run.
KILL_WAIT_SECONDS: Final = 10
REQUEUE_SECONDS: Final = 5

_CONF: Final = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={at}/munge.socket,cred_expire={requeue}
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool-%n
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd-%n.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/slurmd-%n.log
ProctrackType={tracking}
TaskPlugin={binding}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=100000,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait={kill_wait}
MinJobAge=300
SlurmdTimeout=30
ReturnToService=2
MailProg=/bin/true
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
"""


#: Of cgroup.conf, where the kernel has control groups of version 1.
_CGROUPS: Final = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainCores=yes
ConstrainRAMSpace=yes
"""


def has_control_groups() -> bool:
    """Return whether jobs can have control groups here: those of version 1, as root."""
    return os.geteuid() == 0 and all(
        os.access(f"/sys/fs/cgroup/{name}/cgroup.procs", os.W_OK)
        for name in ("freezer", "cpuset", "memory")
    )


def missing_programs() -> list[str]:
    """Return the programs of Slurm and munge that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


class SlurmCluster:
    """One controller and some compute nodes in partitions ``main`` (default) and ``urgent``, which preempts jobs of ``main``."""

    def __init__(self, nodes: int = 2, *, cgroups: bool = False) -> None:
        """``cgroups``: jobs have control groups (`has_control_groups`); else Slurm follows the process table."""
        self._cgroups = cgroups
        self.directory = Path(tempfile.mkdtemp(prefix="tangram-slurm-"))
        self.directory.chmod(0o755)
        self.conf = self.directory / "slurm.conf"
        self.port = free_port()
        #: Control groups of this machine are called after them, so no two clusters share a name.
        self.nodes = [f"p{self.port}n{number}" for number in range(1, nodes + 1)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which programs find this cluster."""
        return {**os.environ, "SLURM_CONF": str(self.conf), "PATH": _path()}

    def start(self) -> SlurmCluster:
        """Start everything; return when all nodes are idle. Raises RuntimeError with the logs."""
        self._write()
        at = self.directory
        self._start("munged", "--foreground", "--force", f"--socket={at}/munge.socket", f"--key-file={at}/munge.key",
                    f"--log-file={at}/munge.log", f"--pid-file={at}/munge.pid", f"--seed-file={at}/munge.seed")  # fmt: skip
        self._until(lambda: (at / "munge.socket").exists(), "munged")
        self.start_controller()
        for name in self.nodes:
            self.start_node(name)
        self._until(lambda: self.node_states() == dict.fromkeys(self.nodes, "idle"), "nodes")
        return self

    def start_controller(self) -> None:
        """Start slurmctld, with the state of a former one; return when it answers."""
        self._start("slurmctld", "-D", "-f", str(self.conf))
        self._until(lambda: self.call("scontrol", "ping", check=False).endswith("UP"), "slurmctld")

    def stop_controller(self) -> None:
        """Stop slurmctld; jobs go on."""
        self._stop(self._daemons["slurmctld"])

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node."""
        self._start("slurmd", "-D", "-N", name, "-f", str(self.conf), key=name)

    def call(self, *command: str, check: bool = True) -> str:
        """Run a program of Slurm; return what it wrote. Raises RuntimeError with its errors."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout.strip()

    def node_states(self) -> dict[str, str]:
        """Return node → state, as sinfo names it."""
        listed = self.call("sinfo", "-N", "-h", "-p", "main", "-o", "%N %T", check=False)
        return dict(line.split() for line in listed.splitlines())

    def stop(self) -> None:
        """Cancel all jobs, stop all daemons, delete the folder."""
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            self.call("scancel", "--user", getpass.getuser())
            self._until(lambda: not self.call("squeue", "-h"), "jobs")
        for process in reversed(self._processes):
            self._stop(process)
        self._remove_control_groups()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _remove_control_groups(self) -> None:
        for name in self.nodes:
            for top in Path("/sys/fs/cgroup").glob(f"*/slurm_{name}"):
                for directory, _, _ in os.walk(top, topdown=False):
                    with contextlib.suppress(OSError):
                        os.rmdir(directory)

    def _write(self) -> None:
        (self.directory / "state").mkdir()
        key = self.directory / "munge.key"
        key.touch(mode=0o400)
        key.chmod(0o600)
        key.write_bytes(os.urandom(128))
        host = socket.gethostname()
        settings = _CONF.format(
            host=host, at=self.directory, user=getpass.getuser(), controller_port=self.port,
            requeue=REQUEUE_SECONDS, kill_wait=KILL_WAIT_SECONDS,
            tracking="proctrack/cgroup" if self._cgroups else "proctrack/linuxproc",
            binding="task/affinity,task/cgroup" if self._cgroups else "task/affinity",
        )  # fmt: skip
        if self._cgroups:
            (self.directory / "cgroup.conf").write_text(_CGROUPS)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
        # Two devices that exist everywhere stand in for GPUs.
        (self.directory / "gres.conf").write_text(
            "Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n"
        )
        shape = f"CPUs={os.cpu_count()} RealMemory={memory} Feature=fast,zone=a Gres=gpu:2"
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} {shape} State=UNKNOWN"
            for name in self.nodes
        ]
        among = ",".join(self.nodes)
        partitions = [
            f"PartitionName=main Nodes={among} Default=YES MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE",
            f"PartitionName=urgent Nodes={among} MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF",
        ]
        self.conf.write_text("\n".join([settings, *nodes, *partitions, ""]))

    def _start(self, *command: str, key: str = "") -> None:
        name = key or command[0]
        with (self.directory / f"{name}.out").open("ab") as log:
            process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, cwd="/",
            )  # fmt: skip
        self._processes.append(process)
        self._daemons[name] = process

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(START_WITHIN_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + START_WITHIN_SECONDS
        while not holds():
            ended = [name for name, each in self._daemons.items() if each.poll() is not None]
            if time.monotonic() > ends or (ended and what != "jobs"):
                raise RuntimeError(f"{what} not ready; ended: {ended}\n{self.logs()}")
            time.sleep(0.1)

    def logs(self) -> str:
        """Return the last lines of all logs."""
        found = sorted([*self.directory.glob("*.log"), *self.directory.glob("*.out")])
        tails = [f"{each.name}:\n" + "\n".join(each.read_text(errors="replace").splitlines()[-15:]) for each in found]  # fmt: skip
        return "\n".join(tails)


@contextlib.contextmanager
def running_cluster(nodes: int = 2, *, cgroups: bool = False) -> Iterator[SlurmCluster]:
    """Run a cluster while the context lasts. Raises FileNotFoundError where Slurm is not installed."""
    if missing := missing_programs():
        raise FileNotFoundError(
            f"{', '.join(missing)} not installed: apt-get install slurmctld slurmd slurm-client munge"
        )
    cluster = SlurmCluster(nodes, cgroups=cgroups)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def skip_without_slurm() -> None:
    """Leave a test out where Slurm is not installed; on CI that fails it."""
    if missing := missing_programs():
        pytest.skip(f"{', '.join(missing)} not installed")


def main() -> None:
    """Run a cluster until SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with running_cluster(count, cgroups=has_control_groups()) as cluster:
        sys.stdout.write(f"export SLURM_CONF={cluster.conf}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
