"""Environments of the clients that doors serve: one for each file of pins, made once.

``pins/NAME.txt`` names Python distributions, ``pins/NAME.json`` is a ``package.json`` of npm. An environment
is stored below the virtual environment of the tests and is made again when its pins or its Python change.
Three lines of comment at the top of ``pins/NAME.txt`` have a meaning:

    # python: 3.12            the oldest Python that the client runs under; default 3.11
    # with: tangram-client    installs the client of this tree, too; its modules are those of the tree
    # alone: verl==0.9.1      installs it without what it depends on: the test uses modules that need none of it

``python -m tests.doors.environments [NAME …]`` makes them before the tests begin, all without a name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.architecture.tree import ROOT

PINS = Path(__file__).parent / "pins"
_HOME = Path(sys.prefix) / "doors"
#: An index of packages may not answer for a moment: what failed soon is tried again.
_ATTEMPTS, _PAUSE_SECONDS, _SOON_SECONDS = 3, 20.0, 120.0
_OPTION = re.compile(r"^# (python|with|alone): *(\S+)$", re.MULTILINE)
_ENSURES = "import ensurepip, sys, venv; sys.exit(sys.version_info[:2] < ({}))"


class MissingProgram(Exception):
    """The machine has no Python or Node that is new enough for a client."""


def python_of(name: str, pins: Path = PINS, home: Path = _HOME) -> Path:
    """Return the Python of the environment of ``pins/NAME.txt``, which is made if it is missing.

    Raises MissingProgram, RuntimeError with the output of pip.
    """
    file = pins / f"{name}.txt"
    given = _OPTION.findall(file.read_text())
    options, alone = dict(given), [value for name, value in given if name == "alone"]
    python = _python(options.get("python", "3.11"))

    def make(folder: Path) -> None:
        _run([python, "-m", "venv", "--clear", str(folder)])
        own = str(folder / "bin" / "python")
        pip = [own, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-input"]
        # A client imports a small part of what it installs; Python compiles that at its first import.
        pip.append("--no-compile")
        _run([*pip, "-r", str(file)])
        if alone:
            _run([*pip, "--no-deps", *alone])
        if options.get("with") == "tangram-client":
            _install_client(own, pip)

    sources = [file.read_bytes(), _version(python).encode()]
    if "with" in options:
        sources.append((ROOT / "tangram_client" / "pyproject.toml").read_bytes())
    return made_once(home / name, sources, make) / "bin" / "python"


def node_packages_of(name: str, pins: Path = PINS, home: Path = _HOME) -> Path:
    """Return the folder with the ``node_modules`` of ``pins/NAME.json``, made if it is missing.

    Raises MissingProgram, RuntimeError with the output of npm.
    """
    file = pins / f"{name}.json"
    if not (shutil.which("node") and shutil.which("npm")):
        raise MissingProgram(f"the JavaScript client of pins/{name}.json needs node and npm")

    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        shutil.copy(file, folder / "package.json")
        quiet = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
        _run(["npm", "install", *quiet, "--prefix", str(folder)])

    return made_once(home / f"{name}-js", [file.read_bytes()], make)


def made_once(folder: Path, sources: Sequence[bytes], make: Callable[[Path], None]) -> Path:
    """Make a folder unless it was made from the same sources; runs at once make it one after the other."""
    key = hashlib.sha256(b"\0".join(sources)).hexdigest()
    mark = folder / ".made-from"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists() or mark.read_text() != key:
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            mark.write_text(key)
    return folder


def _install_client(python: str, pip: Sequence[str]) -> None:
    """Install the client as users do, entry points included; then use the modules of the tree."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tangram_client"
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
        shutil.copytree(ROOT / "tangram_client", copy, ignore=ignored)
        _run([*pip, str(copy)])
    site = _run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    installed = Path(site) / "tangram_client"
    shutil.rmtree(installed)
    installed.symlink_to(ROOT / "tangram_client")


def _python(oldest: str) -> str:
    for candidate in _candidates():
        check = [candidate, "-c", _ENSURES.format(oldest.replace(".", ", "))]
        try:
            found = subprocess.run(check, capture_output=True, check=False).returncode == 0
        except OSError:
            continue
        if found:
            return candidate
    raise MissingProgram(f"the client needs Python {oldest} or newer")


def _candidates() -> Iterator[str]:
    yield sys.executable
    yield from (f"python3.{minor}" for minor in (12, 13, 14))
    # A version of pyenv that is not chosen here is no program of PATH.
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob("versions/3.1[2-9].*/bin/python")))


def _version(python: str) -> str:
    return _run([python, "-c", "import sys; print(sys.base_prefix, sys.version)"])


def _run(command: Sequence[str]) -> str:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TANGRAM_", "PYTHON"))
    }
    done = subprocess.run(
        command, cwd="/", env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-4000:]
        raise RuntimeError(f"{' '.join(command[:4])} … ended with {done.returncode}:\n{said}")
    return done.stdout


def _made(file: Path) -> tuple[str, bool]:
    """Make one environment; return the line that says so, and whether that failed."""
    for left in reversed(range(_ATTEMPTS)):
        began = time.monotonic()
        try:
            (python_of if file.suffix == ".txt" else node_packages_of)(file.stem)
        except MissingProgram as missing:
            return f"{file.name}: not made: {missing}", False
        except RuntimeError as error:
            if not left or time.monotonic() - began > _SOON_SECONDS:
                return f"{file.name}: {error}", True
            time.sleep(_PAUSE_SECONDS)
        else:
            break
    return f"{file.name}: ready", False


def _main(names: Sequence[str]) -> int:
    files = [file for file in sorted(PINS.iterdir()) if not names or file.stem in names]
    failed = False
    # Each is made by processes of its own, so the cores can be shared.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for line, this_failed in pool.map(_made, files):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
            failed |= this_failed
    return int(failed)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
