"""The code of another version beside that of this tree, each with an interpreter that imports it.

An interpreter is a virtual environment of four small files: its ``.pth`` names the code first, then the packages of the running
interpreter. So a version runs with the dependencies of the present one; what its lock names beside these is installed for it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from tangram_web.supervisor import stack

#: Module of a program → its words, and what 0.1.0 has in their place.
_SINCE_0_1_0: Final = {
    "tangram_web/__main__.py": (["-m", "tangram_web", "setup", "--local-pool"], ["manage.py", "setup"]),
    "tangram_web/serving/protocol.py": (["--http", "tangram_web.serving.protocol:LimitedHttp"], []),
}  # fmt: skip


@dataclass(frozen=True)
class CodeTree:
    """The folder of a version's code, and the interpreter that imports it."""

    folder: Path
    python: str

    def command(self, words: Sequence[str]) -> list[str]:
        """Return a command of the running interpreter as one of this tree, with the programs that 0.1.0 has."""
        given = list(words)
        for name, (present, former) in _SINCE_0_1_0.items():
            at = next(
                (n for n in range(len(given)) if given[n : n + len(present)] == present), None
            )
            if at is not None and not (self.folder / name).exists():
                given[at : at + len(present)] = former
        return [self.python if word == sys.executable else word for word in given]


PRESENT = CodeTree(stack.ROOT, sys.executable)


class NoSuchCode(Exception):
    """A revision or a folder that is not there; the message names the cure."""


def code_of(where: str, folder: Path) -> CodeTree:
    """Return the code of a revision of this repository, or of another checkout, with an interpreter in ``folder``.

    Raises NoSuchCode.
    """
    given = Path(where)
    tree = given.resolve() if (given / "manage.py").is_file() else extract(where, folder / "code")
    packages = _install_missing(tree, folder / "packages")
    return CodeTree(tree, interpreter(folder / "python", tree, packages))


def interpreter(folder: Path, tree: Path, *more: Path) -> str:
    """Make an interpreter that imports the code in ``tree``, then packages of ``more`` folders; one that is there imports it from its next start on."""
    base = Path(os.path.realpath(sys.executable))
    installed = Path(sysconfig.get_path("purelib"))
    site = folder / installed.relative_to(sys.prefix)
    site.mkdir(parents=True, exist_ok=True)
    (site / "code.pth").write_text("".join(f"{each}\n" for each in (tree, *more, installed)))
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    program = folder / "bin" / "python"
    program.parent.mkdir(exist_ok=True)
    if not program.exists():
        program.symlink_to(base)
    return str(program)


def extract(revision: str, folder: Path) -> Path:
    """Write the files of a revision into a folder that is made.

    Raises NoSuchCode.
    """
    folder.mkdir(parents=True)
    git = subprocess.run(
        ["git", "-C", str(stack.ROOT), "archive", revision], capture_output=True, check=False
    )
    if git.returncode:
        raise NoSuchCode(
            f"{revision} is neither a checkout nor a revision of this repository: {git.stderr.decode().strip()};"
            " a shallow clone has no earlier ones until git fetch --unshallow"
        )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=git.stdout, check=True)
    return folder


def _install_missing(tree: Path, folder: Path) -> Path:
    """Install what the lock of a version names and the running interpreter has not."""
    lock = (tree / "requirements" / "core.lock").read_text()
    pins = map(Requirement, re.findall(r"^[\w.-]+==[^\\\n]+", lock, re.MULTILINE))
    needed = [pin for pin in pins if pin.marker is None or pin.marker.evaluate()]
    missing = [f"{pin.name}{pin.specifier}" for pin in needed if not _is_installed(pin.name)]
    if missing:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*pip, "--no-deps", "--target", str(folder), *missing], check=True)
    return folder


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
