"""A machine of the Kubernetes of tests: a kubelet with a Docker Engine of its own, and pods that use the programs of this machine."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

from tests.architecture.tree import ROOT
from tests.docker_engine import DockerEngine, unmount_below
from tests.kubernetes_build import folder
from tests.ports import free_port

#: An image without programs: pods mount those of this machine.
IMAGE: Final = "tangram-tests-host:1"
_PAUSE: Final = "tangram-tests-pause:1"
_LINKS: Final = ("bin", "sbin", "lib", "lib64")
_FILES: Final = ("passwd", "group", "nsswitch.conf", "ld.so.cache")
#: An OCI runtime. Kubelet and Docker give containers what a root user may do elsewhere, but not on a machine without CAP_SYS_RESOURCE:
#: a lower score for the OOM killer than their own, and with `privileged` that capability.
_RUNTIME: Final = """
import json, os, sys
if "create" in sys.argv:
    path = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    with open(path) as file:
        config = json.load(file)
    with open("/proc/self/oom_score_adj") as file:
        own = int(file.read())
    with open("/proc/self/status") as file:
        (held,) = [int(line.split()[1], 16) for line in file if line.startswith("CapEff:")]
    process = config["process"]
    process["oomScoreAdj"] = max(own, process.get("oomScoreAdj", own))
    if not held >> 24 & 1:
        for names in process["capabilities"].values():
            names[:] = [name for name in names if name != "CAP_SYS_RESOURCE"]
    with open(path, "w") as file:
        json.dump(config, file)
os.execvp("runc", ["runc", *sys.argv[1:]])
"""

#: Of the folder of a cluster.
PREFIX: Final = "tangram-kubernetes-"
#: All kubelets of a machine have these, whatever their settings.
LOGS: Final = Path("/var/log/pods")
_PLUGINS: Final = Path("/var/lib/kubelet/device-plugins")

Object = dict[str, Any]


class KubernetesMachine:
    """One kubelet of this machine, with all its cores."""

    def __init__(self, name: str, directory: Path, kubeconfig: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._at = directory / name
        self._kubeconfig = kubeconfig
        runtime = self._at / "runtime"
        # With another driver of logs the kubelet has no links to them in /var/log, which all kubelets of a machine share.
        self._engine = DockerEngine(
            options=("--add-runtime", f"tests={runtime}", "--default-runtime", "tests", "--log-driver=local")
        )  # fmt: skip
        self._kubelet: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the engine and the kubelet. Raises RuntimeError beside another Kubernetes: both would use folders of the system."""
        others = [each.pid for each in _kubelets() if not _is_of_tests(each.info["cmdline"])]
        if others:
            raise RuntimeError(f"a kubelet runs on this machine (process {others[0]})")
        self._at.mkdir()
        runtime = self._at / "runtime"
        (self._at / "runtime.py").write_text(_RUNTIME)
        runtime.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {runtime}.py "$@"\n')
        runtime.chmod(0o755)
        self._engine.start()
        with self._engine.client() as client:
            for image, content, changes in ((IMAGE, _host_image(), []), (_PAUSE, _pause_image(), ['ENTRYPOINT ["/pause"]'])):  # fmt: skip
                name, tag = image.split(":")
                client.import_image_from_data(content, name, tag, changes=changes)
        self.start_kubelet()

    def start_kubelet(self) -> None:
        """Start the kubelet; containers that run go on."""
        at = self._at
        config = at / "kubelet.yaml"
        config.write_text(yaml.safe_dump(_settings(at)))
        command = [
            str(folder() / "kubelet"), f"--config={config}", f"--kubeconfig={self._kubeconfig}", f"--root-dir={at / 'kubelet'}", f"--cert-dir={at / 'pki'}",
            f"--hostname-override={self.name}", f"--node-labels=zone={'a' if self.name.endswith('-1') else 'b'}", "--container-runtime=docker",
            f"--docker-endpoint={self._engine.host}", f"--docker={self._engine.host}", f"--pod-infra-container-image={_PAUSE}",
            f"--container-runtime-endpoint=unix://{at / 'dockershim.sock'}", f"--experimental-dockershim-root-directory={at / 'dockershim'}",
            f"--seccomp-profile-root={at / 'seccomp'}",
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self._kubelet = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=at
            )  # fmt: skip

    def kill_kubelet(self) -> None:
        """End the kubelet as a crash does: the machine does not answer, and its containers go on."""
        if self._kubelet is not None:
            self._kubelet.kill()
            self._kubelet.wait()

    def stop(self) -> None:
        """Stop the kubelet, all containers and the engine."""
        self.kill_kubelet()
        self._engine.stop()
        unmount_below(self._at)


def host_pod(*shared: Path) -> Object:
    """Return the specification of a pod whose one container, ``node``, has Python, Tangram and the network of this machine.

    ``shared``: further folders that it may write.
    """
    folders = [
        *dict.fromkeys([Path("/usr"), Path(sys.base_prefix), Path(sys.prefix), ROOT, *shared])
    ]
    outer = [each for each in folders if not any(each != other and each.is_relative_to(other) for other in folders)]  # fmt: skip
    volumes = [{"name": f"host-{number}", "hostPath": {"path": str(each)}} for number, each in enumerate(outer)]  # fmt: skip
    mounts = [
        {"name": f"host-{number}", "mountPath": str(each)} for number, each in enumerate(outer)
    ]
    return {
        "hostNetwork": True, "terminationGracePeriodSeconds": 10, "enableServiceLinks": False,
        "containers": [{"name": "node", "image": IMAGE, "imagePullPolicy": "Never", "volumeMounts": mounts}],
        "volumes": volumes,
    }  # fmt: skip


def remove_folders_of_kubelets() -> None:
    """Remove what the last kubelet of the machine has left in folders of the system."""
    if _kubelets():
        return
    for name in ("DEPRECATION", "kubelet.sock", "kubelet_internal_checkpoint"):
        (_PLUGINS / name).unlink(missing_ok=True)
    for path in (_PLUGINS, _PLUGINS.parent, LOGS, LOGS.with_name("containers")):
        with contextlib.suppress(OSError):
            path.rmdir()


def _kubelets() -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["name", "cmdline"]) if each.info["name"] == "kubelet"]  # fmt: skip


def _is_of_tests(command: list[str] | None) -> bool:
    return any(word.startswith("--config=") and PREFIX in word for word in command or ())


def _settings(at: Path) -> Object:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "address": "127.0.0.1", "port": free_port(), "readOnlyPort": 0, "healthzPort": 0,
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs", "cgroupsPerQOS": False, "enforceNodeAllocatable": [], "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        # This machine may be nearly full without being short of anything.
        "evictionHard": {"nodefs.available": "1Mi"}, "imageGCHighThresholdPercent": 100,
        "volumePluginDir": str(at / "plugins"), "nodeStatusUpdateFrequency": "2s", "syncFrequency": "5s", "nodeLeaseDurationSeconds": 10,
        "featureGates": {"ProcMountType": True},
    }  # fmt: skip


def _host_image() -> bytes:
    links = [(name, os.readlink(f"/{name}")) for name in _LINKS if Path(f"/{name}").is_symlink()]
    files = [(f"etc/{name}", Path("/etc", name).read_bytes()) for name in _FILES]
    return _archive(files, links)


def _pause_image() -> bytes:
    return _archive([("pause", (folder() / "pause").read_bytes())], [])


def _archive(files: Iterable[tuple[str, bytes]], links: Iterable[tuple[str, str]]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        temporary = tarfile.TarInfo("tmp")
        temporary.type, temporary.mode = tarfile.DIRTYPE, 0o1777
        archive.addfile(temporary)
        for name, target in links:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        for name, data in files:
            file = tarfile.TarInfo(name)
            file.size, file.mode = len(data), 0o755
            archive.addfile(file, io.BytesIO(data))
    return content.getvalue()
