"""The control plane and the kubelet of a real Kubernetes, built from Debian's source for tests.

Debian 12 is the last release whose source package has all that the API server needs; Debian's own packages of it end with kubectl.
It is Kubernetes 1.20, from before the minimum that docs/clusters.md names: what later versions added is not tested by it.

    python -m tests.kubernetes_build        # 5 min of CPU time; 3 GB in a temporary folder while it lasts

`./tangram test --long` does that when they are missing. The programs are kept in a folder of the cache; `TANGRAM_TEST_KUBERNETES` may name another one that has them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.debian_files import cache
from tests.not_run import NotRun

VERSION: Final = "1.20.2"
#: Of Debian 12, of which `apt-get` compares the digests.
SOURCE: Final = ("kubernetes", "1.20.5+really1.20.2-1.1+deb12u1", "bookworm")
PROGRAMS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
#: Debian's, besides those that Docker's tests need.
NEEDED: Final = {"go": "golang-go", "gcc": "gcc libc6-dev", "etcd": "etcd-server", "apt-get": "apt"}
_PACKAGE: Final = "k8s.io/kubernetes"
#: The schema that the API server publishes is in no archive: `make` of Kubernetes writes it.
_SCHEMA: Final = f"{_PACKAGE}/pkg/generated/openapi"
_NO_SCHEMA: Final = re.compile(
    r"vendor/k8s\.io/(code-generator|sample-apiserver|gengo|kube-openapi)/"
)


def folder() -> Path:
    """Return the folder of the programs."""
    named = os.environ.get("TANGRAM_TEST_KUBERNETES")
    return Path(named) if named else cache() / f"kubernetes-{VERSION}"


def skip_without_programs() -> None:
    """Leave a test out, as one that this machine cannot run, where Kubernetes is not built."""
    if missing := _missing():
        raise NotRun(
            f"{', '.join(missing)} not in {folder()}: python -m tests.kubernetes_build builds Kubernetes"
        )
    if missing := [name for name in ("etcd", "dockerd") if shutil.which(name) is None]:
        raise NotRun(f"{', '.join(missing)} not installed")
    if os.geteuid() != 0 or not Path("/sys/fs/cgroup/memory").exists():
        raise NotRun("a kubelet needs root and control groups of version 1")


def _missing() -> list[str]:
    return [name for name in (*PROGRAMS, "pause") if not (folder() / name).exists()]


def build(there: Path) -> None:
    """Build all programs into a folder. Raises RuntimeError with what went wrong."""
    if missing := [package for name, package in NEEDED.items() if shutil.which(name) is None]:
        raise RuntimeError(f"as root: apt-get install {' '.join(missing)}")
    there.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tangram-kubernetes-") as name:
        at = Path(name)
        tree = at / "go" / "src" / _PACKAGE
        _fetch(at, tree)
        _build(at, tree, there)


def _fetch(at: Path, tree: Path) -> None:
    """Fetch the source from the mirror from which this machine installs packages."""
    package, version, release = SOURCE
    targets = _said("apt-get", "indextargets", "--format", "$(SITE)", "Label: Debian", "Created-By: Packages")  # fmt: skip
    site = targets.split()[0]
    sources = at / "sources.list"
    sources.write_text(f"deb-src {site} {release} main\n")
    (at / "lists" / "partial").mkdir(parents=True)
    own = ("-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=/dev/null",
           "-o", f"Dir::State::Lists={at / 'lists'}", "-o", "APT::Sandbox::User=root")  # fmt: skip
    _said("apt-get", "-q", *own, "update")
    _said("apt-get", "-q", *own, "source", "--download-only", f"{package}={version}", at=at)
    (archive,) = at.glob(f"{package}_*.orig.tar.gz")
    tree.mkdir(parents=True)
    _said("tar", "--extract", "--file", str(archive), "--directory", str(tree), "--strip-components=1")  # fmt: skip


def _build(at: Path, tree: Path, there: Path) -> None:
    environment = {
        **os.environ, "GOPATH": str(at / "go"), "GO111MODULE": "off", "CGO_ENABLED": "0",
        "GOCACHE": str(at / "cache"), "GOFLAGS": "",
    }  # fmt: skip
    vendor = f"{_PACKAGE}/vendor/k8s.io"
    generator = str(at / "openapi-gen")
    go = ("nice", "-n", "10", "go", "build")
    _said(*go, "-o", generator, f"{vendor}/kube-openapi/cmd/openapi-gen", at=tree, environment=environment)  # fmt: skip
    _said(
        generator, "--logtostderr", "-i", ",".join(_documented(tree)), "-p", _SCHEMA, "-O", "zz_generated.openapi",
        "-h", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt", "-r", str(at / "violations"),
        at=tree, environment=environment,
    )  # fmt: skip
    major, minor, _ = VERSION.split(".")
    facts = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    flags = ["-s", "-w"]
    for package in (f"{vendor}/component-base/version", f"{vendor}/client-go/pkg/version"):
        flags += [f"-X {package}.{name}={value}" for name, value in facts.items()]
    for name in PROGRAMS:
        # Drivers of clouds are a third of the code.
        _said(*go, "-tags", "providerless", "-ldflags", " ".join(flags), "-o", str(at / name), f"{_PACKAGE}/cmd/{name}", at=tree, environment=environment)  # fmt: skip
    _said("gcc", "-Os", "-static", "-o", str(at / "pause"), str(tree / "build/pause/linux/pause.c"))
    for name in (*PROGRAMS, "pause"):
        shutil.move(at / name, there / name)


def _documented(tree: Path) -> list[str]:
    """Return the packages whose types are in the published schema."""
    # Links of vendor/k8s.io lead to staging/, so `grep` gets them with a slash at the end.
    parts = [f"{each.relative_to(tree)}/" for each in (tree / "vendor" / "k8s.io").iterdir() if each.is_dir()]  # fmt: skip
    listed = _said("grep", "-rl", "--include=*.go", "--exclude=*_test.go", "--exclude-dir=testdata",
                   "+k8s:openapi-gen=", *parts, "pkg", "cmd", "plugin", at=tree).split()  # fmt: skip
    folders = {str(Path(each).parent) for each in listed if not _NO_SCHEMA.match(each)}
    return [f"{_PACKAGE}/{each}" for each in sorted(folders)]


def _said(*command: str, at: Path | None = None, environment: Mapping[str, str] | None = None) -> str:  # fmt: skip
    done = subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:6])} …: {done.stderr[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    if _missing():
        build(folder())
    sys.stdout.write(f"{folder()}\n")
