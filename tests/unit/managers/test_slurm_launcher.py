"""What the launcher for Slurm requests of it, and how it reads what Slurm says. The rest needs a Slurm: tests/conformance."""

from __future__ import annotations

import base64
import json
import os
import sys
import time

import pytest

from domain.errors import InvalidRequest
from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import InstanceState, LaunchError, LaunchOrder, fingerprint_of
from managers.launch.slurm_cluster import make, requests, script
from managers.launch.slurm_commands import SlurmCommands, SlurmJob, explain, parse_job

NOW = 1_800_000_000


class Answers(SlurmCommands):
    """Commands with answers that a test gives."""

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__()
        self.answers = answers
        self.called: list[tuple[str, ...]] = []

    def run(self, *command: str, stdin: str = "") -> str:
        self.called.append(command)
        return self.answers.get(command[0], "")


def a_job(number: int, state: str, comment: str = "tangram/main/cpu/cpu-1", **more: str) -> str:
    given = {"ends": "N/A", "code": "0", "machine": "m1", "reason": "None", "restarts": "0", **more}
    order = ("restarts", "ends", "code", "machine", "reason")
    return "|".join([str(number), state, *(given[name] for name in order), f"{comment}|"])


def listed(*jobs: str, machines: str = "m1|mixed|none"):
    launcher = make({})
    launcher._commands = Answers({"squeue": "\n".join(jobs), "sinfo": machines})
    return launcher.instances("main", "cpu")


def test_what_is_declared_is_requested() -> None:
    spec = NodeGroupSpec(
        "slurm", count=1, cpus=8, gpus=2, memory_bytes=2**30 + 1, labels={"fast": "", "zone": "a"}
    )
    options = {"partition": "p", "account": "a", "qos": "q", "time_limit": "1-0", "exclusive": "true",
               "extra": "--reservation='two words'", "logs": "/logs"}  # fmt: skip
    wanted = requests(spec, options, "cpu-1")
    expected = {
        "--cpus-per-task=8", "--gres=gpu:2", "--mem=1025M", "--constraint=fast&zone=a", "--partition=p", "--account=a",
        "--qos=q", "--time=1-0", "--exclusive", "--reservation=two words", "--output=/logs/cpu-1-%j.log", "--requeue",
    }  # fmt: skip
    assert expected <= set(wanted)
    assert "--mem=1025M" not in requests(NodeGroupSpec("slurm", count=1), {}, "cpu-1")


def test_the_script_becomes_the_node_worker_with_its_variables() -> None:
    order = LaunchOrder("main", "cpu", "cpu-1", NodeGroupSpec("slurm", count=1), ["a b", "c"], {"X": "it's"})  # fmt: skip
    assert script(order, {}).splitlines() == ["#!/bin/sh", "export X='it'\"'\"'s'", "exec 'a b' c"]
    assert "export TANGRAM_HOME=/scratch/tangram" in script(order, {"home": "/scratch/tangram"})


def test_the_interpreter_on_the_machines_is_part_of_the_shape() -> None:
    options = {"node_python": "/opt/2/bin/python"}
    order = LaunchOrder("main", "cpu", "cpu-1", NodeGroupSpec("slurm", count=1), [sys.executable, "-m", "x"])  # fmt: skip
    assert script(order, options).splitlines()[-1] == "exec /opt/2/bin/python -m x"
    before, after = (NodeGroupSpec("slurm", count=1, options=each) for each in ({}, options))
    assert fingerprint_of(before, make({}).reach) != fingerprint_of(after, make(options).reach)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"queue": "x"}, "/options/queue"),
        ({"exclusive": "yes"}, "/options/exclusive"),
        ({"extra": "'"}, "/options/extra"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        make(options)
    assert raised.value.pointer == field


@pytest.mark.parametrize(
    ("state", "means"),
    [
        ("PENDING", InstanceState.PENDING),
        ("CONFIGURING", InstanceState.PENDING),
        ("RUNNING", InstanceState.RUNNING),
        ("COMPLETING", InstanceState.ENDING),
        ("NODE_FAIL", InstanceState.FAILED),
        ("TIMEOUT", InstanceState.FAILED),
    ],
)
def test_states_of_jobs_are_states_of_instances(state: str, means: InstanceState) -> None:
    (instance,) = listed(a_job(1, state))
    assert (instance.name, instance.state, instance.handle) == ("cpu-1", means, "job 1")


def test_jobs_that_ended_in_order_and_jobs_of_others_are_not_listed() -> None:
    assert listed(
        a_job(1, "COMPLETED"),
        a_job(2, "CANCELLED"),
        a_job(3, "RUNNING", "tangram/other/cpu/cpu-1"),
        a_job(4, "RUNNING", "tangram/main/cpu2/cpu2-1"),
        a_job(5, "RUNNING", "(null)"),
        "no job at all",
    ) == []  # fmt: skip


def test_of_two_jobs_with_one_name_the_one_that_runs_is_the_instance() -> None:
    jobs = [a_job(1, "FAILED"), a_job(2, "PENDING", reason="Dependency"), a_job(3, "RUNNING")]
    assert [each.handle for each in listed(*jobs)] == ["job 3"]


def test_the_end_of_a_job_is_announced_before_slurm_signals_its_node_worker() -> None:
    (instance,) = listed(a_job(1, "RUNNING", ends=str(NOW)))
    assert instance.ends_at == NOW - 90
    (endless,) = listed(a_job(1, "RUNNING", ends="NONE"))
    assert endless.ends_at is None


def test_a_machine_that_is_drained_is_left_now() -> None:
    (instance,) = listed(a_job(1, "RUNNING"), machines="m1|draining|new | memory")
    assert instance.ends_at is not None
    assert instance.ends_at <= time.time()
    assert instance.reason == "machine m1 is draining: new | memory"


def test_a_failed_job_says_how_its_script_ended() -> None:
    (exited,) = listed(a_job(1, "FAILED", code="768", reason="NonZeroExitCode", restarts="2"))
    assert exited.reason.startswith("failed, NonZeroExitCode, exit code 3;")
    assert exited.restarts == 2
    (killed,) = listed(a_job(1, "FAILED", code="9"))
    assert killed.reason.startswith("failed, killed by signal 9;")


def test_a_job_that_waits_for_ever_says_what_would_let_it_run() -> None:
    (instance,) = listed(a_job(1, "PENDING", reason="JobHeldUser", machine=""))
    assert instance.reason == "JobHeldUser: it is held: scontrol release JOB"
    (waits,) = listed(a_job(1, "PENDING", reason="Resources", machine=""))
    assert waits.reason == "Resources"


def test_an_instance_has_the_fingerprint_of_its_order() -> None:
    jobs = [
        a_job(1, "RUNNING", "tangram/main/cpu/cpu-1/57bd"),
        a_job(2, "PENDING", "tangram/main/cpu/cpu-2"),
    ]
    assert [(each.name, each.fingerprint) for each in listed(*jobs)] == [("cpu-1", "57bd"), ("cpu-2", "")]  # fmt: skip


def test_a_name_that_begins_like_another_is_another_job() -> None:
    launcher = make({})
    launcher._commands = answers = Answers({"squeue": a_job(1, "RUNNING", "tangram/main/cpu/cpu-1/57bd")})  # fmt: skip
    launcher.end("main", "cpu", "cpu")
    assert [command[0] for command in answers.called] == ["squeue"]
    launcher.end("main", "cpu", "cpu-1")
    assert answers.called[-1] == ("scancel", "1")


@pytest.mark.parametrize(
    ("options", "claims", "user"),
    [
        ({}, None, str(os.geteuid())),
        ({}, {"sun": "ada"}, "ada"),
        ({"extra": "--nice=5 --uid ben"}, {"sun": "ada"}, "ben"),
        ({"extra": "--uid=ben"}, None, "ben"),
    ],
)
def test_slurm_is_asked_for_the_jobs_of_one_user(
    options: dict[str, str],
    claims: dict[str, str] | None,
    user: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLURM_JWT", raising=False)
    if claims is not None:
        body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        monkeypatch.setenv("SLURM_JWT", f"e30.{body}.x")
    launcher = make(options)
    answers = Answers({})
    answers._user = launcher._commands._user
    launcher._commands = answers
    launcher.instances("main", "cpu")
    assert f"--user={user}" in answers.called[0]


def test_a_job_is_read_from_its_line() -> None:
    line = a_job(7, "RUNNING", ends=str(NOW), comment="tangram/a/b/b-1")
    expected = SlurmJob("7", "RUNNING", 0, float(NOW), "", "m1", "", "tangram/a/b/b-1")
    assert parse_job(line) == expected


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("error: Munge encode failed: Failed to access \"/run/munge\"", "start munged"),
        ("error: Batch job submission failed: Protocol authentication error", "munge has another key"),
        ("error: Batch job submission failed: Invalid partition name specified", "options.partition"),
        ("error: Batch job submission failed: Invalid account or account/partition combination specified", "account"),
        ("error: Invalid generic resource (gres) specification", "lower gpus"),
        ("error: Batch job submission failed: Invalid qos specification", "options.qos"),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "slurmctld does not answer"),
        ("fatal: Could not establish a configuration source", "options.conf"),
        ("", "the log of slurmctld"),
    ],
)  # fmt: skip
def test_an_error_of_slurm_is_explained_with_its_cure(said: str, cure: str) -> None:
    assert cure in explain("sbatch", said)


def test_programs_that_are_not_installed_are_named() -> None:
    with pytest.raises(LaunchError, match=r"no-such-program is not installed.*slurm-client"):
        SlurmCommands().run("no-such-program")


def test_options_of_the_job_in_which_a_keeper_runs_are_not_those_of_its_node_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "elsewhere")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JWT", "token")
    seen = SlurmCommands("/etc/other.conf").run("env").splitlines()
    assert {"SLURM_CONF=/etc/other.conf", "SLURM_JWT=token", "SLURM_TIME_FORMAT=%s"} <= set(seen)
    assert not [each for each in seen if each.startswith(("SBATCH_", "SLURM_JOB"))]
