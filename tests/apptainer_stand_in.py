"""Stand-in for Apptainer: records each call, accepts the options of its documentation alone, and runs it by bubblewrap.

    program = install(directory)        DIRECTORY/apptainer, to be first in PATH
    calls(directory)                    what was called, in order

What it imitates, as far as the driver depends on it: an outer process with a helper beside process 1 (as a driver of a file
system), no descriptors but the first three, an overlay folder with ``upper`` and ``work``, read-only overlays of which a later
one is above, an image that is a file, variables of ``/.singularity.d/env``, ``build`` with a definition. A file that ``build``
makes begins like a SIF file and goes on as a tar of the root file system.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VERSION = "1.3.4"
#: Options of ``apptainer exec`` in its manual page that take no value, and those that take one.
FLAGS = frozenset(
    "--fakeroot --containall --contain --cleanenv --no-home --no-eval --no-init --net --uts --pid --ipc --nv --rocm"
    " --userns --writable --writable-tmpfs --no-privs --no-umask --ignore-subuid".split()
)
VALUES = frozenset(
    "--bind --mount --overlay --network --no-mount --pwd --cwd --home --hostname --env --security".split()
)
_NO_MOUNTS = frozenset("proc sys dev devpts home tmp hostfs cwd bind-paths".split())
_PART_BYTES = 3000
#: What a call of ``exec`` imports.
_OWN_CODE = (
    "tests/apptainer_stand_in.py", "managers/__init__.py", "managers/cpu/__init__.py",
    "managers/cpu/process/__init__.py", "managers/cpu/process/seccomp.py",
)  # fmt: skip
_MAGIC = b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0"
_ENVIRONMENT = 'for file in /.singularity.d/env/*.sh; do if [ -r "$file" ]; then . "$file"; fi; done; exec "$@"'


def install(directory: Path, version: str = VERSION, *, for_others: bool = False) -> Path:
    """Write the program below a directory; return its path.

    ``for_others``: with a copy of what it needs and the Python of the system, since another user may be unable to read ours.
    """
    from managers.cpu.process.bubblewrap import find_bubblewraps

    directory.mkdir(parents=True, exist_ok=True)
    newest = max(find_bubblewraps(), key=lambda each: each.version)
    root, python, bubblewrap = ROOT, sys.executable, newest.program
    if for_others:
        root, python = directory / "code", "/usr/bin/python3"
        for name in _OWN_CODE:
            _copy(ROOT / name, root / name)
    program = directory / "apptainer"
    program.write_text(
        f"#!{python} -IS\nimport sys\nsys.path.insert(0, {str(root)!r})\n"
        f"from tests.apptainer_stand_in import main\n"
        f"sys.exit(main({str(directory)!r}, {version!r}, {bubblewrap!r}))\n"
    )
    program.chmod(0o755)
    return program


def _copy(source: Path, target: Path) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())
    target.chmod(0o755)
    return str(target)


def calls(directory: Path, verb: str = "") -> list[dict[str, Any]]:
    """Return the recorded calls: ``argv`` without the program, ``env``, ``cwd``."""
    found = []
    for done in sorted((directory / "calls").glob("*.done")):  # not one that is being written
        parts = sorted(done.parent.glob(f"{done.stem}.[0-9]*"))
        found.append(json.loads("".join(path.read_text() for path in parts)))
    return [each for each in found if not verb or each["argv"][:1] == [verb]]


def is_sif(path: Path) -> bool:
    """Say whether a file begins as a SIF file does."""
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def main(directory: str, version: str, bubblewrap: str) -> int:
    """Do one call."""
    arguments = sys.argv[1:]
    place = Path(directory)
    call = {"argv": arguments, "env": dict(os.environ), "cwd": os.getcwd()}
    _record(place / "calls", json.dumps(call))
    if arguments == ["--version"]:
        _say(f"apptainer version {version}")
        return 0
    if arguments[:1] == ["build"]:
        return _build(arguments[1:], bubblewrap)
    if arguments[:1] == ["exec"]:
        return _exec(place, arguments[1:], bubblewrap)
    return _fatal(f"unknown command {arguments[:1]}")


def _record(folder: Path, call: str) -> None:
    """Store a call in files that pass no limit which a driver sets on the size of files."""
    folder.mkdir(exist_ok=True)
    name = f"{time.time_ns()}-{os.getpid()}"
    for number, start in enumerate(range(0, len(call), _PART_BYTES)):
        (folder / f"{name}.{number:02}").write_text(call[start : start + _PART_BYTES])
    (folder / f"{name}.done").touch()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _fatal(text: str) -> int:
    sys.stderr.write(f"FATAL:   {text}\n")
    return 255


def parse(arguments: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return options with their values, and the rest. Raises ValueError for what Apptainer refuses."""
    options = []
    words = list(arguments)
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word in VALUES:
            options.append((word, words.pop(0)))
        elif word in FLAGS:
            options.append((word, ""))
        else:
            raise ValueError(f"unknown flag: {word}")
    for word, value in options:
        if word == "--no-mount" and not set(value.split(",")) <= _NO_MOUNTS:
            raise ValueError(f"unknown mount type in {value}")
        if word == "--network" and value != "none":
            raise ValueError(f"network {value} is not permitted to unprivileged users")
    names = {word for word, _ in options}
    if "--network" in names and "--net" not in names:
        raise ValueError("--network requires --net")
    return options, words


def _build(arguments: list[str], bubblewrap: str) -> int:
    import site
    import tarfile
    import tempfile

    # Left out of other calls, which are many: it takes longer than they do.
    site.main()
    from domain.errors import TangramError
    from managers.cpu.apptainer.definitions import parse_definition
    from managers.cpu.apptainer.rootfs import RootfsBuilder

    options, (target, source) = parse(arguments)
    if options != [("--fakeroot", "")]:
        return _fatal("this stand-in builds with --fakeroot alone")
    _say("INFO:    Starting build...")
    with tempfile.TemporaryDirectory(dir=os.environ.get("APPTAINER_TMPDIR")) as place:
        tree = Path(place) / "rootfs"
        try:
            definition = parse_definition("definition", Path(source).read_text(), Path.cwd())
            RootfsBuilder(sys.stdout.buffer, bubblewrap).build(definition, tree)
        except TangramError as error:
            return _fatal(f"While performing build: {error}")
        with open(target, "xb") as file:
            file.write(_MAGIC)
            with tarfile.open(fileobj=file, mode="w|") as archive:
                archive.add(tree, ".")
    _say(f"INFO:    Build complete: {target}")
    return 0


def _exec(place: Path, arguments: list[str], bubblewrap: str) -> int:
    try:
        options, (image, *command) = parse(arguments)
        root = _root(place, Path(image))
        handles = _filter(options)
        words = [bubblewrap, *_isolation(options), *_overlays(options, root), *_mounts(options)]
        words += [word for each in handles for word in ("--seccomp", str(each))]
    except (ValueError, OSError) as error:
        return _fatal(str(error))
    inside = ["/bin/sh", "-c", _ENVIRONMENT, "sh", *command]
    # As the driver of a file system: it ends when the container does.
    helper = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    container = subprocess.Popen(
        [*words, "--", *inside], env={"PATH": os.defpath}, pass_fds=handles
    )
    code = container.wait()
    helper.communicate()
    return 128 - code if code < 0 else code


def _root(place: Path, image: Path) -> Path:
    """Return the folder of an image; a file is unpacked once."""
    if image.is_dir():
        return image
    if not is_sif(image):
        raise ValueError(f"could not open image {image}: image format not recognized")
    import shutil
    import tarfile
    import tempfile

    facts = image.stat()
    folder = place / "mounted" / f"{facts.st_ino}-{facts.st_mtime_ns}"
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=folder.parent))
        with open(image, "rb") as file:
            file.seek(len(_MAGIC))
            with tarfile.open(fileobj=file, mode="r|") as archive:
                archive.extractall(draft, filter="fully_trusted")
        try:
            draft.rename(folder)
        except OSError:  # another call was faster
            shutil.rmtree(draft)
    return folder


def _isolation(options: list[tuple[str, str]]) -> list[str]:
    names = {word for word, _ in options}
    words = ["--unshare-user", "--unshare-cgroup-try", "--clearenv"]
    if "--fakeroot" in names:
        words += ["--uid", "0", "--gid", "0", "--cap-add", "ALL"]
    if "--containall" in names:
        words += ["--unshare-pid", "--unshare-ipc"]
    if "--uts" in names:
        words += ["--unshare-uts"]
    if "--net" in names:
        words += ["--unshare-net"]
    for name, value in (
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("HOME", "/root"),
        ("LD_LIBRARY_PATH", "/.singularity.d/libs"), ("APPTAINER_CONTAINER", "image"),
    ):  # fmt: skip
        words += ["--setenv", name, value]
    return words


def _filter(options: list[tuple[str, str]]) -> list[int]:
    """Return a descriptor of the filter that a profile asks for; none without one. Raises ValueError."""
    from managers.cpu.process.seccomp import REFUSED, own_program

    chosen = dict(options).get("--security", "")
    if not chosen:
        return []
    kind, _, path = chosen.partition(":")
    profile = json.loads(Path(path).read_text())
    names = {name for rule in profile["syscalls"] for name in rule["names"]}
    if (
        kind != "seccomp"
        or not names >= set(REFUSED)
        or profile["defaultAction"] != "SCMP_ACT_ALLOW"
    ):
        raise ValueError(f"{path} is no profile of these calls")
    handle = os.memfd_create("filter", 0)
    os.write(handle, own_program() or b"")
    os.lseek(handle, 0, os.SEEK_SET)
    return [handle]


def _overlays(options: list[tuple[str, str]], root: Path) -> list[str]:
    words = ["--overlay-src", str(root)]
    writable = ""
    for word, value in options:
        if word != "--overlay":
            continue
        path, _, mode = value.partition(":")
        if mode == "ro":
            inner = Path(path) / "upper"
            words += ["--overlay-src", str(inner if inner.is_dir() else path)]
        elif writable:
            raise ValueError("you can't specify more than one writable overlay")
        else:
            writable = path
    if writable:
        for name in ("upper", "work"):
            folder = Path(writable) / name
            if folder.is_symlink():
                raise ValueError(f"{folder} is not a directory")
            folder.mkdir(mode=0o755, exist_ok=True)
        return [*words, "--overlay", f"{writable}/upper", f"{writable}/work", "/"]
    # Without an overlay of its own: bubblewrap makes mount points only where it may write.
    return [*words, "--tmp-overlay", "/"]


def _mounts(options: list[tuple[str, str]]) -> list[str]:
    chosen = dict(options)
    hidden = chosen.get("--no-mount", "").split(",")
    words = ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"]
    if "tmp" not in hidden:
        words += ["--tmpfs", "/tmp", "--tmpfs", "/var/tmp"]
    if "sys" not in hidden:
        words += ["--ro-bind", "/sys", "/sys"]
    for word, value in options:
        if word == "--bind":
            source, target, *mode = value.split(":")
            if not os.path.exists(source):
                raise ValueError(f"mount source {source} doesn't exist")
            words += ["--ro-bind" if mode == ["ro"] else "--bind", source, target]
    return [*words, "--chdir", chosen.get("--pwd", "/")]
