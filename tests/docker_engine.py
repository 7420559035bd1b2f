"""A real Docker Engine of a test's own, and the image that its containers are made from.

The engine is Debian's `docker.io`, started as root with directories of its own and without touching
the machine's network: containers have none, or the engine and they have a network namespace of their
own, from which nothing outside is reached. The image is made from Debian packages, unpacked and never
configured:

    python -m tests.docker_engine        # make the image now
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import Signals
from typing import Final

import docker
import docker.errors
import psutil

from tests import debian_files

CGROUPS: Final = Path("/sys/fs/cgroup")
START_WITHIN_SECONDS: Final = 180.0
STOP_WITHIN_SECONDS: Final = 180.0
REMOVALS_AT_ONCE: Final = 8
IMAGE: Final = "tangram-tests:1"
_NO_NETWORK: Final = ("--iptables=false", "--ip6tables=false", "--bridge=none")
_APART: Final = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
#: An account that exists for a remapping engine alone, in a mount namespace of its own.
_REMAPPED: Final = "tangram-remapped"
_FIRST_UID: Final = 700_000
_ACCOUNTS: Final = {
    "passwd": f"{_REMAPPED}:x:70000:70000::/:/bin/false\n",
    "group": f"{_REMAPPED}:x:70000:\n",
    "subuid": f"{_REMAPPED}:{_FIRST_UID}:65536\n",
    "subgid": f"{_REMAPPED}:{_FIRST_UID}:65536\n",
}
_SANDBOX: Final = debian_files.Recipe(
    name="sandbox",
    packages=tuple(
        "base-files libc-bin bash dash coreutils grep sed procps util-linux"
        " python3 python3-pytest python3-pytest-xdist".split()
    ),
    left_out=tuple(f"/usr/share/{name}/*" for name in ("doc", "man", "locale", "zoneinfo")),
    finish=(
        'printf "root:x:0:0:root:/root:/bin/sh\\nnobody:x:65534:65534:nobody:/:/bin/sh\\n"'
        ' > "$1/etc/passwd";'
        ' printf "root:x:0:\\nnogroup:x:65534:\\n" > "$1/etc/group"'
    ),
)


def unmount_below(directory: Path) -> None:
    """Unmount what a test or a benchmark has left below its directory, which cannot be deleted before."""
    for mount in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        if Path(at := mount.split()[1]).is_relative_to(directory):
            subprocess.run(["umount", "--lazy", at], check=False)


def missing_programs() -> list[str]:
    """Return what has to be installed before an engine can be started."""
    return [name for name in ("dockerd", "mmdebstrap") if shutil.which(name) is None]


class DockerEngine:
    """One engine; its containers and images are removed with it."""

    def __init__(
        self, *, networks: bool = False, remapped: bool = False, options: Iterable[str] = ()
    ) -> None:
        """``options``: further ones of dockerd."""
        self.directory = Path(tempfile.mkdtemp(prefix="tangram-docker-"))
        #: Whether users of containers are mapped to users without rights on the host.
        self.remapped = remapped
        #: Whether it can make networks, in a namespace of its own.
        self.networks = networks
        self.options = tuple(options)
        #: Control group of its containers, unless they name one.
        self.group = self.directory.name
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        """Address for clients."""
        return f"unix://{self.directory / 'docker.sock'}"

    def start(self) -> DockerEngine:
        """Start the engine and wait until it answers."""
        at = self.directory
        command = [
            *(_APART if self.networks else ()), *(self._with_account() if self.remapped else ()),
            "dockerd", *(() if self.networks else _NO_NETWORK),
            *((f"--userns-remap={_REMAPPED}",) if self.remapped else ()),
            *self.options, "--cgroup-parent", f"/{self.group}",
            "--data-root", str(at / "data"), "--exec-root", str(at / "exec"),
            "--pidfile", str(at / "pid"), "--host", self.host,
        ]  # fmt: skip
        with (at / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
        until = time.monotonic() + START_WITHIN_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((at / "log").read_text()[-4000:])
            time.sleep(0.05)
        return self

    def _with_account(self) -> list[str]:
        """Return a command that runs the rest where the account exists."""
        self.directory.chmod(0o755)  # remapped users enter it
        mounts = []
        for name, line in _ACCOUNTS.items():
            there = Path("/etc") / name
            there.touch()
            known = there.read_text()
            (self.directory / name).write_text(known + line)
            mounts.append(f"mount --bind {self.directory / name} {there}")
        script = " && ".join([*mounts, 'exec "$@"'])
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]

    @contextlib.contextmanager
    def client(self, patience_seconds: int = 180) -> Iterator[docker.APIClient]:
        """Talk to the engine as an operator would."""
        client = docker.APIClient(base_url=self.host, version="auto", timeout=patience_seconds)
        try:
            yield client
        finally:
            client.close()

    def load_image(self) -> None:
        """Import the image."""
        name, tag = IMAGE.split(":")
        with self.client() as client:
            client.import_image_from_file(str(debian_files.make(_SANDBOX)), name, tag)

    def containers(self) -> list[str]:
        """Return the names of all containers."""
        with self.client() as client:
            return [
                name.lstrip("/") for each in client.containers(all=True) for name in each["Names"]
            ]

    def terminate(self) -> None:
        """Stop the engine in order."""
        assert self.process is not None
        self.process.send_signal(Signals.SIGTERM)
        self.process.wait(STOP_WITHIN_SECONDS)

    def kill(self) -> None:
        """End the engine itself as a crash would; containers go on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(STOP_WITHIN_SECONDS)
        # Its containerd dies with it, but may stay a zombie without a parent that reaps it.
        (self.directory / "exec" / "containerd" / "containerd.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """Remove every container, stop the engine and delete its directories."""
        if self.process is not None and self.process.poll() is None:
            self.clear()
            self.terminate()
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.directory) in word for word in process.info["cmdline"] or ()):
                process.kill()  # what a crash of the engine left
        unmount_below(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)
        _remove_groups({self.group})

    def clear(self) -> None:
        """Remove every container."""
        with ThreadPoolExecutor(REMOVALS_AT_ONCE) as pool:
            parents = set(pool.map(self._remove, self.containers()))
        _remove_groups(parents - {""})

    def _remove(self, name: str) -> str:
        """Remove a container; return the control group in which it had its own."""
        with self.client() as client, contextlib.suppress(docker.errors.APIError):
            parent: str = client.inspect_container(name)["HostConfig"]["CgroupParent"]
            client.remove_container(name, force=True, v=True)
            return parent
        return ""

    def _answers(self) -> bool:
        try:
            # The SDK forgets to close a socket when the server does not answer.
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(self.host.removeprefix("unix://"))
            with self.client() as client:
                return bool(client.ping())
        except (OSError, docker.errors.DockerException):
            return False


def _remove_groups(parents: Iterable[str]) -> None:
    """Remove what drivers made for containers; theirs go with the last container at their end."""
    for parent in parents:
        for root in (CGROUPS, *CGROUPS.iterdir()):
            group = root / parent.lstrip("/")
            for each in (*group.glob("*/"), group):
                with contextlib.suppress(OSError):
                    each.rmdir()


if __name__ == "__main__":
    print(debian_files.make(_SANDBOX))  # noqa: T201 - a command says what it made
