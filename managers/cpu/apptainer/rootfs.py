"""Root file systems from the definitions of Apptainer: the same image for nodes that run bubblewrap.

    python -m managers.cpu.apptainer.rootfs /srv/definitions swe:django-1 swe.tar
    tangram image import swe:django-1 swe.tar

Understood are the bootstrap agents ``scratch`` (an empty tree), ``debootstrap`` (by mmdebstrap) and ``localimage`` (a folder or
an archive), and the sections ``%files``, ``%environment`` and ``%post``. ``%post`` runs by bubblewrap in the new tree as its
root, with the network of the host, as Apptainer runs it. ``%setup`` is refused: it runs on the host, and ``%files`` does what
it is used for. Sections that say how a container is started or described change no file of it.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from domain.errors import InvalidRequest, TangramError, Unavailable
from managers.cpu.apptainer.builder import variables_of
from managers.cpu.apptainer.definitions import BOOTSTRAP, Definition, Definitions
from managers.cpu.process.bubblewrap import find_bubblewraps
from managers.cpu.process.invocation import PATH

#: Where Apptainer stores what ``%environment`` says.
ENVIRONMENT: Final = ".singularity.d/env/90-environment.sh"
_DIRECTORIES: Final = (
    "dev",
    "etc",
    "home",
    "proc",
    "root",
    "run",
    "tmp",
    "usr",
    "var/tmp",
    "workspace",
)
_REFUSED: Final = "setup"
_AGENTS: Final = ("scratch", "debootstrap", "localimage")
_ROOT: Final = (
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--uid", "0", "--gid", "0",
    "--cap-add", "ALL", "--die-with-parent", "--proc", "/proc", "--dev", "/dev",
    "--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf", "--chdir", "/", "--clearenv",
    "--setenv", "PATH", PATH, "--setenv", "HOME", "/root",
)  # fmt: skip


class RootfsBuilder:
    """Makes root file systems; its methods block."""

    def __init__(self, output: IO[bytes], bubblewrap: str = "") -> None:
        """``output`` gets what the programs of a build say. Raises Unavailable without a bubblewrap."""
        self._output = output
        if not bubblewrap:
            found = find_bubblewraps()
            if not found:
                raise Unavailable("bubblewrap is not installed, by which %post runs")
            bubblewrap = found[0].program
        self._bubblewrap = bubblewrap

    def build(self, definition: Definition, tree: Path) -> None:
        """Fill the empty or missing folder ``tree``. Raises InvalidRequest, Unavailable, OSError."""
        if any(definition.of(_REFUSED)):
            raise InvalidRequest(
                f"definition of {definition.image}: %setup runs on the host and is refused: use %files"
            )
        self._begin(definition, tree)
        for name in _DIRECTORIES:
            (tree / name).mkdir(parents=True, exist_ok=True)
        for name in ("tmp", "var/tmp"):
            os.chmod(tree / name, 0o1777)
        for source, target in definition.files():
            _copy(source, tree, target, definition.image)
        environment = "".join(each.body for each in definition.of("environment"))
        place = tree / ENVIRONMENT
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"#!/bin/sh\n{environment}")
        for section in definition.of("post"):
            self._run("%post", ["/bin/sh", "-e", "-c", section.body], tree)

    def variables(self, tree: Path) -> dict[str, str]:
        """Return what ``%environment`` sets, by a shell of the tree."""
        script = f". /{ENVIRONMENT}; echo tangram-variables; env -0"
        words = [self._bubblewrap, "--bind", str(tree), "/", *_ROOT, "/bin/sh", "-c", script]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return variables_of(done.stdout)

    def _begin(self, definition: Definition, tree: Path) -> None:
        header = definition.header
        agent = header.get(BOOTSTRAP, "")
        if agent not in _AGENTS:
            raise InvalidRequest(
                f"definition of {definition.image}: Bootstrap: {agent} needs Apptainer; for bubblewrap use"
                f" {', '.join(_AGENTS)}"
            )
        tree.mkdir(parents=True, exist_ok=True)
        os.chmod(tree, 0o755)
        if agent == "debootstrap":
            self._run("debootstrap", debootstrap_words(header, tree))
        elif agent == "localimage":
            source = definition.folder / header.get("from", "")
            if source.is_dir():
                self._run(
                    "copy", ["cp", "--archive", "--no-target-directory", str(source), str(tree)]
                )
            else:
                self._run("unpacking", ["tar", "-xpf", str(source), "-C", str(tree)])

    def _run(self, name: str, words: Sequence[str], tree: Path | None = None) -> None:
        if tree is not None:
            words = [self._bubblewrap, "--bind", str(tree), "/", *_ROOT, *words]
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode:
            raise Unavailable(f"{name} failed with status {done.returncode}")


def debootstrap_words(header: Mapping[str, str], tree: Path) -> list[str]:
    """Return the command line that installs a distribution; it needs no root."""
    words = ["mmdebstrap", "--mode=auto", "--variant=minbase", "--format=directory"]
    if header.get("include"):
        words.append(f"--include={','.join(header['include'].replace(',', ' ').split())}")
    mirror = [header["mirrorurl"]] if header.get("mirrorurl") else []
    return [*words, header.get("osversion", ""), str(tree), *mirror]


def _copy(source: Path, tree: Path, target: str, image: str) -> None:
    """Copy files of the host as ``%files`` does: links are followed. Raises InvalidRequest."""
    inside = os.path.normpath(f"/{target}").lstrip("/")
    found = sorted(glob.glob(str(source)))
    if not found:
        raise InvalidRequest(f"definition of {image}: %files: {source} is not on this machine")
    for each in found:
        place = tree / inside
        if target.endswith("/") or (place.is_dir() and not os.path.isdir(each)) or len(found) > 1:
            place = place / os.path.basename(each)
        place.parent.mkdir(parents=True, exist_ok=True)
        if os.path.isdir(each):
            shutil.copytree(each, place, dirs_exist_ok=True)
        else:
            shutil.copy2(each, place)


def pack(tree: Path, variables: Mapping[str, str], target: Path) -> None:
    """Write a root file system as ``docker save`` would: `tangram image import` takes it with its variables."""
    config = json.dumps(
        {"config": {"Env": [f"{name}={value}" for name, value in variables.items()]}}
    ).encode()
    digest = hashlib.sha256(config).hexdigest()
    manifest = json.dumps(
        [{"Config": f"{digest}.json", "Layers": [f"{digest}/layer.tar"]}]
    ).encode()
    with tempfile.TemporaryFile(dir=target.parent) as layer:
        with tarfile.open(fileobj=layer, mode="w") as archive:
            archive.add(tree, ".", filter=_without_devices)
        size = layer.tell()
        layer.seek(0)
        with tarfile.open(target, "w") as archive:
            for name, content in ((f"{digest}.json", config), ("manifest.json", manifest)):
                with tempfile.TemporaryFile() as file:
                    file.write(content)
                    file.seek(0)
                    archive.addfile(_member(name, len(content)), file)
            archive.addfile(_member(f"{digest}/layer.tar", size), layer)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    return member


def _without_devices(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.isdev() else member


def main(arguments: Sequence[str]) -> int:
    """Build the image of a definition as an archive."""
    if len(arguments) != 3:
        sys.stderr.write("usage: python -m managers.cpu.apptainer.rootfs FOLDER IMAGE ARCHIVE\n")
        return 2
    folder, image, target = arguments
    try:
        definition = Definitions(Path(folder)).find(image)
        if definition is None:
            raise InvalidRequest(f"{folder} has no definition of {image!r}")
        builder = RootfsBuilder(sys.stderr.buffer)
        with tempfile.TemporaryDirectory(dir=Path(target).absolute().parent) as place:
            tree = Path(place) / "tree"
            builder.build(definition, tree)
            pack(tree, builder.variables(tree), Path(target))
    except (TangramError, OSError) as error:
        sys.stderr.write(f"tangram: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
