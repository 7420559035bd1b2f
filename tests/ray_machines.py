"""A real Ray of several raylets on this machine, each standing for a machine. Ray has a virtual environment of its own.

This module is imported by tests, and run by the Python of Ray: there it starts the cluster and obeys lines of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

#: Processes for tasks are not started before there are tasks.
_SETTINGS = {
    "RAY_prestart_worker_first_driver": "0",
    # A busy machine of tests answers late.
    "RAY_gcs_rpc_server_connect_timeout_s": "60",
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_enable_metrics_collection": "0",
}
#: The least that Ray accepts.
_STORE_BYTES = 80 * 2**20


class RayMachines:
    """A head without cores, and machines that come and go."""

    def __init__(self, python: Path) -> None:
        """``python``: that of Ray's environment."""
        self.python = python
        # Paths of sockets have at most 107 bytes, so Ray gets its default folder in any run.
        kept = {
            n: v for n, v in os.environ.items() if not n.startswith(("TANGRAM_", "PYTHON", "TMP"))
        }
        self._process = subprocess.Popen(
            [str(python), "-I", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**kept, **_SETTINGS}
        )  # fmt: skip
        self.address: str = self._answer()

    def add(self, name: str, **fields: Any) -> None:
        """Start a machine: ``num_cpus``, ``resources``, ``labels`` …"""
        self._ask("add", name=name, fields=fields)

    def kill(self, name: str) -> None:
        """Kill the raylet of a machine, as a lost machine does."""
        self._ask("kill", name=name)

    def drain(self, name: str, seconds: float) -> None:
        """Let Ray announce that a machine will be taken away."""
        self._ask("drain", name=name, seconds=seconds)

    def free(self, name: str) -> dict[str, float]:
        """Return what Ray may still schedule on a machine."""
        found: dict[str, float] = self._ask("free", name=name)
        return found

    def kill_actor(self, name: str) -> None:
        """Kill an actor for good, as an operator may."""
        self._ask("kill_actor", name=name)

    def close(self) -> None:
        """End the cluster."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(120)
        self._process.stdout.close()

    def _ask(self, verb: str, **request: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"verb": verb, **request}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process of the cluster has ended"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["answer"]


class _RealCluster:
    """The cluster, in the process that runs under Ray's Python."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        # What only watches is left out; it takes a core for seconds.
        head = {"num_cpus": 0, "include_dashboard": False, "no_monitor": True}
        head |= {"include_log_monitor": False, "object_store_memory": _STORE_BYTES}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._machines: dict[str, Any] = {}

    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, name: str, fields: dict[str, Any]) -> None:
        self._machines[name] = self._cluster.add_node(
            node_name=name, object_store_memory=_STORE_BYTES, **fields
        )

    def kill(self, name: str) -> None:
        raylet = self._machines[name].all_processes["raylet"][0].process
        os.kill(raylet.pid, signal.SIGKILL)
        raylet.wait()

    def drain(self, name: str, seconds: float) -> None:
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "drain-node", f"--address={self.address()}", f"--node-id={self._machines[name].node_id}",
            "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=a test", f"--deadline-remaining-seconds={seconds:.0f}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)

    def free(self, name: str) -> Any:
        from ray._private.state import state

        self._connect()
        return state.available_resources_per_node().get(self._machines[name].node_id, {})

    def kill_actor(self, name: str) -> None:
        import ray

        self._connect()
        ray.kill(ray.get_actor(name, namespace="tangram"), no_restart=True)

    def _connect(self) -> None:
        import ray

        ray.init(
            self.address(), ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR"
        )

    def close(self) -> None:
        self._cluster.shutdown()


def _main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is no answer
    cluster = _RealCluster()
    answer: dict[str, Any] = {"answer": cluster.address()}
    try:
        while True:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
            line = sys.stdin.readline()
            if not line:
                return
            request = json.loads(line)
            try:
                answer = {"answer": getattr(cluster, request.pop("verb"))(**request)}
            except Exception as error:  # whatever it is, the test shows it
                answer = {"error": repr(error)}
    finally:
        cluster.close()


if __name__ == "__main__":
    _main()
