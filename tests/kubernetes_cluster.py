"""A small Kubernetes for tests: etcd, API server, controllers and scheduler on this machine, with machines of `tests.kubernetes_machine`.

All processes are of `tests.kubernetes_build` and Debian, in a folder of their own with free ports; nothing of the system is used or
left. Pods have the network and the programs of this machine (`host_pod`): there is no registry, and no plugin for networks. Volumes are folders, made by the controllers. Network policies are stored, and enforced by no one.

As a program, it runs until it is interrupted: ``python -m tests.kubernetes_cluster MACHINES`` prints the KUBECONFIG to export.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from tests.kubernetes_build import folder
from tests.kubernetes_machine import LOGS, PREFIX, KubernetesMachine, remove_folders_of_kubelets
from tests.ports import free_port

START_WITHIN_SECONDS: Final = 180.0
#: Until a machine that does not answer has a taint; 40 s by default.
SILENT_SECONDS: Final = 16
_ADMIN: Final = "system:masters"
#: Where the controllers make volumes; only theirs is deleted.
_VOLUMES: Final = Path("/tmp/hostpath_pv")

Object = dict[str, Any]


class KubernetesCluster:
    """One cluster. Its machines are ``machine-1`` (label ``zone: a``), ``machine-2``, …"""

    def __init__(self, machines: int = 1) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.directory.chmod(0o755)
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        #: Of an operator who may everything.
        self.token_file = self.directory / "token"
        self.token_file.write_text(secrets.token_hex(16))
        #: The API server signs its own certificate.
        self.ca_file = self.directory / "certificates" / "apiserver.crt"
        self.kubeconfig = self.directory / "kubeconfig"
        self.machines = [KubernetesMachine(f"machine-{number}", self.directory, self.kubeconfig)
                         for number in range(1, machines + 1)]  # fmt: skip
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._client: httpx.Client | None = None

    def start(self) -> KubernetesCluster:
        """Start everything; return when all machines are ready. Raises RuntimeError with the logs."""
        self._write()
        self._start_api()
        self._start_controllers()
        self._until(lambda: self.ask("GET", "/api/v1/namespaces/default/serviceaccounts/default", check=False).is_success, "controllers")  # fmt: skip
        self._make_storage()
        for each in self.machines:
            each.start()
        names = {each.name for each in self.machines}
        self._until(lambda: names <= self.ready(), "machines")
        return self

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        check: bool = True,
        accept: str = "application/json",
        **parameters: str,
    ) -> httpx.Response:
        """Send a request of the operator; a PATCH is one of strategic merge. Raises RuntimeError for a refusal, with ``check``."""
        if self._client is None:
            self._client = httpx.Client(
                base_url=self.url, verify=ssl.create_default_context(cafile=self.ca_file), timeout=60.0, trust_env=False,
                headers={"Authorization": f"Bearer {self.token_file.read_text()}"},
            )  # fmt: skip
        kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        answer = self._client.request(method, path, json=body, params=parameters, headers={"Accept": accept, "Content-Type": kind})  # fmt: skip
        if check and answer.is_error:
            raise RuntimeError(f"{method} {path}: {answer.text}")
        return answer

    def get(self, path: str) -> Object:
        """Return an object, or a list with its ``items``."""
        found: Object = self.ask("GET", path).json()
        return found

    def apply(self, *objects: Object) -> None:
        """Create objects that are not there, in the namespace that they name."""
        for each in objects:
            answer = self.ask("POST", self.path_of(each), each, check=False)
            if answer.is_error and answer.status_code != httpx.codes.CONFLICT:
                raise RuntimeError(f"{each['kind']} {each['metadata']['name']}: {answer.text}")

    def path_of(self, found: Object) -> str:
        """Return the path of the list to which an object belongs."""
        version = found["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        namespace = found["metadata"].get("namespace")
        kind = found["kind"].lower()
        resource = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}{'es' if kind.endswith('s') else 's'}"  # fmt: skip
        return f"{root}/namespaces/{namespace}/{resource}" if namespace else f"{root}/{resource}"

    def token_of(self, namespace: str, account: str) -> str:
        """Return a token of a service account, as `kubectl create token` does."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}  # fmt: skip
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        token: str = self.ask("POST", path, body).json()["status"]["token"]
        return token

    def ready(self) -> set[str]:
        """Return the machines that the API has as ready."""
        return {
            each["metadata"]["name"]
            for each in self.get("/api/v1/nodes")["items"]
            if any(c["type"] == "Ready" and c["status"] == "True" for c in each["status"]["conditions"])
        }  # fmt: skip

    def cordon(self, machine: str, *, cordoned: bool = True) -> None:
        """Let no further pod be placed on a machine, or let them again."""
        self.ask("PATCH", f"/api/v1/nodes/{machine}", {"spec": {"unschedulable": cordoned or None}})

    def stop(self) -> None:
        """Stop all processes with all containers, delete the folder."""
        with contextlib.ExitStack() as ending:  # all of it, whatever one part raises
            ending.callback(shutil.rmtree, self.directory, ignore_errors=True)
            for process in self._processes.values():
                ending.callback(end, process)
            ending.callback(remove_folders_of_kubelets)
            for each in self._left():
                ending.callback(shutil.rmtree, each, ignore_errors=True)
            for machine in self.machines:
                ending.callback(machine.stop)
            if self._client is not None:
                self._client.close()

    def stop_api(self) -> None:
        """Stop the API server; pods go on."""
        end(self._processes.pop("kube-apiserver"))

    def start_api(self) -> None:
        """Start it again with what etcd has."""
        self._start_api_server()

    def logs(self) -> str:
        """Return the last lines of all logs."""
        return "\n".join(
            f"{each.name}:\n" + "\n".join(each.read_text(errors="replace").splitlines()[-15:])
            for each in sorted(self.directory.glob("*.log"))
        )

    def _left(self) -> list[Path]:
        """Return the folders of the system that volumes and logs of pods have."""
        with contextlib.suppress(RuntimeError, httpx.HTTPError, OSError):
            listed = self.get("/api/v1/persistentvolumes")["items"]
            paths = [Path(each["spec"].get("hostPath", {}).get("path", "/")) for each in listed]
            pods = [each["metadata"] for each in self.get("/api/v1/pods")["items"]]
            logs = [LOGS / f"{pod['namespace']}_{pod['name']}_{pod['uid']}" for pod in pods]
            return [each for each in paths if each.is_relative_to(_VOLUMES)] + logs
        return []

    def _write(self) -> None:
        key = self.directory / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)  # fmt: skip
        (self.directory / "tokens.csv").write_text(f"{self.token_file.read_text()},operator,operator,{_ADMIN}\n")  # fmt: skip
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "operator", "user": {"token": self.token_file.read_text()}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "operator"}}],
        }  # fmt: skip
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def _start_api(self) -> None:
        self._etcd, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._start(
            "etcd", f"--data-dir={self.directory / 'etcd'}", f"--listen-client-urls={self._etcd}", f"--advertise-client-urls={self._etcd}",
            f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}", "--unsafe-no-fsync",
        )  # fmt: skip
        self._start_api_server()

    def _start_api_server(self) -> None:
        key = self.directory / "accounts.key"
        self._start(
            "kube-apiserver", f"--etcd-servers={self._etcd}", f"--secure-port={self.port}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none", f"--cert-dir={self.ca_file.parent}", f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=RBAC", "--service-account-issuer=https://tests", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.0.0.0/24", "--allow-privileged=true",
            "--feature-gates=ProcMountType=true",
        )  # fmt: skip
        self._until(self._api_is_ready, "the API server")

    def _api_is_ready(self) -> bool:
        try:
            return self.ca_file.exists() and self.ask("GET", "/readyz", check=False).is_success
        except httpx.HTTPError:
            return False

    def _start_controllers(self) -> None:
        common = (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--port=0", "--bind-address=127.0.0.1")  # fmt: skip
        self._start(
            "kube-controller-manager", *common, f"--secure-port={free_port()}", f"--cert-dir={self.directory / 'controllers'}",
            f"--service-account-private-key-file={self.directory / 'accounts.key'}", f"--root-ca-file={self.ca_file}",
            "--enable-hostpath-provisioner", f"--node-monitor-grace-period={SILENT_SECONDS}s",
        )  # fmt: skip
        self._start("kube-scheduler", *common, f"--secure-port={free_port()}", f"--cert-dir={self.directory / 'scheduler'}")  # fmt: skip

    def _make_storage(self) -> None:
        default = {"storageclass.kubernetes.io/is-default-class": "true"}
        self.apply({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "folders", "annotations": default},
            "provisioner": "kubernetes.io/host-path",
        })  # fmt: skip
        self._until(lambda: bool(self.get("/apis/storage.k8s.io/v1/storageclasses")["items"]), "storage")  # fmt: skip

    def _start(self, name: str, *options: str) -> None:
        program = str(folder() / name) if (folder() / name).exists() else name
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [program, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=self.directory
            )  # fmt: skip

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + START_WITHIN_SECONDS
        while not holds():
            ended = [name for name, each in self._processes.items() if each.poll() is not None]
            if ended or time.monotonic() > ends:
                raise RuntimeError(f"{what} not ready; ended: {ended}\n{self.logs()}")
            time.sleep(0.1)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end; kill it when it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def running_cluster(machines: int = 1) -> Iterator[KubernetesCluster]:
    """Run a cluster while the context lasts."""
    cluster = KubernetesCluster(machines)
    try:
        yield cluster.start()
    finally:
        if os.environ.get("TANGRAM_TEST_KUBERNETES_LOGS"):
            sys.stderr.write(cluster.logs())
        cluster.stop()


def main() -> None:
    """Run a cluster until SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with running_cluster(int(sys.argv[1]) if len(sys.argv) > 1 else 1) as cluster:
        sys.stdout.write(f"export KUBECONFIG={cluster.kubeconfig}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
