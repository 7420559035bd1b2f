"""Commands of Slurm: run with a time limit, jobs read from squeue, and the cure of each error that Slurm names.

The programs are those of Slurm 20.11 and later. Times are asked for as seconds since the epoch, so that no time zone matters.

Sources: sbatch(1), squeue(1), scontrol(1), sinfo(1), slurm.conf(5); messages: src/common/slurm_errno.c.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from managers.launch.launcher import LaunchError

#: A call of the launcher runs at most three commands within `launcher.CALL_SECONDS`.
COMMAND_SECONDS: Final = 9.0
#: Variables that these programs read as options; those of a keeper that is itself a job would apply to its node workers.
_OPTIONS: Final = ("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SINFO_", "SALLOC_", "SRUN_")
#: Which cluster and who asks: they stay.
_KEPT: Final = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})
_COLUMNS: Final = ("JobID", "State", "RestartCnt", "EndTime", "exit_code", "NodeList", "Reason", "Comment")  # fmt: skip
#: Between columns; neither names nor reasons contain it.
_BAR: Final = "|"

#: Part of an error, in small letters → what to do. The first that fits is taken.
_CURES: Final = (
    ("munge", "munge does not run or has another key: start munged here with the /etc/munge/munge.key of the cluster"),
    ("authentication", "munge has another key, or the clocks differ: copy /etc/munge/munge.key of the cluster and synchronise the clock"),
    ("partition", "name a partition of `sinfo` in options.partition, and one that this user may use"),
    ("account", "name an account of `sacctmgr show associations user=$USER` in options.account"),
    ("qos", "name a QOS of `sacctmgr show qos` that the account may use in options.qos"),
    ("feature", "labels must be features of machines: `sinfo -o '%N %f'` lists them"),
    ("gres", "no machine has so many GPUs: `sinfo -o '%N %G'` lists them; lower gpus"),
    ("generic resource", "no machine has so many GPUs: `sinfo -o '%N %G'` lists them; lower gpus"),
    ("memory specification", "no machine has so much memory: `sinfo -o '%N %m'` lists it in MiB; lower memory_bytes"),
    ("node configuration", "no machine of the partition has these cpus, gpus, memory and labels: `sinfo -N -l` lists them"),
    ("--time", "write options.time_limit as sbatch takes it: minutes, hours:minutes:seconds or days-hours"),
    ("time limit", "options.time_limit is above that of the partition: `sinfo -o '%P %l'` lists it"),
    ("unrecognized option", "options.extra has an option that this sbatch does not know"),
    ("configuration source", "set options.conf to the slurm.conf of the cluster, or run where /etc/slurm/slurm.conf is"),
    ("dns srv", "set options.conf to the slurm.conf of the cluster, or run where /etc/slurm/slurm.conf is"),
    ("slurm.conf", "set options.conf to the slurm.conf of the cluster, or run where /etc/slurm/slurm.conf is"),
    ("contact slurm controller", "slurmctld does not answer: start it, and open its port (SlurmctldPort) to this machine"),
    ("connection", "slurmctld does not answer: start it, and open its port (SlurmctldPort) to this machine"),
    ("permission", "Slurm refuses this user: run the keeper as the user who may submit, or name options.account"),
    ("limit", "a limit of the account or QOS is reached: `sacctmgr show associations` lists them"),
)  # fmt: skip
_NO_CURE: Final = "the log of slurmctld has more"


@dataclass(frozen=True)
class SlurmJob:
    """A job, as squeue lists it."""

    id: str
    #: As ``RUNNING``.
    state: str
    restarts: int
    #: Wall clock, seconds since the epoch; None: without an end, or not started.
    ends_at: float | None
    #: How its script ended: ``exit code 1``, ``killed by signal 9``; empty while it has not.
    ending: str
    #: Empty while it waits.
    machine: str
    #: Why it waits; empty when there is nothing to say.
    reason: str
    comment: str


class SlurmCommands:
    """The programs of one cluster."""

    def __init__(self, conf: str = "", user: str = "", seconds: float = COMMAND_SECONDS) -> None:
        """``conf``: path of ``slurm.conf``, where it is not that of the machine. ``user``: who has the jobs; empty: who asks.
        ``seconds``: limit of a command."""
        self._seconds = seconds
        self._conf, self._user = conf, user

    def jobs(self, name: str = "") -> list[SlurmJob]:
        """Return the user's jobs that the controller remembers, of all states; those called ``name``, if given. Raises LaunchError.

        The controller selects by one user, except root (seen as REQUEST_JOB_USER_INFO with Slurm 22.05); squeue selects by names, from what it got.
        """
        columns = ",".join(f"{column}:{_BAR}" for column in _COLUMNS)
        chosen = [f"--user={self._user or _who_asks()}"]
        if name:
            chosen.append(f"--name={name}")
        listed = self.run("squeue", "--noheader", "--states=all", *chosen, f"--Format={columns}")
        return [job for line in listed.splitlines() if (job := parse_job(line)) is not None]

    def machine_states(self, machines: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Return machine → its state, as ``draining``, and the reason that an operator gave. Raises LaunchError."""
        wanted = ",".join(sorted(set(machines)))
        if not wanted:
            return {}
        listed = self.run("sinfo", "--Node", "--noheader", f"--nodes={wanted}", "--format=%N|%T|%E")
        rows = [line.split(_BAR, 2) for line in listed.splitlines()]
        return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}

    def settings(self) -> dict[str, str]:
        """Return the configuration of the controller. Raises LaunchError."""
        lines = self.run("scontrol", "show", "config").splitlines()
        pairs = (line.partition("=") for line in lines)
        return {name.strip(): value.strip() for name, equals, value in pairs if equals}

    def run(self, *command: str, stdin: str = "") -> str:
        """Run one program; return its output. Raises LaunchError, which names the cause and the cure."""
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, text=True, errors="replace", timeout=self._seconds,
                env=self._environment(), check=False,
            )  # fmt: skip
        except FileNotFoundError:
            raise LaunchError(
                f"{command[0]} is not installed on the machine of the keeper: install the client programs"
                " of Slurm (Debian: slurm-client)"
            ) from None
        except subprocess.TimeoutExpired as error:
            # They retry, and write why.
            said = (error.stderr or b"").decode(errors="replace")
            said = (
                said or f"no answer within {self._seconds:g} s: Unable to contact slurm controller"
            )
            raise LaunchError(explain(command[0], said)) from None
        # Some programs end with 0 although the controller did not answer.
        if done.returncode != 0 or (not done.stdout and "error:" in done.stderr):
            raise LaunchError(explain(command[0], done.stderr))
        return done.stdout

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in _KEPT or not name.startswith(_OPTIONS)
        }
        if self._conf:
            kept["SLURM_CONF"] = self._conf
        return {**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def _who_asks() -> str:
    """Return the user of the programs: that of the token, else that of this process."""
    claims = os.environ.get("SLURM_JWT", "").split(".")
    try:
        said = json.loads(base64.urlsafe_b64decode(claims[1] + "=="))
        return str(said.get("sun") or said["username"])
    except (IndexError, ValueError, KeyError, AttributeError):
        return str(os.geteuid())


def explain(program: str, errors: str) -> str:
    """Return a message of what a program of Slurm wrote, with the cure."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = "; ".join(dict.fromkeys(line.removeprefix(f"{program}: error: ") for line in lines))
    return f"{program}: {said[:500] or 'failed without a message'}: {_cure_of(errors)}"


def parse_job(line: str) -> SlurmJob | None:
    """Read a line of `SlurmCommands.jobs`; None for one that is none."""
    parts = [part.strip() for part in line.split(_BAR, len(_COLUMNS) - 1)]
    if len(parts) != len(_COLUMNS):
        return None
    job, state, restarts, ends, code, machine, reason, comment = parts
    return SlurmJob(
        job,
        state,
        int(restarts) if restarts.isdigit() else 0,
        float(ends) if ends.isdigit() and machine else None,
        _ending(code),
        machine,
        "" if reason == "None" else reason,
        comment.rstrip(_BAR).strip(),
    )


def _ending(status: str) -> str:
    """Read what wait(2) returned, as squeue prints it."""
    if not status.isdigit() or status == "0":
        return ""
    code = os.waitstatus_to_exitcode(int(status))
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _cure_of(errors: str) -> str:
    small = errors.lower()
    return next((cure for part, cure in _CURES if part in small), _NO_CURE)
