"""Limits of a command, set by a shell that then becomes the command (``exec``).

Setting them between fork and exec in Python would forbid `vfork` and is not safe beside threads.
Memory is not among them: limits on address space or data break programs that reserve more than
they use. Memory of an environment is reserved on its node; this driver does not enforce it.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

_BLOCK_BYTES: Final = 512
#: The first is the seal. bash names its limit -x and that of processes -u, dash says -w and -p.
_SCRIPT: Final = (
    'ulimit -x "$1" 2>/dev/null || ulimit -w "$1" 2>/dev/null; '
    'ulimit -c 0; ulimit -n "$2" 2>/dev/null; '
    'ulimit -u "$3" 2>/dev/null || ulimit -p "$3" 2>/dev/null; '
    'ulimit -f "$4" 2>/dev/null; shift 4; exec "$@"'
)


@dataclass(frozen=True)
class Limits:
    """What one action may use of what nobody grants."""

    open_files: int = 65536
    #: Counts all processes of the worker's user; keeps a fork bomb from taking the machine.
    processes: int = 16384
    file_bytes: int = 16 * 2**30

    def prefix(self, seal: int) -> list[str]:
        """Return the beginning of a command line: what follows runs sealed and limited.

        No limit is above what this process has itself, which the shell could not set.
        """
        numbers = (
            seal,
            _at_most(resource.RLIMIT_NOFILE, self.open_files),
            _at_most(resource.RLIMIT_NPROC, self.processes),
            _at_most(resource.RLIMIT_FSIZE, self.file_bytes) // _BLOCK_BYTES,
        )
        return ["/bin/sh", "-c", _SCRIPT, "sh", *map(str, numbers)]


def _at_most(limit: int, wanted: int) -> int:
    _, hard = resource.getrlimit(limit)
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
