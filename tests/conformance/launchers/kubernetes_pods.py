"""Pods of the server that plays Kubernetes: each is a group of processes of this machine, which its kubelet restarts and ends."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

Object = dict[str, Any]
#: Kubernetes 1.33 waits 30 s by default; what runs here needs none.
_PATH: Final = {"PATH": os.environ["PATH"]}


class PodProcess:
    """The container of one pod. All its processes end with the first one, as in a namespace of processes."""

    def __init__(self, pod: Object, secret: Callable[[str], Object | None]) -> None:
        self._pod, self._secret = pod, secret
        self._process: subprocess.Popen[bytes] | None = None
        self.restarts = -1

    @property
    def pid(self) -> int:
        """Process of the container."""
        assert self._process is not None
        return self._process.pid

    def keep(self) -> str:
        """Start the container when it does not run; return why it cannot start."""
        if self._process is not None and self._process.poll() is None:
            return ""
        if self._process is not None:
            self.kill_all()
        container = self._pod["spec"]["containers"][0]
        variables = {each["name"]: each["value"] for each in container.get("env", ())}
        for source in container.get("envFrom", ()):
            found = self._secret(source["secretRef"]["name"])
            if found is None:
                return f'secret "{source["secretRef"]["name"]}" not found'
            given = {k: base64.b64decode(v).decode() for k, v in found.get("data", {}).items()}
            variables = {**given, **variables}
        command = [*container.get("command", ()), *container["args"]]
        self._process = subprocess.Popen(
            command, env=_PATH | variables, start_new_session=True, stdin=subprocess.DEVNULL
        )
        self.restarts += 1
        return ""

    def ended(self) -> bool:
        """Ask the container to end; return whether nothing of it is left."""
        if self._process is None:
            return True
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            return False
        self.kill_all()
        return not _members(self._process.pid)

    def kill_all(self) -> None:
        """Kill all processes of the container."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()


def _members(group: int) -> list[int]:
    """Return the processes of a group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, member_of = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(member_of) == group and state != "Z":
            found.append(int(path.parent.name))
    return found
