"""Launcher ``ray``: node workers on machines of a Ray cluster, as detached actors in placement groups.

Ray keeps a Python environment of its own, and its programs must run the Python of the cluster: so a process under that Python
(`ray_helper`) speaks to Ray, and this module to it, by lines of JSON. All state is in Ray; the process may die at any time.

Options of a group
    python       interpreter with Ray, of the cluster's versions [that of Tangram]
    address      of the cluster: ``HOST:PORT`` of its control store, or ``auto`` for that of this machine. A process that connects runs on a
                 machine of the cluster (it may have ``--num-cpus=0``) [auto]
    resource     custom resource that each machine for node workers has once: ``ray start --resources='{"tangram": 1}'`` [tangram]
    node_python  interpreter of Tangram on the machines [the same path as here]
    client       file like ``client.json`` with the URL and the token that `tangram_client.ray.connect` gives to programs in Ray [none]

Labels: a number is an amount of the custom resource of that name; any other value is that of a label (``ray start --labels``).
"""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import (
    CALL_SECONDS,
    Instance,
    InstanceState,
    LaunchError,
    LaunchOrder,
    check_options,
)

OPTIONS: Final = ("python", "address", "resource", "node_python", "client")
_HELPER: Final = Path(__file__).with_name("ray_helper.py")
_GUARD: Final = Path(__file__).with_name("process_guard.py")
_END_SECONDS: Final = 5.0


def make(options: Mapping[str, str]) -> RayLauncher:
    """Make the launcher of a group. Raises InvalidRequest for an option that it does not know."""
    check_options("ray", options, OPTIONS)
    return RayLauncher(options)


class RayLauncher:
    """One Ray cluster. May be used by several threads; they take turns."""

    reach: Final = ("python", "address", "client")

    def __init__(self, options: Mapping[str, str]) -> None:
        self._resource = options.get("resource", "tangram")
        self._node_python = options.get("node_python", sys.executable)
        self._client = options.get("client", "")
        self._helper = RayHelper(
            options.get("python", sys.executable), options.get("address", "auto")
        )

    def instances(self, installation: str, group: str) -> list[Instance]:
        """Return all instances of a group. Raises LaunchError."""
        self._publish(installation)
        found = self._helper.ask("instances", installation=installation, group=group)
        return [Instance(**{**each, "state": InstanceState(each["state"])}) for each in found]

    def launch(self, order: LaunchOrder) -> None:
        """Reserve a machine, and let Ray start a node worker there as soon as one is free. Raises LaunchError."""
        bundle, labels = reservation(order.spec, self._resource)
        self._publish(order.installation)
        command = [self._node_python if word == sys.executable else word for word in order.command]
        self._helper.ask(
            "launch",
            installation=order.installation,
            group=order.group,
            name=order.name,
            bundle=bundle,
            labels=labels,
            order={"command": command, "environment": dict(order.environment)},
            guard=_GUARD.read_text(),
            fingerprint=order.fingerprint,
        )

    def end(self, installation: str, group: str, name: str) -> None:
        """Let the guard of an instance end it; what waits for a machine is taken back. Raises LaunchError."""
        self._helper.ask("end", installation=installation, group=group, name=name)

    def problems(self) -> list[str]:
        """Return what keeps Ray from placing node workers."""
        try:
            self._access()
            machines = self._helper.ask("machines")
        except LaunchError as error:
            return [str(error)]
        able = [each for each in machines if each["resources"].get(self._resource, 0) >= 1]
        if able:
            return []
        return [
            f"none of the {len(machines)} machines of Ray offers the resource {self._resource!r}: start those for node workers with"
            f" ray start --resources='{{\"{self._resource}\": 1}}', or set the option resource"
        ]

    def close(self) -> None:
        """End the process that speaks to Ray; instances go on."""
        self._helper.close()

    def _publish(self, installation: str) -> None:
        access = self._access()
        if access is not None:
            self._helper.ask("publish", installation=installation, access=access)

    def _access(self) -> dict[str, str] | None:
        """Return the content of the file of the option ``client``. Raises LaunchError."""
        if not self._client:
            return None
        try:
            found = json.loads(Path(self._client).read_text())
            return {"url": str(found["url"]), "token": str(found["token"])}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LaunchError(
                f'option client: {self._client} does not hold {{"url": …, "token": …}} ({error!r}); write it, or remove the option'
            ) from None


def reservation(spec: NodeGroupSpec, resource: str) -> tuple[dict[str, float], dict[str, str]]:
    """Return what Ray reserves of a machine, and the labels that it must have. Raises LaunchError."""
    bundle: dict[str, float] = {"CPU": spec.cpus, resource: 1}
    if spec.gpus:
        bundle["GPU"] = spec.gpus
    if spec.memory_bytes:
        bundle["memory"] = spec.memory_bytes
    labels = {}
    for name, value in spec.labels.items():
        try:
            amount = float(value)
        except ValueError:
            labels[name] = value
            continue
        if not 0 < amount < math.inf:
            raise LaunchError(f"label {name}: an amount of a resource is above 0, not {value}")
        if name in bundle:
            raise LaunchError(f"label {name}: this resource is reserved already; remove the label")
        bundle[name] = amount
    return bundle, labels


class RayHelper:
    """The process that speaks to Ray, started when it is needed."""

    def __init__(self, python: str, address: str) -> None:
        self._python, self._address = python, address
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()
        self._lock = threading.Lock()
        self._log: IO[str] | None = None

    def ask(self, verb: str, **request: Any) -> Any:
        """Return the answer to a request. Raises LaunchError."""
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                process = self._start()
            try:
                assert process.stdin is not None
                process.stdin.write(json.dumps({"verb": verb, **request}) + "\n")
                process.stdin.flush()
            except OSError:
                raise self._lost() from None
            return self._answer().get("answer")

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[str]:
        """Start it and wait until it is connected."""
        self._end()
        self._answers = queue.Queue()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        # Isolated: neither this folder nor our environment hides modules of Ray.
        command = [self._python, "-I", str(_HELPER), self._address]
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("TANGRAM_")
        }
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=kept,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._end()
            raise LaunchError(
                f"option python: {self._python} cannot be started ({error})"
            ) from None
        self._process = process
        threading.Thread(target=self._read, args=(process, self._answers), daemon=True).start()
        try:
            self._answer()
        except LaunchError:
            self._end()
            raise
        return process

    @staticmethod
    def _read(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                answers.put(line)
        answers.put("")

    def _answer(self) -> dict[str, Any]:
        """Return the next answer. Raises LaunchError, and ends a process that does not answer."""
        try:
            line = self._answers.get(timeout=CALL_SECONDS)
        except queue.Empty:
            self._end()
            raise LaunchError(
                f"Ray at {self._address} does not answer within {CALL_SECONDS:g} s: look at `ray status` on its head"
            ) from None
        if not line:
            raise self._lost()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise LaunchError(self._explained(answer))
        return answer

    def _explained(self, answer: Mapping[str, str]) -> str:
        said = answer["error"]
        if answer["kind"] == "no ray":
            return f"{self._python} has no Ray: set the option python to the interpreter of the cluster's Ray"
        if answer["kind"] == "no cluster":
            return (
                f"Ray at {self._address} cannot be reached ({said}): start it, set the option address, and let python be the interpreter of the"
                " cluster's versions, on a machine of the cluster"
            )
        return f"Ray at {self._address} refused: {said}; look at `ray status` there"

    def _lost(self) -> LaunchError:
        said = ""
        if self._log is not None:
            self._log.seek(0)
            said = " ".join(self._log.read()[-500:].split())
        self._end()
        return LaunchError(
            f"the process that speaks to Ray at {self._address} has ended: {said or 'it wrote nothing'};"
            " is the head of the cluster alive, and is the option python the interpreter of its Ray?"
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        log, self._log = self._log, None
        if log is not None:
            log.close()
        if process is None:
            return
        if process.stdin is not None:
            with suppress(OSError):  # it has ended already
                process.stdin.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
