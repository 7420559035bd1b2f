"""Commands that were not written for a varying number of cores, made to use what they are granted.

``exec.rewrite = "pytest-xdist"`` lets `pytest` run as ``pytest -n {units}`` where the plugin is there.
Whether it is, only the environment knows, so a few lines of shell ask it first; where it is not, the
command runs as it was written and standard error says so. A command that has ``-n`` already, or is no
pytest, is left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

from domain.action import PYTEST_XDIST

_PYTEST: Final = frozenset({"pytest", "py.test"})
_PYTHON: Final = re.compile(r"python(\d+(\.\d+)*)?")
#: $1 is the count, $2 how many words of the rest start pytest; nothing may write before the command.
_SCRIPT: Final = """\
units=$1 words=$2; shift 2
if [ "$words" = 1 ]; then "$1" -p xdist --version; else "$1" -m pytest -p xdist --version; fi \
    >/dev/null 2>&1 </dev/null || {
    echo 'tangram: pytest-xdist is not in this environment, so one core is used' >&2
    exec "$@"
}
if [ "$words" = 1 ]; then
    program=$1; shift; exec "$program" -n "$units" "$@"
else
    program=$1; shift 3; exec "$program" -m pytest -n "$units" "$@"
fi
"""


def rewritten(command: Sequence[str], units: int, rule: str | None) -> list[str]:
    """Return the command as ``rule`` wants it for so many units; None changes nothing."""
    words = _words_of_pytest(command)
    if rule != PYTEST_XDIST or not words or any(map(_sets_workers, command[words:])):
        return list(command)
    return ["/bin/sh", "-c", _SCRIPT, "sh", str(units), str(words), *command]


def _words_of_pytest(command: Sequence[str]) -> int:
    """Return how many words start pytest: ``pytest`` 1, ``python -m pytest`` 3, anything else 0."""
    program = os.path.basename(command[0])
    if program in _PYTEST:
        return 1
    if _PYTHON.fullmatch(program) and list(command[1:3]) == ["-m", "pytest"]:
        return 3
    return 0


def _sets_workers(word: str) -> bool:
    return re.match(r"-n|--numprocesses|--dist|-pno:xdist|no:xdist", word) is not None
