"""Hidden shell: a copy of an init's own program that nothing in the environment may read.

A program inside has the user of the init, so it could trace the init, read its memory and take its descriptors. The
kernel refuses all of it for a process whose program its user may not read. So the init continues in a copy that is
owned by the worker, with mode 0111, in its control folder. The copy is made from what the init executes
(``/proc/PID/exe``), before anything else runs in the environment: it fits every tree, that of an image too.

A worker without CAP_SYS_PTRACE, as that of an ordinary account, would lose the same access, so it hides no init.

A copy that runs is kept (`HiddenShells`): the next init upon the same lowest tree begins as it, by a hard link, and so all share its
memory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

#: Name in the control folder. A shell that is several programs in one file knows by it what it is.
NAME: Final = "sh"
_MODE: Final = 0o111
_SYS_PTRACE: Final = 1 << 19
#: Largest shell that is copied: one static file of many programs has 2 MiB.
_MOST_BYTES: Final = 16 * 2**20


def may_hide(status: Path = Path("/proc/self/status")) -> bool:
    """Say whether this worker keeps its own access to an init that is hidden."""
    for line in status.read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) & _SYS_PTRACE)
    return False


def copy_shell(pid: int, folder: Path) -> bool:
    """Copy the program of the process ``pid`` to ``folder``; return whether it can be executed from there."""
    place = folder / NAME
    try:
        with open(f"/proc/{pid}/exe", "rb") as program:
            if os.fstat(program.fileno()).st_size > _MOST_BYTES:
                return False
            with open(place, "xb") as copy:
                shutil.copyfileobj(program, copy, _MOST_BYTES)
                os.fchmod(copy.fileno(), _MODE)
    except OSError:
        with contextlib.suppress(OSError):
            place.unlink()
        return False
    return os.access(place, os.X_OK)


def exec_line(number: int, control: str) -> str:
    """Return the request to continue in the copy; the answer is 0, or 1 when the copy does not run there.

    It is answered by the copy, so nothing that is sent afterwards is in a buffer of the former shell.
    """
    copy = f"{control}/{NAME}"
    return (
        f"if ({copy} -c :) 2>/dev/null; then"
        f" exec {copy} -c 'echo {number} 0; exec {copy} -s'; else echo {number} 1; fi\n"
    )


class HiddenShells:
    """Copies that inits have run as, by the lowest tree of their environment; its methods block."""

    def __init__(self, folder: Path) -> None:
        """``folder`` belongs to this worker alone; what a predecessor has kept there is deleted at the first use."""
        self._folder = folder
        self._known: set[str] = set()

    def keep(self, lowest: str, control: Path) -> None:
        """Keep the copy in ``control``, which runs upon the tree ``lowest``."""
        with contextlib.suppress(OSError):
            if not self._known:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder.mkdir(mode=0o700)
            os.link(control / NAME, self._folder / lowest)
            self._known.add(lowest)

    def give(self, lowest: str, control: Path) -> bool:
        """Link the copy for the tree ``lowest`` into ``control``; return whether there is one."""
        if lowest not in self._known:
            return False
        try:
            os.link(self._folder / lowest, control / NAME)
        except OSError:  # another file system
            return False
        return os.access(control / NAME, os.X_OK)
