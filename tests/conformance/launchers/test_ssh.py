"""The launcher of SSH hosts keeps the rules, on an sshd of the loopback with keys of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from domain.errors import InvalidRequest
from domain.node_groups import NodeGroupSpec
from managers.launch import ssh
from managers.launch.launcher import Instance, LaunchError, MachinesSilent, NodeLauncher
from tests.conformance.launchers.machine_harness import worker_of
from tests.conformance.launchers.suite import *  # noqa: F403 - the suite's tests run here
from tests.conformance.launchers.suite import Group, until
from tests.ports import free_port

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
STARTS_WITHIN_SECONDS = 20.0


class Server(NamedTuple):
    """A running sshd."""

    port: int
    folder: Path

    def options(self, **others: str) -> dict[str, str]:
        return {
            "hosts": "127.0.0.1", "user": getpass.getuser(), "port": str(self.port), "config_file": "none",
            "identity_file": str(self.folder / "user_key"), "known_hosts": str(self.folder / "known_hosts"),
            **others,
        }  # fmt: skip


def a_key(path: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path.with_suffix(".pub").read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    assert SSHD is not None, "sshd is not installed: apt-get install openssh-server"
    folder, port = tmp_path_factory.mktemp("sshd"), free_port()
    host_key = a_key(folder / "host_key")
    (folder / "authorized_keys").write_text(a_key(folder / "user_key"))
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
        f"PasswordAuthentication no\nPidFile {folder}/sshd.pid\nMaxStartups 100\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd refuses to start without it
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log
        )
        ends = time.monotonic() + STARTS_WITHIN_SECONDS
        while not _listens(port):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < ends, (folder / "log").read_text()
            time.sleep(0.05)
        yield Server(port, folder)
        process.terminate()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class SshHarness:
    """One host, with a folder of its own."""

    restarts = True

    def __init__(self, server: Server, folder: Path) -> None:
        self.options = server.options(folder=str(folder), prefix="nice -n 1")
        self.spec = NodeGroupSpec("ssh", count=2, options=self.options)

    def launcher(self) -> NodeLauncher:
        return ssh.make(self.options)

    def kill(self, instance: Instance) -> None:
        os.kill(worker_of(instance), signal.SIGKILL)

    def unreachable(self) -> NodeLauncher:
        return ssh.make({**self.options, "port": str(free_port())})


@pytest.fixture
def harness(server: Server, tmp_path: Path) -> SshHarness:
    return SshHarness(server, tmp_path / "instances")


def test_the_prefix_precedes_the_command_of_the_worker(group: Group) -> None:
    name = group.launch()
    worker = worker_of(group.running(1)[name])
    assert os.getpriority(os.PRIO_PROCESS, worker) == os.getpriority(os.PRIO_PROCESS, 0) + 1


def test_secrets_are_in_no_command_line(group: Group) -> None:
    name = group.launch()
    worker = worker_of(group.running(1)[name])
    assert b"TANGRAM_NODE" in Path(f"/proc/{worker}/environ").read_bytes()
    lines = [path.read_bytes() for path in Path("/proc").glob("[1-9]*/cmdline") if path.exists()]
    assert not any(b"TANGRAM_NODE=" in line for line in lines)


def test_a_host_that_does_not_answer_is_named_and_the_others_go_on(
    group: Group, harness: SshHarness
) -> None:
    name = group.launch()
    group.running(1)
    both = ssh.make({**harness.options, "hosts": "127.0.0.1,127.0.0.2"})
    with pytest.raises(MachinesSilent) as raised:
        both.instances(group.installation, group.name)
    assert [each.name for each in raised.value.found] == [name]
    (why,) = raised.value.silent.values()
    assert why.startswith("ssh does not reach 127.0.0.2: ")
    both.end(group.installation, group.name, name)
    until(lambda: not group.listed())


def test_a_host_with_another_key_is_refused(server: Server, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{server.port} {a_key(tmp_path / 'other')}")
    launcher = ssh.make(server.options(folder=str(tmp_path), known_hosts=str(known)))
    with pytest.raises(LaunchError, match=r"Host key verification failed.*ssh 127\.0\.0\.1 true"):
        launcher.instances("i", "g")


def test_a_host_without_the_python_is_named_with_a_cure(server: Server, tmp_path: Path) -> None:
    launcher = ssh.make(server.options(folder=str(tmp_path), python="/opt/tangram/bin/python"))
    (problem,) = launcher.problems()
    assert "set the option python" in problem


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "/options/hosts"),
        ({"hosts": "a,a"}, "/options/hosts"),
        ({"hosts": "-oProxyCommand=true"}, "/options/hosts"),
        ({"hosts": "a", "prefix": "'"}, "/options/prefix"),
        ({"hosts": "a", "own_cores": "no"}, "/options/own_cores"),
        ({"hosts": "a", "colour": "red"}, "/options/colour"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        ssh.make(options)
    assert raised.value.pointer == field
