"""Wrapper of a sandbox's processes with input: the shell script that runs such a program as a session.

Rules
1. ``$1`` ends the program after so many seconds, unless it is empty. ``$2`` is its input: ``none``, ``terminal``, or
   ``lines``. ``$3`` is the tag of the process, which listings read again.
2. A pipe of a session never ends, so ``lines`` passes input on as lines of base64, up to the line ``.``.
3. The script waits for a program that handles SIGTERM.
4. ``timeout`` of busybox has no ``--foreground``.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final, NamedTuple

NONE, TERMINAL, LINES = "none", "terminal", "lines"
#: Sent after the last input.
NO_MORE: Final = b".\n"
_SCRIPT: Final = """\
t=$1 m=$2; shift 3
if [ -n "$t" ]; then
    if timeout --foreground 9 true 2>/dev/null; then set -- timeout --foreground -s KILL "$t" "$@"
    else set -- timeout -s KILL "$t" "$@"; fi
fi
case $m in
none) exec "$@" </dev/null ;;
terminal) exec "$@" ;;
esac
d=$(mktemp -d) && mkfifo "$d/in" || exit 125
exec 3<&0
{ while IFS= read -r l <&3; do [ "$l" = . ] && break; printf %s "$l" | base64 -d; done; } >"$d/in" 2>/dev/null &
r=$!
trap : TERM
"$@" 3<&- <"$d/in"
s=$?
kill "$r" 2>/dev/null
rm -rf "$d"
exit "$s"
"""
_PREFIX: Final = ("/bin/sh", "-c", _SCRIPT, "sh")


class WrappedProgram(NamedTuple):
    """What the words of a session's shell say of its process."""

    tag: str
    words: tuple[str, ...]


def wrapped(words: Sequence[str], given: str, limit: float | None, tag: str) -> list[str]:
    """Return the words of a session that runs a program; ``given``: its input, `NONE`, `TERMINAL` or `LINES`."""
    return [*_PREFIX, f"{limit:g}" if limit else "", given, tag, *words]


def unwrapped(words: tuple[str, ...]) -> WrappedProgram:
    """Return the program that a session runs."""
    if words[: len(_PREFIX)] != _PREFIX:
        return WrappedProgram("", words)
    _limit, _given, tag, *own = words[len(_PREFIX) :]
    return WrappedProgram(tag, tuple(own))


def typed(content: bytes, *, terminal: bool) -> bytes:
    """Return input as it is sent to the session."""
    return content if terminal else base64.b64encode(content) + b"\n"
