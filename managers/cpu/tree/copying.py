"""Copying and merging of trees, with all that their files have: owners, modes, links, extended attributes.

`cp` copies: it does not follow links of the source, keeps hard links, sparse files and the marks of an
overlay (whiteouts are device files 0/0, opaque directories an attribute), and shares blocks where the file
system can. A worker that is not root works in a user namespace of its own, in which files that their owner
cannot read (mode 000) can be read. Everything here blocks.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from domain.errors import StorageFull
from managers.cpu.disk_use import measure
from managers.cpu.tree import merge

_COPY: Final = ("cp", "--archive", "--no-target-directory", "--reflink=auto")
_OWN_NAMESPACE: Final = ("unshare", "--user", "--map-root-user")
#: The caller's ranges in /etc/subuid and /etc/subgid (util-linux 2.38).
_ALL_IDS: Final = "--map-auto"
_FULL: Final = ("No space left on device", "Disk quota exceeded")


def make_room(source: Path, target: Path) -> None:
    """Raise StorageFull unless the file system of ``target`` has room for a copy of ``source``."""
    needed, free = measure(source).used_bytes, shutil.disk_usage(target).free
    if needed > free:
        raise StorageFull(f"a copy of {needed} bytes needs disk, and {free} bytes are free")


def copy_tree(source: Path, target: Path) -> None:
    """Copy a directory to ``target``, which exists and is empty, or does not exist. Raises OSError. Blocks."""
    _run([*_COPY, "--", str(source), str(target)], source)


def merge_layers(layers: Sequence[Path], target: Path, marks: str) -> None:
    """Merge sealed layers, the oldest first, into the new directory ``target`` (`merge`). Raises OSError.

    ``marks``: namespace of the overlay's marks, ``user`` or ``trusted``.
    """
    program = [sys.executable, "-I", "-S", merge.__file__, marks, str(target)]
    _run([*program, *map(str, layers)], *layers)


def in_namespace(words: list[str], *trees: Path) -> list[str]:
    """Return a command line that may read and make all files of an environment of this worker.

    ``trees``: what it works on. Files of subordinate ids, as Apptainer makes them, need a namespace that maps these.
    """
    if not os.geteuid() or not shutil.which(_OWN_NAMESPACE[0]):
        return words
    mapped = [_ALL_IDS] if any(map(has_other_owners, trees)) else []
    return [*_OWN_NAMESPACE, *mapped, *words]


def has_other_owners(tree: Path) -> bool:
    """Return whether a tree has files that are not of this worker's user. Blocks."""
    own = os.geteuid()
    if os.lstat(tree).st_uid != own:
        return True
    for folder, names, files in os.walk(tree):
        for name in (*names, *files):
            try:
                if os.lstat(f"{folder}/{name}").st_uid != own:
                    return True
            except OSError:  # in a directory of its own that it may not enter
                continue
    return False


def delete_of_others(tree: Path) -> bool:
    """Delete a tree with files of subordinate ids; return whether it was one. Raises OSError. Blocks."""
    if not has_other_owners(tree):
        return False
    _run(["rm", "--recursive", "--force", "--", str(tree)], tree)
    return True


def _run(words: list[str], *trees: Path) -> None:
    done = subprocess.run(
        in_namespace(words, *trees), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={"PATH": os.defpath, "LC_ALL": "C"}, check=False,
    )  # fmt: skip
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise _error_of(said[-1] if said else f"{words[0]} ended with status {done.returncode}")


def _error_of(said: str) -> Exception:
    if any(text in said for text in _FULL):
        return StorageFull(said)
    return OSError(errno.EIO, said)
