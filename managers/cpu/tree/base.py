"""Base: the lowest tree of environments without an image, made from the host when a driver opens.

It has the usual directories, empty, and copies of the files of ``/etc`` that programs need. Programs
themselves are not copied: the host's ``/usr`` and the like are bound over it, read-only (`SYSTEM`). So all
that can be written belongs to the environment, and a mount is never below a directory that a command may
replace. Only what every user of the host may read is copied.

A base is stored by the digest of its content: a later one does not change under environments that use an
earlier one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from managers.cpu.tree.layers import BASES

#: Directories of the host that are bound, where the host has them.
SYSTEM: Final = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt",
)  # fmt: skip
#: What programs read of ``/etc``; not all of it, which holds confidential files.
ETC: Final = (
    "/etc/alternatives", "/etc/ca-certificates", "/etc/crypto-policies", "/etc/fonts",
    "/etc/gai.conf", "/etc/group", "/etc/host.conf", "/etc/hosts", "/etc/java", "/etc/ld.so.cache",
    "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/magic", "/etc/mime.types",
    "/etc/nsswitch.conf", "/etc/passwd", "/etc/perl", "/etc/pki", "/etc/protocols", "/etc/python3",
    "/etc/resolv.conf", "/etc/services", "/etc/ssl", "/etc/timezone",
)  # fmt: skip
#: Empty directories and their modes.
_DIRECTORIES: Final = {
    **{name.lstrip("/"): 0o755 for name in SYSTEM},
    ".tangram": 0o755, "dev": 0o755, "etc": 0o755, "home": 0o755, "media": 0o755, "mnt": 0o755,
    "proc": 0o755, "root": 0o700, "run": 0o755, "run/lock": 0o1777, "srv": 0o755, "tmp": 0o1777,
    "var": 0o755, "var/cache": 0o755, "var/lib": 0o755, "var/log": 0o755, "var/spool": 0o755,
    "var/tmp": 0o1777, "workspace": 0o755,
}  # fmt: skip
#: A larger file of ``/etc`` is not one that programs need.
_MOST_BYTES: Final = 16 * 2**20


class _CopiedPath(NamedTuple):
    """A path of the host that is copied."""

    path: str
    facts: os.stat_result
    #: What the link says, of a link that stays one.
    link: str | None = None

    def describe(self) -> str:
        """Return what tells it from another version of it."""
        if self.link is not None:
            return self.link
        mode = f"{self.facts.st_mode:o}"
        if stat.S_ISDIR(self.facts.st_mode):
            return mode
        return f"{mode} {self.facts.st_size} {self.facts.st_mtime_ns}"


def make_base(state: Path, sources: Sequence[str] = ETC) -> str:
    """Make the base of this host below a state directory, if it is not there; return its digest. Blocks."""
    found = [each for source in sources for each in _below(source)]
    described = [(each.path, each.describe()) for each in found]
    digest = hashlib.blake2b(
        repr((sorted(_DIRECTORIES.items()), described)).encode(), digest_size=16
    )
    place = state / BASES / digest.hexdigest()
    if not place.is_dir():
        draft = place.with_name(f"draft.{os.getpid()}")
        shutil.rmtree(draft, ignore_errors=True)
        _fill(draft / "tree", found)
        draft.rename(place)
    return place.name


def _below(path: str) -> Iterator[_CopiedPath]:
    """Return a path and what is below it, parents first, as far as every user may read it."""
    try:
        if _stays_link(path):
            yield _CopiedPath(path, os.lstat(path), os.readlink(path))
            return
        facts = os.stat(path)
        if stat.S_ISDIR(facts.st_mode) and facts.st_mode & 0o005 == 0o005:
            yield _CopiedPath(path, facts)
            for name in sorted(os.listdir(path)):
                yield from _below(f"{path}/{name}")
        elif stat.S_ISREG(facts.st_mode) and facts.st_mode & 0o004 and facts.st_size <= _MOST_BYTES:
            yield _CopiedPath(path, facts)
    except OSError:  # missing, or the host changes it meanwhile
        return


def _stays_link(path: str) -> bool:
    """Say whether a path is a link that leads to the same place in the tree; others are copied."""
    if not os.path.islink(path):
        return False
    target = os.path.realpath(path)
    return os.path.isdir(target) or target.startswith(
        tuple(f"{each}/" for each in (*SYSTEM, "/etc"))
    )


def _fill(tree: Path, sources: Sequence[_CopiedPath]) -> None:
    tree.mkdir(parents=True)
    os.chmod(tree, 0o755)
    for name, mode in _DIRECTORIES.items():
        (tree / name).mkdir()
        os.chmod(tree / name, mode)
    for each in sources:
        target = f"{tree}{each.path}"
        if each.link is not None:
            os.symlink(each.link, target)
        elif stat.S_ISDIR(each.facts.st_mode):
            os.makedirs(target, exist_ok=True)
            os.chmod(target, stat.S_IMODE(each.facts.st_mode))
        else:
            shutil.copyfile(each.path, target)
            os.chmod(target, stat.S_IMODE(each.facts.st_mode) & 0o755)
