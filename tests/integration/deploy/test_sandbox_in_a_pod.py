"""Bubblewrap works where deploy/kubernetes runs node workers: as a user without rights in a user namespace, with an unmasked /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.not_run import NotRun

SANDBOX = (
    "bwrap --unshare-user --unshare-pid --unshare-ipc --unshare-net --ro-bind / / --proc /proc --dev /dev"
    " sh -c"
).split()


def in_a_pod(proc: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a sandbox in a pod; it prints its user and the number of processes that it sees."""
    if os.geteuid() != 0:
        raise NotRun("only root maps the users of a pod")
    program = Path(__file__).with_name("pod_namespaces.py")
    command = [sys.executable, str(program), proc, *SANDBOX, "id -u; ls -d /proc/[0-9]* | wc -l"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_a_sandbox_has_processes_of_its_own_where_proc_is_unmasked():
    done = in_a_pod("unmasked")
    assert done.returncode == 0, done.stderr
    user, processes = done.stdout.split()
    assert user == "10001"
    assert int(processes) <= 5


@pytest.mark.slow
def test_there_is_no_sandbox_where_proc_is_masked():
    """Why the manifests say `procMount: Unmasked`."""
    done = in_a_pod("masked")
    assert done.returncode != 0
    assert "Can't mount proc" in done.stderr
