"""Launcher ``ssh``: node workers on machines that the program ``ssh`` reaches without a password.

Options of a group
    hosts           names or addresses, separated by commas or spaces; those of ``~/.ssh/config`` as well
    user, port, identity_file, known_hosts, config_file    of `ssh`; else its own configuration
    python          the Python of Tangram's environment on the hosts (default: the path of this one)
    prefix          words before the node worker's command, as ``nice -n 5``
    folder          of the files of instances on the hosts
    own_cores       ``false``: instances are not pinned, and may offer more cores than their machine has
    declared_gpus   so many GPUs of each host that are only declared; for trials

Hosts must be known: an unknown or changed host key fails the call. Secrets (the URL of Redis) pass by standard input, in no
command line, and lie on the host in a file of mode 0600 until the instance has ended.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from domain.errors import InvalidRequest
from managers.launch.launcher import CALL_SECONDS, LaunchError
from managers.launch.machines import FOLDER, MachinesLauncher, check_options, count_of, yes_or_no

OPTIONS: Final = (
    "hosts", "user", "port", "identity_file", "known_hosts", "config_file", "python", "prefix", "folder", "own_cores",
    "declared_gpus",
)  # fmt: skip
#: Those that change no instance.
REACH: Final = ("hosts", "user", "port", "identity_file", "known_hosts", "config_file")
#: A host that does not answer is given up before the call is.
_CONNECT_SECONDS: Final = 8
#: Exit status of ``ssh`` for an error of its own.
_SSH_FAILED: Final = 255


class SshHost:
    """One host."""

    def __init__(self, name: str, arguments: tuple[str, ...], python: str) -> None:
        self.name, self.python = name, python
        self._arguments = arguments

    def run(self, source: str) -> str:
        """Run a Python program there and return its output. Raises LaunchError."""
        command = ["ssh", *self._arguments, self.name, f"{shlex.quote(self.python)} -I -"]
        try:
            done = subprocess.run(
                command, input=source, capture_output=True, text=True, timeout=CALL_SECONDS
            )
        except FileNotFoundError:
            raise LaunchError("there is no program ssh: apt-get install openssh-client") from None
        except subprocess.TimeoutExpired:
            raise LaunchError(
                f"{self.name} did not answer by ssh within {CALL_SECONDS:.0f} s: look at its load and its disk"
            ) from None
        said = done.stderr.strip()[-500:]
        if done.returncode == _SSH_FAILED:
            raise LaunchError(
                f"ssh does not reach {self.name}: {said}; try `ssh {self.name} true`, or take it out of the option hosts"
                " once it is off"
            )
        if done.returncode:
            raise LaunchError(
                f"{self.name} does not run {self.python}: {said}; set the option python to that of Tangram's environment there"
            )
        return done.stdout


def make(options: Mapping[str, str]) -> MachinesLauncher:
    """Make the launcher of a group. Raises InvalidRequest."""
    check_options(options, OPTIONS)
    hosts = options.get("hosts", "").replace(",", " ").split()
    if not hosts:
        raise InvalidRequest("give hosts, as in host-1,host-2", pointer="/options/hosts")
    if any(host.startswith("-") for host in hosts) or len(set(hosts)) < len(hosts):
        raise InvalidRequest("hosts are names, each once", pointer="/options/hosts")
    try:
        prefix = shlex.split(options.get("prefix", ""))
    except ValueError as error:
        raise InvalidRequest(f"prefix cannot be read: {error}", pointer="/options/prefix") from None
    python = options.get("python", sys.executable)
    arguments = _arguments(options)
    return MachinesLauncher(
        [SshHost(host, arguments, python) for host in hosts],
        options.get("folder", FOLDER),
        prefix,
        own_cores=yes_or_no(options, "own_cores", default=True),
        declared_gpus=count_of(options, "declared_gpus"),
        reach=REACH,
    )


def _arguments(options: Mapping[str, str]) -> tuple[str, ...]:
    found = [
        "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}", "-o", "StrictHostKeyChecking=yes",
        "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=2", "-o", "ForwardAgent=no",
    ]  # fmt: skip
    for name, flag in (
        ("config_file", "-F"),
        ("user", "-l"),
        ("port", "-p"),
        ("identity_file", "-i"),
    ):
        if options.get(name):
            found += [flag, options[name]]
    if options.get("known_hosts"):
        found += ["-o", f"UserKnownHostsFile={options['known_hosts']}"]
    return tuple(found)
