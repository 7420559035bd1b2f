"""Apptainer of this machine: its program, its version, and what the machine permits it.

Without root Apptainer needs user namespaces. With a range in ``/etc/subuid`` and ``/etc/subgid``, and the programs that map
it, ``--fakeroot`` gives programs all users of an image; without one, root alone.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from domain.errors import Unavailable
from managers.cpu.process.bubblewrap import parse_version

#: The first version that needs no setuid program, and mounts folders as overlays without root.
OLDEST: Final = (1, 1, 0)
#: Fewer subordinate ids than this are not used by ``--fakeroot``.
RANGE_IDS: Final = 65_536
_NAME: Final = "apptainer"
_MAPPERS: Final = ("newuidmap", "newgidmap")
_VERSION_SECONDS: Final = 20.0
_INSTALL: Final = (
    "install Apptainer 1.1 or later without root (https://apptainer.org/docs/admin/latest/installation.html),"
    " or name the program by TANGRAM_APPTAINER_PROGRAM"
)


@dataclass(frozen=True)
class Apptainer:
    """One installed program, and what it lacks here."""

    program: str
    version: tuple[int, ...]
    #: Why programs have root of an image alone; empty where they have all its users.
    one_user: str = ""

    @property
    def version_text(self) -> str:
        """Version as ``1.3.1``."""
        return ".".join(map(str, self.version))


def find_apptainer(named: str = "", etc: Path = Path("/etc")) -> Apptainer:
    """Return the program that ``named`` or PATH names. Raises Unavailable with the cure. Blocks."""
    program = shutil.which(named or _NAME)
    if program is None:
        missing = f"{named} is no program" if named else "apptainer is not installed"
        raise Unavailable(f"{missing}: {_INSTALL}")
    said = _ask_version(program)
    version = parse_version(said)
    if version is None:
        raise Unavailable(f"{program} --version answers {said[:80]!r}, which is no version")
    if version < OLDEST:
        old, needed = (".".join(map(str, each)) for each in (version, OLDEST))
        raise Unavailable(f"{program} has version {old}, and {needed} is needed: {_INSTALL}")
    return Apptainer(program, version, lacking_users(etc))


def _ask_version(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            env={"PATH": os.environ.get("PATH", os.defpath)}, timeout=_VERSION_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{program} cannot be run: {error}") from error
    if done.returncode:
        raise Unavailable(
            f"{program} --version failed: {(done.stderr or done.stdout).strip()[-200:]}"
        )
    return done.stdout.strip()


def lacking_users(etc: Path = Path("/etc"), uid: int | None = None) -> str:
    """Return why ``--fakeroot`` cannot map all users of an image for this account; empty where it can."""
    uid = os.geteuid() if uid is None else uid
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    for file in ("subuid", "subgid"):
        if not _has_range(etc / file, {name, str(uid)}):
            return (
                f"{etc / file} has no range of {RANGE_IDS} ids for {name}, so programs have root of an image alone:"
                f" add the line {name}:100000:{RANGE_IDS}"
            )
    for program in _MAPPERS:
        if shutil.which(program) is None:
            return f"{program} is missing, so programs have root of an image alone: install the package uidmap"
    return ""


def _has_range(file: Path, names: set[str]) -> bool:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return False
    for line in lines:
        owner, _, rest = line.strip().partition(":")
        count = rest.partition(":")[2]
        if owner in names and count.isdigit() and int(count) >= RANGE_IDS:
            return True
    return False


def forbidden_namespaces(kernel: Path = Path("/proc/sys"), *, for_root: bool = False) -> str:
    """Return why an ordinary account, or root, may not make user namespaces here, and the cure; empty where it may."""
    for name, refusing, cure in (
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        (
            "kernel/apparmor_restrict_unprivileged_userns", "1",
            "kernel.apparmor_restrict_unprivileged_userns=0, or give Apptainer a profile of AppArmor",
        ),
    ):  # fmt: skip
        if for_root and not name.startswith("user/"):
            continue  # these restrict ordinary accounts alone
        try:
            found = (kernel / name).read_text().strip()
        except OSError:
            continue
        if found == refusing:
            return f"/proc/sys/{name} is {found}: set {cure}"
    return ""
