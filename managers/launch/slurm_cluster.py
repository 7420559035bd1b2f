"""Launcher for Slurm: an instance is a batch job of one task on one machine, whose script becomes the node worker.

Theory of operation. The job's name is ``tangram-INSTALLATION-INSTANCE``, its comment names installation, group, instance and the
fingerprint of its order, so `squeue` is all that is remembered. What the spec declares is requested from Slurm: ``--cpus-per-task``, ``--mem``, ``--gres=gpu``
and ``--constraint``; Slurm confines the job to it, and the node worker offers what it may use.

Rules
1. A name is launched once: a job that is there is looked for first, and where two keepers submit at once, ``singleton`` lets the
   second job wait until the first has ended. It is not listed then.
2. The script ``exec``s the node worker, so the signals of Slurm reach it. ``--signal=B:TERM@30`` lets it end in order before the
   time limit: only then Slurm signals the commands that it runs, which would look as if they had ended by themselves.
3. `Instance.ends_at` is therefore 90 s before the end of the job: Slurm sends that signal up to 60 s early. Of a job on a
   machine that is being drained, it is now.
4. ``--requeue``: a job that was preempted, or whose machine failed, runs again under its name. One whose node worker ended with
   an error does not; it is listed as failed until `end` makes Slurm forget it.
5. Slurm ends all processes of a job if it tracks them by control groups (``proctrack/cgroup``). `problems` says where it does not.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Final
from urllib.parse import quote

from domain.errors import InvalidRequest
from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import Instance, InstanceState, LaunchError, LaunchOrder
from managers.launch.slurm_commands import SlurmCommands, SlurmJob

#: The node worker is asked to end so long before the limit; Slurm may do so `_EARLY_SECONDS` earlier.
_SIGNAL_SECONDS: Final = 30
_EARLY_SECONDS: Final = 60
_MIB: Final = 2**20
_OPTIONS: Final = frozenset({"account", "conf", "exclusive", "extra", "home", "logs", "node_python", "partition", "qos", "time_limit"})  # fmt: skip
#: Of the user who submits; nothing else of the keeper's environment enters a job.
_EXPORTED: Final = "HOME,LANG,LOGNAME,PATH,USER"
_FEATURE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=:-]*")

_STATES: Final = {
    "PENDING": InstanceState.PENDING,
    "CONFIGURING": InstanceState.PENDING,
    "REQUEUED": InstanceState.PENDING,
    "REQUEUE_FED": InstanceState.PENDING,
    "REQUEUE_HOLD": InstanceState.PENDING,
    "RESV_DEL_HOLD": InstanceState.PENDING,
    "SPECIAL_EXIT": InstanceState.PENDING,
    "RUNNING": InstanceState.RUNNING,
    "RESIZING": InstanceState.RUNNING,
    "SIGNALING": InstanceState.RUNNING,
    "STAGE_OUT": InstanceState.RUNNING,
    "STOPPED": InstanceState.RUNNING,
    "SUSPENDED": InstanceState.RUNNING,
    "COMPLETING": InstanceState.ENDING,
    "BOOT_FAIL": InstanceState.FAILED,
    "DEADLINE": InstanceState.FAILED,
    "FAILED": InstanceState.FAILED,
    "NODE_FAIL": InstanceState.FAILED,
    "OUT_OF_MEMORY": InstanceState.FAILED,
    "PREEMPTED": InstanceState.FAILED,
    "TIMEOUT": InstanceState.FAILED,
}
#: Of two jobs with one name, the first of these states is the instance.
_RANK: Final = (InstanceState.RUNNING, InstanceState.ENDING, InstanceState.PENDING, InstanceState.FAILED)  # fmt: skip
#: Reasons of waiting that waiting does not change → the cure.
_STUCK: Final = {
    "BadConstraints": "no machine has these labels and gpus",
    "JobHeldAdmin": "an operator of Slurm holds it: scontrol release JOB",
    "JobHeldUser": "it is held: scontrol release JOB",
    "PartitionConfig": "no machine of the partition has so many cpus",
    "PartitionDown": "the partition is down: scontrol update PartitionName=NAME State=UP",
    "PartitionInactive": "the partition is inactive: scontrol update PartitionName=NAME State=UP",
    "PartitionNodeLimit": "the partition has fewer machines in use: scontrol show partition",
    "PartitionTimeLimit": "options.time_limit is above that of the partition",
    "ReqNodeNotAvail": "machines that it needs are drained or reserved: sinfo -R",
}


def make(options: Mapping[str, str]) -> SlurmLauncher:
    """Make the launcher of a group. Raises InvalidRequest for an option that it does not have."""
    for name, value in options.items():
        if name not in _OPTIONS:
            known = ", ".join(sorted(_OPTIONS))
            raise InvalidRequest(f"there is no option {name!r}: give {known}", pointer=f"/options/{name}")  # fmt: skip
        if name == "exclusive" and value not in ("true", "false"):
            raise InvalidRequest(f"exclusive is true or false, not {value!r}", pointer="/options/exclusive")  # fmt: skip
    try:
        shlex.split(options.get("extra", ""))
    except ValueError as error:
        raise InvalidRequest(f"extra cannot be split into words: {error}", pointer="/options/extra") from None  # fmt: skip
    return SlurmLauncher(options)


class SlurmLauncher:
    """One cluster, for the groups with the same options."""

    reach: Final = ("conf",)
    launches_at_once: Final = 4

    def __init__(self, options: Mapping[str, str]) -> None:
        """``options``: account, partition, qos, time_limit, exclusive, extra: those of sbatch; conf: path of ``slurm.conf``;
        on the machines, home: folder for the data of node workers, logs: folder for their output, node_python: Tangram's interpreter [that of the keeper].
        """
        self._options = dict(options)
        self._commands = SlurmCommands(options.get("conf", ""), _user_of(options))

    def instances(self, installation: str, group: str) -> list[Instance]:
        """Return all instances of a group. Raises LaunchError."""
        prefix = _comment(installation, group, "")
        found: dict[str, list[SlurmJob]] = {}
        for job in self._commands.jobs():
            if job.comment.startswith(prefix) and job.state in _STATES:
                name, _, _ = job.comment.removeprefix(prefix).partition("/")
                found.setdefault(name, []).append(job)
        chosen = {name: min(jobs, key=_order_of_one_name) for name, jobs in found.items()}
        states = self._commands.machine_states(job.machine for job in chosen.values() if _runs(job))
        return [_instance(name, job, states) for name, job in sorted(chosen.items())]

    def launch(self, order: LaunchOrder) -> None:
        """Submit the job of an instance, unless there is one that has not ended. Raises LaunchError."""
        comment = _comment(order.installation, order.group, order.name)
        if any(_is_there(job) for job in self._jobs_of(order.installation, comment, order.name)):
            return
        if order.fingerprint:
            comment = f"{comment}/{order.fingerprint}"
        job = [f"--job-name={_job_name(order.installation, order.name)}", f"--comment={comment}"]
        wanted = requests(order.spec, self._options, order.name)
        self._commands.run(
            "sbatch", "--parsable", *job, *wanted, stdin=script(order, self._options)
        )

    def end(self, installation: str, group: str, name: str) -> None:
        """Let Slurm end the jobs of an instance, and forget those that failed. Raises LaunchError."""
        jobs = self._jobs_of(installation, _comment(installation, group, name), name)
        failed = [job.id for job in jobs if _state(job) is InstanceState.FAILED]
        if failed:
            # One that has ended cannot be cancelled; one that waits can, and is then not listed any more.
            self._unless_gone("scontrol", "requeuehold", ",".join(failed))
        if ids := failed + [job.id for job in jobs if _is_there(job)]:
            self._unless_gone("scancel", *ids)

    def problems(self) -> list[str]:
        """Return what keeps Slurm from placing node workers, or from ending them wholly."""
        try:
            settings = self._commands.settings()
            usable = self._usable_machines()
        except LaunchError as error:
            return [str(error)]
        found = [] if usable else [self._no_machine()]
        if "cgroup" not in settings.get("ProctrackType", ""):
            found.append(
                f"ProctrackType is {settings.get('ProctrackType')}: processes outlive a node worker that was killed;"
                " set proctrack/cgroup in slurm.conf"
            )
        binding = settings.get("TaskPlugin", "")
        if "affinity" not in binding and "cgroup" not in binding and not self._is_exclusive:
            found.append(
                f"TaskPlugin is {binding}: two jobs of a machine share cores; set task/affinity,task/cgroup"
                " in slurm.conf, or options.exclusive to true"
            )
        return found

    def close(self) -> None:
        """There is no connection that stays open."""

    @property
    def _is_exclusive(self) -> bool:
        return self._options.get("exclusive") == "true"

    def _usable_machines(self) -> list[str]:
        among = [f"--partition={name}"] if (name := self._options.get("partition")) else []
        listed = self._commands.run("sinfo", "--noheader", "--responding", "--format=%D %t", *among)
        rows = (line.split() for line in listed.splitlines())
        return [state for _, state in rows if state.rstrip("*~#!%$@+-^") in _USABLE]

    def _no_machine(self) -> str:
        where = f"partition {self._options['partition']}" if "partition" in self._options else "the cluster"  # fmt: skip
        return f"no machine of {where} is up: `sinfo -R` lists why; scontrol update NodeName=NAME State=RESUME"

    def _jobs_of(self, installation: str, comment: str, name: str) -> list[SlurmJob]:
        jobs = self._commands.jobs(_job_name(installation, name))
        return [job for job in jobs if f"{job.comment}/".startswith(f"{comment}/")]

    def _unless_gone(self, *command: str) -> None:
        try:
            self._commands.run(*command)
        except LaunchError as error:
            if not any(said in str(error).lower() for said in _GONE):
                raise


#: States of machines that run jobs, or could.
_USABLE: Final = frozenset({"alloc", "allocated", "comp", "completing", "idle", "mix", "mixed"})
#: What Slurm says of a job that has ended meanwhile.
_GONE: Final = ("already completing or completed", "already finished", "invalid job id")


def requests(spec: NodeGroupSpec, options: Mapping[str, str], name: str) -> list[str]:
    """Return the options of sbatch for an instance. Raises LaunchError for labels that cannot be features."""
    wanted = [
        "--nodes=1", "--ntasks=1", f"--cpus-per-task={spec.cpus}", "--requeue", "--dependency=singleton",
        "--open-mode=append", f"--export={_EXPORTED}", f"--signal=B:TERM@{_SIGNAL_SECONDS}",
        "--chdir=/", f"--output={_log(options, name)}",
    ]  # fmt: skip
    if spec.memory_bytes:
        wanted.append(f"--mem={-(-spec.memory_bytes // _MIB)}M")
    if spec.gpus:
        wanted.append(f"--gres=gpu:{spec.gpus}")
    if spec.labels:
        wanted.append(f"--constraint={'&'.join(_feature(*label) for label in sorted(spec.labels.items()))}")  # fmt: skip
    if options.get("exclusive") == "true":
        wanted.append("--exclusive")
    for option, flag in (("partition", "partition"), ("account", "account"), ("qos", "qos"), ("time_limit", "time")):  # fmt: skip
        if value := options.get(option):
            wanted.append(f"--{flag}={value}")
    return [*wanted, *shlex.split(options.get("extra", ""))]


def script(order: LaunchOrder, options: Mapping[str, str]) -> str:
    """Return the batch script: its variables are not on a command line, where other users would see them."""
    variables = dict(order.environment)
    if home := options.get("home"):
        variables["TANGRAM_HOME"] = home
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    python = options.get("node_python", sys.executable)
    command = shlex.join(python if word == sys.executable else word for word in order.command)
    return "\n".join(["#!/bin/sh", *exports, f"exec {command}", ""])


def _user_of(options: Mapping[str, str]) -> str:
    """Return the user of ``--uid`` in ``extra``, which root may give; empty: the one who submits."""
    words = shlex.split(options.get("extra", ""))
    for word, following in pairwise([*words, ""]):
        if word == "--uid":
            return following
        if word.startswith("--uid="):
            return word.removeprefix("--uid=")
    return ""


def _feature(label: str, value: str) -> str:
    feature = label if value in ("", "true") else f"{label}={value}"
    if not _FEATURE.fullmatch(feature):
        raise LaunchError(
            f"label {label}: {value!r} is no feature of Slurm: use letters, digits and _ . = : - alone"
        )
    return feature


def _log(options: Mapping[str, str], name: str) -> str:
    folder = options.get("logs")
    return f"{folder}/{name}-%j.log" if folder else "/dev/null"


def _job_name(installation: str, name: str) -> str:
    return f"tangram-{quote(installation, safe='')}-{quote(name, safe='')}"


def _comment(installation: str, group: str, name: str) -> str:
    return "/".join(("tangram", quote(installation, safe=""), quote(group, safe=""), name))


def _state(job: SlurmJob) -> InstanceState | None:
    return _STATES.get(job.state)


def _runs(job: SlurmJob) -> bool:
    return _state(job) is InstanceState.RUNNING


def _is_there(job: SlurmJob) -> bool:
    return _state(job) not in (None, InstanceState.FAILED)


def _order_of_one_name(job: SlurmJob) -> tuple[int, int]:
    return _RANK.index(_STATES[job.state]), int(re.sub(r"\D.*", "", job.id) or 0)


def _instance(name: str, job: SlurmJob, machines: Mapping[str, tuple[str, str]]) -> Instance:
    state = _STATES[job.state]
    ends_at, reason = None, _reason(job)
    if state is InstanceState.RUNNING:
        condition, why = machines.get(job.machine, ("", ""))
        if job.ends_at is not None:
            ends_at = job.ends_at - _SIGNAL_SECONDS - _EARLY_SECONDS
        if condition.startswith("drain"):
            ends_at = time.time()  # noqa: TID251 - the notice of the engine is read here
            reason = f"machine {job.machine} is {condition}: {why}"
    # An earlier version wrote none.
    fingerprint = (*job.comment.split("/"), "")[4]
    return Instance(
        name, state, f"job {job.id}", job.machine, ends_at, reason, job.restarts, fingerprint
    )


def _reason(job: SlurmJob) -> str:
    state = _STATES[job.state]
    if state is InstanceState.FAILED:
        said = ", ".join(part for part in (job.state.lower(), job.reason, job.ending) if part)
        return f"{said}; its output is in options.logs, where that is set"
    if state is not InstanceState.PENDING:
        return "" if job.state == "RUNNING" else job.state.lower()
    known = next((cure for word, cure in _STUCK.items() if job.reason.startswith(word)), "")
    return f"{job.reason}: {known}" if known else job.reason
